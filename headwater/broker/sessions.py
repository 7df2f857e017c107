"""Sessions: how a broker knows that the members of a group live.

A member is silent for too long when it has sent no heartbeat within its session's timeout; it hangs when its handler
has not come back within its poll interval. Either takes it out. The store keeps the members, so they outlive the
broker; who was heard is not: after a restart every member has a whole session's time to be heard again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from headwater.core.errors import StaleMember, StoreError
from headwater.embedded.directory_group import DirectoryGroup
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.memory_group import MemoryGroup
from headwater.embedded.memory_store import MemoryStore
from headwater.streams.group import PartitionsOf
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition


class Session:
    """When a member was heard, and what is known of it only here."""

    def __init__(self, timeout: float, boot_ns: int) -> None:
        self.timeout = timeout
        self.heard = time.monotonic()
        self.polled_ns = boot_ns
        """When its handler came back, by the boot clock."""
        self.max_poll_interval: float | None = None
        self.caller: str | None = None
        """The user whose member it is; not known after a restart, until it is heard."""
        self.reading: dict[TopicPartition, tuple[bytes, int]] = {}
        """For members that poll plain records: the topic and the next offset in each of their partitions."""

    @property
    def silent(self) -> bool:
        """True if it was not heard for so long that it counts as dead."""
        return time.monotonic() - self.heard > self.timeout

    def hangs(self, boot_ns: int) -> bool:
        """Return whether its handler has not come back in time."""
        return self.max_poll_interval is not None and boot_ns - self.polled_ns > self.max_poll_interval * 1e9


class Sessions(EmbeddedGroup):
    """A group at a broker: its members have sessions instead of locks. Thread-safe."""

    def __init__(self, *args: Any, timeout: float) -> None:
        """`timeout` is what members get that do not ask for another one, in seconds."""
        super().__init__(*args)
        self._timeout = timeout
        boot_ns = self._clock.boot_ns()
        self._sessions = {member_id: Session(timeout, boot_ns) for member_id in self._read().members}

    def session(self, member_id: str, caller: str) -> Session:
        """The session of a member; raises StaleMember when it has none, StoreError when it is another's."""
        session = self._sessions.get(member_id)
        if session is None:
            raise StaleMember(
                f"the broker did not hear this member of group {self.name!r} in time and removed it: join again"
            )
        if session.caller is None:
            session.caller = caller
        if session.caller != caller:
            raise StoreError(f"this member of group {self.name!r} belongs to another caller: join as a new member")
        return session

    def begin_session(self, member_id: str, timeout: float) -> None:
        """A member has joined that may be silent for so long."""
        self._sessions[member_id].timeout = timeout

    def has_session(self, member_id: str) -> bool:
        """Return whether the member was not taken out."""
        return member_id in self._sessions

    def heard(self, member_id: str, *, polled: bool) -> None:
        """The member lives; and its handler too, if it has `polled`."""
        session = self._sessions.get(member_id)
        if session is not None:
            session.heard = time.monotonic()
            if polled:
                session.polled_ns = self._clock.boot_ns()

    def polled_by(self, member_id: str, caller: str) -> None:
        """The member has polled, if it is there and is this caller's."""
        session = self._sessions.get(member_id)
        if session is not None and session.caller in (None, caller):
            self.heard(member_id, polled=True)

    def has_dead(self) -> bool:
        """Return whether there are members that are silent or hang."""
        return bool(self._dead())

    def _dead(self) -> list[str]:
        boot_ns = self._clock.boot_ns()
        return [
            member_id for member_id, session in list(self._sessions.items()) if session.silent or session.hangs(boot_ns)
        ]

    def take_dead_out(self, partitions_of: PartitionsOf) -> bool:
        """Take out members that are silent or hang; whether there were any."""
        dead = self._dead()
        if not dead:
            return False
        with self._changing() as membership:
            removed = [member_id for member_id in dead if membership.remove(member_id)]
            if removed:
                membership.assign(partitions_of)
        for member_id in dead:
            self._sessions.pop(member_id, None)
        return bool(removed)

    # The store's groups ask by these whether a member lives.

    def _begin_life(self, member_id: str) -> None:
        self._sessions[member_id] = Session(self._timeout, self._clock.boot_ns())

    def _end_life(self, member_id: str) -> None:
        self._sessions.pop(member_id, None)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        session = self._sessions.get(member_id)
        return session is not None and not session.silent and session.polled_ns >= oldest_ns

    def touch(self, member_id: str) -> None:
        self.heard(member_id, polled=True)


class DirectorySessions(Sessions, DirectoryGroup):
    """A group in a directory, whose members are a broker's clients."""


class MemorySessions(Sessions, MemoryGroup):
    """A group in memory, whose members are a broker's clients."""


@contextmanager
def sessions_in(store: Store, timeout: float) -> Iterator[None]:
    """Groups of the store know by heartbeats who lives, for the length of a block."""
    assert isinstance(store, DirectoryStore | MemoryStore), "these are the stores that a broker serves"
    if isinstance(store, DirectoryStore):
        store.group_kind = partial(DirectorySessions, timeout=timeout)
    else:
        store.group_kind = partial(MemorySessions, timeout=timeout)
    store.reopen_groups()
    try:
        yield
    finally:
        del store.group_kind
        store.reopen_groups()


def sessions_of(store: Store, name: str) -> Sessions:
    """A group of a store that a broker serves, made if need be."""
    group = store._coordinator(name)
    assert isinstance(group, Sessions), "a broker's groups have sessions"
    return group
