"""A group in a directory: a document for the members, a table for the positions, and a file for each member.

A member keeps its own file locked for as long as it lives. Whoever can take that lock knows that the member is dead, in
whatever container it ran.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from headwater.errors import GroupBusy, PartitionForked, StoreClosed, WriteFailed
from headwater.log.clock import Clock
from headwater.log.disk import Disk, read_plain
from headwater.log.lock import lock_holder, take_lock
from headwater.store.group import FORGOTTEN, KeptGroup, TopicKey
from headwater.store.membership import Membership
from headwater.store.offsets import OffsetTable, Position

_DOCUMENT: Final = "group.json"
OFFSETS_FILE: Final = "offsets"
_LOCK: Final = "lock"
_MEMBERS: Final = "members"
_POLLED = struct.Struct("<q")
_VERSION = struct.Struct("<qq")
"""In the lock's file: the generation, and a number that rises with every change of the document."""


class DirectoryGroup(KeptGroup):
    """A group in a directory, shared by any number of processes."""

    lock_timeout = 10.0
    """How long a change waits for a process that has been stopped in the middle of its own. Seconds."""

    def __init__(self, directory: Path, name: str, disk: Disk, clock: Clock) -> None:
        super().__init__(name, clock)
        self._directory = directory
        self._disk = disk
        disk.make_directory(directory / _MEMBERS)
        self._mutex = threading.RLock()
        self._lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._offsets = OffsetTable(directory / OFFSETS_FILE, disk)
        self._lives_here: dict[str, int] = {}
        self._known: tuple[bytes, Membership] | None = None
        """The membership, and the version that it is of."""
        self._closed: type[StoreClosed | PartitionForked] | None = None
        _open_groups.add(self)

    # The lock, and what it protects.

    def acquire(self) -> Membership:
        """Take the mutex and the lock: gives the membership, only to be looked at. `release` must follow."""
        self._check_open()
        self._mutex.acquire()
        try:
            if not take_lock(self._lock_fd, self.lock_timeout):
                raise GroupBusy(self.name, lock_holder(self._lock_fd), self.lock_timeout)
            version = os.pread(self._lock_fd, _VERSION.size, 0)
            if self._known is None or self._known[0] != version:
                self._known = (version, self._read())
            return self._known[1]
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the next one in."""
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with _Locked(self):
            membership = self._read()
            before = membership.to_dict()
            yield membership
            after = membership.to_dict()
            if after != before:
                # The version first: whoever dies in between leaves a document that others read once more than needed.
                version = _VERSION.pack(membership.generation, self._version()[1] + 1)
                os.pwrite(self._lock_fd, version, 0)
                # Members are gone after a power loss anyway: the document need not be synced.
                self._disk.replace(self._directory / _DOCUMENT, json.dumps(after).encode(), sync=False)

    def _unchanged(self) -> AbstractContextManager[Membership]:
        return _Locked(self)

    def _read(self) -> Membership:
        """The membership; a document that a power loss has damaged is none: its members are dead as well."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            return Membership.from_dict(json.loads(read_plain(self._directory / _DOCUMENT)))
        return Membership(generation=self.generation())

    def _version(self) -> tuple[int, int]:
        content = os.pread(self._lock_fd, _VERSION.size, 0)
        generation, version = _VERSION.unpack(content) if len(content) == _VERSION.size else (0, 0)
        return generation, version

    def generation(self) -> int:
        self._check_open()
        return self._version()[0]

    def watched(self) -> list[Path]:
        return [self._directory / _LOCK]

    # A member's file is locked for as long as the member lives.

    def _member_path(self, member_id: str) -> Path:
        return self._directory / _MEMBERS / member_id

    def _begin_life(self, member_id: str) -> None:
        self._check_open()
        fd = os.open(self._member_path(member_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._lives_here[member_id] = fd
        self.touch(member_id)

    def _end_life(self, member_id: str) -> None:
        fd = self._lives_here.pop(member_id, None)
        if fd is not None:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._member_path(member_id))
            os.close(fd)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        path = self._member_path(member_id)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content = os.pread(fd, _POLLED.size, 0)
            return len(content) < _POLLED.size or _POLLED.unpack(content)[0] >= oldest_ns
        else:
            self._disk.unlink(path)
            return False
        finally:
            os.close(fd)

    def touch(self, member_id: str) -> None:
        self._check_open()
        os.pwrite(self._lives_here[member_id], _POLLED.pack(self._clock.now_ns()), 0)

    # Positions.

    def _remembered(self) -> dict[TopicKey, Position]:
        self._check_open()
        return self._offsets.read_all()

    def position(self, key: TopicKey) -> Position | None:
        self._check_open()
        found = self._offsets.read(*key)
        return None if found is None or found.offset == FORGOTTEN else found

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        self._offsets.write(*key, offset, self._clock.now_ns(), generation, before)

    def _unset(self, key: TopicKey) -> None:
        self._offsets.free(*key)

    def _make_durable(self) -> None:
        try:
            self._offsets.sync()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise WriteFailed(self._directory, error) from error

    # The handle.

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed(f"group {self.name!r}")

    def close(self) -> None:
        """Give the descriptors back; members that did not leave are dead from now on."""
        self._close(StoreClosed)

    def abandon_in_child(self) -> None:
        """After a fork: a child has its parent's locks as well; kept open, they would make dead members look alive."""
        self._close(PartitionForked)

    def _close(self, why: type[StoreClosed | PartitionForked]) -> None:
        if self._closed is not None:
            return
        self._closed = why
        for fd in self._lives_here.values():
            os.close(fd)
        self._lives_here.clear()
        self._offsets.close()
        os.close(self._lock_fd)


class _Locked:
    """The block in which nobody else changes a group. A class: a generator would cost two microseconds more."""

    __slots__ = ("_group",)

    def __init__(self, group: DirectoryGroup) -> None:
        self._group = group

    def __enter__(self) -> Membership:
        return self._group.acquire()

    def __exit__(self, *_: object) -> None:
        self._group.release()


_open_groups: WeakSet[DirectoryGroup] = WeakSet()


def _close_after_fork() -> None:
    for group in list(_open_groups):
        group.abandon_in_child()
    _open_groups.clear()


os.register_at_fork(after_in_child=_close_after_fork)
