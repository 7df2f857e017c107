"""A group in a directory: a document for the members, a table for the positions, and a file for each member.

A member keeps its own file locked for as long as it lives. A process that can take that lock knows that the member
is dead, in whatever container it ran.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

from headwater.core.errors import GroupBusy, HeadwaterError, OpenFailed, PartitionForked, StoreClosed, WriteFailed
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.offsets import OffsetTable
from headwater.log.clock import Clock
from headwater.log.elapsed import IsOld
from headwater.log.files.disk import TEMPORARY, Disk, read_plain
from headwater.log.files.lock import lock_holder, take_lock
from headwater.log.files.open_files import OPEN_FILES, OpenFile, open_file
from headwater.log.files.refusals import opening
from headwater.streams.group import FORGOTTEN, TopicKey
from headwater.streams.membership import Membership
from headwater.streams.position import Position

_DOCUMENT: Final = "group.json"
OFFSETS_FILE: Final = "offsets"
_LOCK: Final = "lock"
_MEMBERS: Final = "members"
_ATTEMPTS: Final = 100
"""The number of attempts to make a directory that others remove again."""
_Made = TypeVar("_Made")
_POLLED = struct.Struct("<q")
_VERSION = struct.Struct("<qq")
"""In the lock's file: the generation, and a number that rises with every change of the document."""


class _Files:
    """The open files of a group. When all of its files were removed, others take their place, under the same names."""

    __slots__ = ("lock", "offsets")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.lock = OpenFile(open_file(directory / _LOCK, os.O_RDWR | os.O_CREAT))
        self.offsets = OffsetTable(directory / OFFSETS_FILE, disk)

    @property
    def removed(self) -> bool:
        """True if the group was removed since these were opened."""
        return os.fstat(self.lock.fd).st_nlink == 0


