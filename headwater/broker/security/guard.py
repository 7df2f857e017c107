"""A guard: access as a file and a cluster say it, for callers with tokens or certificates. All else is denied.

The files are read again when they change. One that is wrong changes nothing: the rights stay as they were, and the log
says what is wrong with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from headwater.broker.security.access import ANONYMOUS, Access, Caller, Kind, Right, Rules
from headwater.broker.security.access_file import RIGHTS, Rights, read_access
from headwater.broker.security.audit import Audit
from headwater.broker.security.tokens import Token, Verifier, read_tokens, tokens_beside
from headwater.core.errors import InvalidFile, PermissionDenied, Unauthenticated, UnknownTopic
from headwater.serving.sources import source_of_peer
from headwater.streams.pattern import is_pattern

_LOG: Final = logging.getLogger("headwater.broker.security.access")
_BEARER: Final = "bearer "
_WATCH_SECONDS: Final = 1.0


def _unknown(caller: Caller, topic: str) -> UnknownTopic:
    return UnknownTopic(topic, f"what {caller.name!r} may see")


def _authorization(metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
    return next((value for key, value in metadata if key == "authorization" and isinstance(value, str)), None)


def _token_in(authorization: str) -> str:
    return authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""


class Guard(Access):
    """Goes by an access file, and by the tokens beside it. Thread-safe.

    A token goes over a certificate. A caller with neither is `anonymous`, or refused if the file has no such user.
    """

    def __init__(self, path: Path, audit: Audit | None = None) -> None:
        """Raises InvalidFile, or OSError."""
        self._path = path
        self._audit = audit or Audit()
        self._seen = self._signature()
        self._own: Rules = read_access(path), read_tokens(tokens_beside(path))
        self._shared: Rules = {}, {}
        self._users: Mapping[str, Rights] = {}
        self._verifier = Verifier({})
        self._go_by_both()
        self._wake = threading.Event()
        self._closed = False
        self._watcher: threading.Thread | None = None

    @property
    def denials(self) -> int:
        """The number of calls that were denied."""
        return self._audit.denials

    @property
    def enforced(self) -> bool:
        """See Access."""
        return True

    # Deciding.

    def caller(self, metadata: Sequence[tuple[str, str | bytes]], peer: str, identities: Iterable[bytes]) -> Caller:
        """See Access."""
        authorization = _authorization(metadata)
        if authorization is not None:
            return Caller(self.user_of(authorization, peer), peer)
        names = [identity.decode("utf-8", "backslashreplace") for identity in identities or ()]
        users = self._users
        if names:
            return Caller(next((name for name in names if name in users), names[0]), peer)
        if ANONYMOUS.name in users:
            return Caller(ANONYMOUS.name, peer)
        self._audit.unauthenticated("no token and no certificate", peer)
        raise Unauthenticated("this broker has to know who calls: give the client a token or a certificate")

    def hashes(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        """See Access."""
        authorization = _authorization(metadata)
        return authorization is not None and self._verifier.hashes(_token_in(authorization))

    def user_of(self, authorization: str, peer: str) -> str:
        """The user of the token in `Bearer hw_...`; raises Unauthenticated, or TooManyAttempts."""
        user = self._verifier.user(_token_in(authorization), source_of_peer(peer))
        if user is None:
            self._audit.unauthenticated("the token is not known", peer)
            raise Unauthenticated("the token is not known to this broker: it is mistyped, revoked or expired")
        return user

    def _has(self, caller: Caller, right: Right, kind: Kind, name: str) -> bool:
        names = self._users.get(caller.name, {}).get((kind, right))
        return names is not None and name in names

    def check(self, caller: Caller, right: Right, kind: Kind, name: str) -> None:
        """See Access."""
        if self._has(caller, right, kind, name):
            return
        self._audit.denied(caller.name, right, kind, name, caller.peer)
        # A caller that makes or removes something knows its name; and a pattern is nobody's.
        if kind == "topic" and right != "admin" and not is_pattern(name) and not self.sees(caller, name):
            raise _unknown(caller, name)
        raise PermissionDenied(caller.name, right, kind, name)

    def check_seen(self, caller: Caller, topic: str) -> None:
        """See Access."""
        if not self.sees(caller, topic):
            self._audit.denied(caller.name, "read", "topic", topic, caller.peer)
            raise _unknown(caller, topic)

    def sees(self, caller: Caller, name: str, kind: Kind = "topic") -> bool:
        """See Access: any right will do."""
        return any(self._has(caller, right, kind, name) for right in RIGHTS)

    # Reading the files again.

    def _signature(self) -> list[tuple[int, int, int] | None]:
        """A signature of the files, which changes when one of them does."""
        signature: list[tuple[int, int, int] | None] = []
        for path in (self._path, tokens_beside(self._path)):
            try:
                status = path.stat()
                signature.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                signature.append(None)
        return signature

    def reload(self) -> bool:
        """Read the files again, and return whether they were right. A wrong file is logged and changes nothing."""
        self._seen = self._signature()
        try:
            users, tokens = read_access(self._path), read_tokens(tokens_beside(self._path))
        except (InvalidFile, OSError) as error:
            problems = [str(problem) for problem in error.problems] if isinstance(error, InvalidFile) else [str(error)]
            _LOG.error("access file refused, rights stay as they were", extra={"facts": {"problems": problems}})
            return False
        self._own = users, tokens
        self._go_by_both()
        _LOG.info("access file read", extra={"facts": {"users": len(users), "tokens": len(tokens)}})
        return True

    def share(self, users: Mapping[str, Rights], tokens: Mapping[str, Token]) -> None:
        """Go by these as well, which a cluster keeps for all its brokers. For who is in the file it alone counts."""
        self._shared = users, tokens
        self._go_by_both()

    def _go_by_both(self) -> None:
        self._users = {**self._shared[0], **self._own[0]}
        self._verifier.tokens = {**self._shared[1], **self._own[1]}

    @property
    def own(self) -> Rules:
        """The rules of the file, and the tokens beside it."""
        return self._own

    def watch(self) -> None:
        """Read the files again whenever they change, in a thread, until it is closed."""
        self._watcher = threading.Thread(target=self._watch, name="headwater-broker-access", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._closed:
            if self._wake.wait(_WATCH_SECONDS) or self._signature() != self._seen:
                self._wake.clear()
                if not self._closed:
                    self.reload()

    def wake(self) -> None:
        """Read the files again now, whether they have changed or not. May be called by a signal's handler."""
        self._wake.set()

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._wake.set()
        if self._watcher is not None:
            self._watcher.join()
