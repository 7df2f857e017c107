"""Sessions: the users who have the console open, and the store that each looks at.

There are two ways in. A *launch token* is made when the console starts and is part of the link that it prints: whoever
has it is the one who started it, and sees the store as the console itself does. A *broker's token* is what a user of a
broker has anyway: the console passes it on with every call, so the broker decides about each, as for any client.
Either becomes a cookie that no script can read and no other site can send.

A session ends when nobody has used it for half a day, and a week after it began. Wrong tokens are counted for each
address that they come from, and keep out nobody at another one. The launch token, and any token that is known by now,
is taken from anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headwater.console.watch import INTERVAL, StoreWatch
from headwater.core.errors import Unauthenticated
from headwater.serving.failures import Failures
from headwater.streams.store import Store

_TOKEN_BYTES: Final = 32
_IDLE_SECONDS: Final = 12 * 3600.0
_LONGEST_SECONDS: Final = 7 * 24 * 3600.0
_MOST: Final = 200
_FAILURES: Final = 20
_FAILURE_SECONDS: Final = 60.0


@dataclass(slots=True)
class ConsoleSession:
    """A user who has the console open."""

    user: str | None
    watch: StoreWatch
    began: float
    seen: float


class ConsoleSessions:
    """Lets people in, and knows them again by their cookies. Thread-safe."""

    def __init__(
        self,
        own: Store | None,
        connect: Callable[[str], Store] | None = None,
        *,
        interval: float = INTERVAL,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` is the store that the launch token shows; `connect` opens the store for the token of a broker's user.

        Stores are looked at every `interval`, in seconds.
        """
        self.launch_token = secrets.token_urlsafe(_TOKEN_BYTES) if own is not None else None
        self._own = StoreWatch(own, interval) if own is not None else None
        self._connect = connect
        self._interval = interval
        self._now = now
        self._mutex = threading.Lock()
        self._sessions: dict[str, ConsoleSession] = {}
        self._watches: dict[str, StoreWatch] = {}
        self._failures = Failures(_FAILURES, _FAILURE_SECONDS, now)

    @property
    def by_token(self) -> bool:
        """True if users of a broker sign in by their tokens."""
        return self._connect is not None

    def begin(self, token: str, source: str = "") -> str:
        """Sign a caller at the address `source` in by a token, and return the value of a cookie.

        Raises Unauthenticated, or the broker's error.
        """
        if self.launch_token is not None and self._own is not None:
            if hmac.compare_digest(token.encode(), self.launch_token.encode()):
                return self._add(None, self._own)
            if self._connect is None:
                self._check_pace(source)
                self._failures.note(source)
                raise Unauthenticated(
                    "this link belongs to an earlier start of the console: hw console prints the present one"
                )
        assert self._connect is not None
        name = hashlib.sha256(token.encode()).hexdigest()
        with self._mutex:
            watch = self._watches.get(name)
        if watch is None:
            self._check_pace(source)
            store = self._connect(token)
            try:
                store.topics()  # the broker's word on whether it knows the token
            except Unauthenticated:
                store.close()
                self._failures.note(source)
                raise
            except BaseException:
                store.close()
                raise
            with self._mutex:
                watch = self._watches.setdefault(name, StoreWatch(store, self._interval))
            if watch.store is not store:
                store.close()
        return self._add(f"token {token[3:15]}", watch)  # its id, which is no secret

    def _check_pace(self, source: str) -> None:
        if self._failures.blocks(source):
            raise Unauthenticated("too many wrong tokens from your address: wait a minute")

    def _add(self, user: str | None, watch: StoreWatch) -> str:
        value = secrets.token_urlsafe(_TOKEN_BYTES)
        now = self._now()
        with self._mutex:
            self._sessions[_digest(value)] = ConsoleSession(user, watch, now, now)
            if len(self._sessions) > _MOST:
                # Of whoever has the most: one who signs in again and again ends no session of others.
                counted = Counter(id(session.watch) for session in self._sessions.values())
                most = max(counted.values())
                greedy = [name for name, session in self._sessions.items() if counted[id(session.watch)] == most]
                self._drop(min(greedy, key=lambda name: self._sessions[name].seen))
        return value

    def find(self, value: str) -> ConsoleSession:
        """The session of a cookie, which is in use by that; raises Unauthenticated."""
        self.sweep()
        with self._mutex:
            session = self._sessions.get(_digest(value))
            if session is not None and session.watch.refused:
                # A caller who has lost the right to earlier results must not see them.
                self._drop(_digest(value))
                session = None
            if session is None:
                raise Unauthenticated("open the link that the console has printed, or give a token")
            session.seen = self._now()
            return session

    def sweep(self) -> None:
        """Forget sessions that have ended by their age, or because nobody uses them."""
        with self._mutex:
            now = self._now()
            for name in [
                name
                for name, session in self._sessions.items()
                if now - session.seen > _IDLE_SECONDS or now - session.began > _LONGEST_SECONDS
            ]:
                self._drop(name)

    def end(self, value: str) -> None:
        """Forget a session."""
        with self._mutex:
            self._drop(_digest(value))

    def _drop(self, name: str) -> None:
        gone = self._sessions.pop(name, None)
        if gone is None or any(session.watch is gone.watch for session in self._sessions.values()):
            return
        for key in [key for key, watch in self._watches.items() if watch is gone.watch]:
            threading.Thread(target=self._watches.pop(key).close, daemon=True).start()

    def close(self) -> None:
        """Close all stores."""
        with self._mutex:
            watches = [*self._watches.values(), *([self._own] if self._own is not None else [])]
            self._sessions.clear()
            self._watches.clear()
        for watch in watches:
            watch.close()


def _digest(value: str) -> str:
    """Return the key that a session is kept under. It is a hash, so the process's memory tells no cookie."""
    return hashlib.sha256(value.encode()).hexdigest()