class DirectoryGroup(EmbeddedGroup):
    """A group in a directory, shared by any number of processes."""

    lock_timeout = 10.0
    """A change waits so many seconds for a process that was stopped in the middle of its own."""

    def __init__(self, directory: Path, name: str, disk: Disk, clock: Clock) -> None:
        super().__init__(name, clock)
        self._directory = directory
        self._disk = disk
        self._mutex = threading.RLock()
        self.used = True
        self._files: _Files | None = None
        self._locked: _Files | None = None
        """Those by which the group is locked here, at this moment."""
        self._lives_here: dict[str, int] = {}
        self._known: tuple[bytes, Membership] | None = None
        """The membership, and the version that it is of."""
        self._before: dict[str, Any] = {}
        """The membership as it is kept, while it is being changed."""
        self._closed: type[StoreClosed | PartitionForked] | None = None
        self._in_directory(lambda: None)
        _open_groups.add(self)

    def _in_directory(self, work: Callable[[], _Made]) -> _Made:
        """Do something in the group's directory, which is made if need be: others may remove it at any moment."""
        for _ in range(_ATTEMPTS):
            try:
                with opening(self._directory):
                    self._disk.make_directory(self._directory / _MEMBERS)
                    return work()
            except FileNotFoundError:
                continue
        raise OpenFailed(self._directory, FileNotFoundError(errno.ENOENT, "removed again and again"))

    # The files, which are open while they are needed.

    def _opened(self) -> _Files:
        """The open files, of the group as it is there now."""
        self._check_open()
        self.used = True
        files = self._files
        # Nobody removes a group with a living member.
        if files is None or (not self._lives_here and files.removed):
            files = self._open()
        return files

    def _open(self) -> _Files:
        files = self._in_directory(lambda: _Files(self._directory, self._disk))
        self._known = None
        self._files = files
        OPEN_FILES.add(self)
        return files

    def rest(self) -> bool:
        """Close the files until the group is used again, unless it is in use; whether none are open now."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self._locked is not None:
                return False
            self._files = None
            return True
        finally:
            self._mutex.release()

    # The lock, and what it protects.

    def acquire(self) -> Membership:
        """Take the mutex and the lock: gives the membership, only to be looked at. `release` must follow."""
        self._check_open()
        self._mutex.acquire()
        try:
            files = self._lock()
            version = os.pread(files.lock.fd, _VERSION.size, 0)
            if self._known is None or self._known[0] != version:
                self._known = (version, self._read())
            return self._known[1]
        except BaseException as error:
            self.release(error)
            raise

    def _lock(self) -> _Files:
        while True:
            files = self._opened()
            if not take_lock(files.lock.fd, self.lock_timeout):
                raise GroupBusy(self.name, lock_holder(files.lock.fd), self.lock_timeout)
            if not files.removed:
                self._locked = files
                return files
            self._files = None  # whoever had the lock before has removed it all

    def release(self, error: BaseException | None = None) -> None:
        """Let the next one in. Errors of the disk are told as WriteFailed."""
        try:
            files, self._locked = self._locked, None
            if files is not None:
                fcntl.flock(files.lock.fd, fcntl.LOCK_UN)
        finally:
            self._mutex.release()
        if isinstance(error, OSError) and not isinstance(error, HeadwaterError):
            raise WriteFailed(self._directory, error) from error

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with _Locked(self):
            membership = self._read()
            self._before = membership.to_dict()
            yield membership
            self._keep(membership)

    def _keep(self, membership: Membership) -> None:
        after = membership.to_dict()
        if after == self._before:
            return
        lock = self._opened().lock
        content = os.pread(lock.fd, _VERSION.size, 0)
        # The version first: whoever dies in between leaves a document that others read once more than needed.
        os.pwrite(lock.fd, _VERSION.pack(membership.generation, _unpacked(content)[1] + 1), 0)
        try:
            # Members are gone after a power loss anyway: the document need not be synced.
            self._disk.replace(self._directory / _DOCUMENT, json.dumps(after).encode(), sync=False)
        except BaseException:
            os.pwrite(lock.fd, content or bytes(_VERSION.size), 0)
            raise
        self._before = after

    def _unchanged(self) -> AbstractContextManager[Membership]:
        return _Locked(self)

    def _read(self) -> Membership:
        """The membership; a document that a power loss has damaged is none: its members are dead as well."""
        try:
            return Membership.from_dict(json.loads(read_plain(self._directory / _DOCUMENT)))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return Membership(generation=self.generation())
        except OSError as error:
            raise OpenFailed(self._directory, error) from error

    def generation(self) -> int:
        return _unpacked(os.pread(self._opened().lock.fd, _VERSION.size, 0))[0]

    @property
    def generation_file(self) -> Path:
        """The file that is written with every new generation."""
        return self._directory / _LOCK

    # A member's file is locked for as long as the member lives.

    def _member_path(self, member_id: str) -> Path:
        return self._directory / _MEMBERS / member_id

    def _begin_life(self, member_id: str) -> None:
        self._check_open()
        path = self._member_path(member_id)
        self._lives_here[member_id] = self._in_directory(lambda: _locked_file(path))
        try:
            self.touch(member_id)
        except BaseException:
            self._end_life(member_id)
            raise

    def _end_life(self, member_id: str) -> None:
        fd = self._lives_here.pop(member_id, None)
        if fd is not None:
            with suppress(OSError):  # a file that stays is known by its lock as a dead member's
                self._disk.unlink(self._member_path(member_id))
            os.close(fd)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        path = self._member_path(member_id)
        try:
            fd = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content = os.pread(fd, _POLLED.size, 0)
            return len(content) < _POLLED.size or _POLLED.unpack(content)[0] >= oldest_ns
        else:
            with suppress(OSError):
                self._disk.unlink(path)
            return False
        finally:
            os.close(fd)

    def touch(self, member_id: str) -> None:
        self._check_open()
        try:
            os.pwrite(self._lives_here[member_id], _POLLED.pack(self._clock.boot_ns()), 0)
        except OSError as error:
            raise WriteFailed(self._directory, error) from error

    # Positions.

    def _remembered(self) -> dict[TopicKey, Position]:
        return self._opened().offsets.read_all()

    def position(self, key: TopicKey) -> Position | None:
        position = self._opened().offsets.read(*key)
        return None if position is None or position.offset == FORGOTTEN else position

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        self._opened().offsets.write(*key, offset, self._clock.now_ns(), generation, before)

    def _unset(self, key: TopicKey) -> None:
        self._opened().offsets.free(*key)

    def _make_durable(self) -> None:
        try:
            self._opened().offsets.sync()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise WriteFailed(self._directory, error) from error

    # When nobody needs it any more.

    def expire_unused(self, is_old: IsOld, *, dry_run: bool = False) -> bool:
        """Forget a group with no living member whose last commit is too old; whether it was one.

        The files of a group that has neither members nor positions are removed. A process that has them open notices
        when it next uses the group, and begins with new ones.
        """
        forgotten = super().expire_unused(is_old, dry_run=dry_run)
        if not dry_run:
            with self._unchanged() as membership:
                for leftover in self._directory.glob(f"*{TEMPORARY}"):
                    self._disk.unlink(leftover)  # of a process that died: who writes one holds the lock
                if not membership.members and not self.committed():
                    self._remove()
        return forgotten

    def _remove(self) -> None:
        """Remove the files, the lock's as the last: whoever waits for that one knows by it that they are gone."""
        try:
            for member in os.listdir(self._directory / _MEMBERS):
                if DirectoryGroup._lives(self, member, 0):
                    return  # it is about to join
            os.rmdir(self._directory / _MEMBERS)
        except FileNotFoundError:
            pass  # whoever removed it before has died at it
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return
        for name in (_DOCUMENT, OFFSETS_FILE, _LOCK):
            self._disk.unlink(self._directory / name)
        with suppress(OSError):  # somebody has begun anew in it
            os.rmdir(self._directory)

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
        self._files = self._locked = None


def _locked_file(path: Path) -> int:
    """A new file, locked. Raises FileNotFoundError when somebody has taken it for a dead member's in between."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if os.fstat(fd).st_nlink == 0:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "removed before it was locked", str(path))
    return fd


def _unpacked(version: bytes) -> tuple[int, int]:
    generation, number = _VERSION.unpack(version) if len(version) == _VERSION.size else (0, 0)
    return generation, number


class _Locked:
    """The block in which nobody else changes a group. A class: a generator would cost two microseconds more."""

    __slots__ = ("_group",)

    def __init__(self, group: DirectoryGroup) -> None:
        self._group = group

    def __enter__(self) -> Membership:
        return self._group.acquire()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._group.release(error)


_open_groups: WeakSet[DirectoryGroup] = WeakSet()


def _close_after_fork() -> None:
    for group in list(_open_groups):
        group.abandon_in_child()
    _open_groups.clear()


os.register_at_fork(after_in_child=_close_after_fork)
