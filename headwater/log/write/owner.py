"""The owner: the open files of a partition in one process, and the lock under which they change.

Invariants, each of which recovery restores when a process dies between two lines:
- the file of the growing segment is exactly as long as the state's `position` says;
- the state's `durable_end` is never beyond what a sync has confirmed;
- the state is published last, so readers never meet bytes that may still change.

Threads take turns by a mutex, processes by the partition's lock, always in that order.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headwater.core.config import PartitionConfig
from headwater.core.errors import (
    HeadwaterError,
    OpenFailed,
    PartitionBusy,
    PartitionClosed,
    PartitionForked,
    PartitionPoisoned,
    SegmentListDamaged,
    WriteFailed,
)
from headwater.log.clock import Clock
from headwater.log.elapsed import Elapsed
from headwater.log.files import fork
from headwater.log.files.counters import count, count_failure
from headwater.log.files.disk import Disk
from headwater.log.files.lock import PartitionLock
from headwater.log.files.open_files import OPEN_FILES
from headwater.log.files.refusals import opening
from headwater.log.files.segment import seed_of
from headwater.log.files.segment_list import LIST_FILE, SegmentList
from headwater.log.files.state import CHANGING, POISONED, State, StatePage
from headwater.log.format.schemas import Schemas
from headwater.log.recover.clean import clean_state
from headwater.log.recover.damage import read_damage, with_damage, without_damage_in, write_damage
from headwater.log.recover.recovery import STATE_FILE, Recovery
from headwater.log.recover.report import Damage, RecoveryReport

LOCK_FILE: Final = "lock"
REPORTS_KEPT: Final = 64
_UNCOUNTED_KEPT: Final = 1000


class Ownership:
    """The block in which one writer, of all processes, may change a partition.

    A class, because a generator would cost two microseconds more.
    """

    __slots__ = ("_owner", "_timeout")

    def __init__(self, owner: PartitionOwner, timeout: float) -> None:
        self._owner = owner
        self._timeout = timeout

    def __enter__(self) -> State:
        return self._owner.acquire(self._timeout)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._owner.release(error)


class PartitionOwner:
    """The files of one partition that one process has open, and its right to change them."""

    def __init__(
        self,
        directory: Path,
        config: PartitionConfig,
        disk: Disk,
        clock: Clock,
        elapsed: Elapsed,
        schemas: Schemas,
        partition: bytes | None,
        exclusive: bool = False,
        always_repair: bool = False,
    ) -> None:
        self.directory = directory
        self.config = config
        self.disk = disk
        self.clock = clock
        self.elapsed = elapsed
        self.schemas = schemas
        self._always_repair = always_repair
        self.reports: deque[RecoveryReport] = deque(maxlen=REPORTS_KEPT)
        self.mutex = threading.RLock()
        self.used = True
        self.poison: str | None = None
        """The error of a sync that failed: from then on nothing can be written."""
        self.uncounted: deque[tuple[str, int]] = deque(maxlen=_UNCOUNTED_KEPT)
        """Failures that the state page does not tell of yet: the counter of each, and the time."""
        self.has_appended = False
        """True once this handle has appended. One that only reads changes no file, so it tells nobody of its reads."""
        self.log_fd = -1
        self.index_fd = -1
        self.recovered = 0
        """The number of recoveries: after one, a cached view of the growing segment may be wrong."""
        self.opened = 0
        """The number of times that the files of the growing segment were opened."""
        self._owners = 0
        """The number of nested blocks that hold the lock."""
        self._resting = False
        """True while the files are closed; they are opened when they are needed."""
        self._page: StatePage | None = None
        self._closed: type[PartitionClosed | PartitionForked] | None = None
        self._log = bytes(16)
        self._layout = -1
        self._lock = PartitionLock(directory / LOCK_FILE, kept=exclusive)
        try:
            if not self._open_clean():
                self._lock.acquire(config.lock_timeout)
                self.recover(partition)
                self._lock.release()
        except BaseException:
            self._lock.close()
            raise
        fork.watch(self)
        OPEN_FILES.add(self)

    # Under the lock.

    def locked(self, timeout: float | None = None) -> Ownership:
        """Own the partition for the length of a block: gives its state, caught up with what other processes did."""
        return Ownership(self, self.config.lock_timeout if timeout is None else timeout)

    def acquire(self, timeout: float) -> State:
        """Take the mutex and the lock. `release` must follow, whether or not there is an error later."""
        self.mutex.acquire()
        try:
            self.check_open()
            self._lock.acquire(timeout)
        except BaseException as error:
            self.mutex.release()
            if isinstance(error, OSError) and not isinstance(error, HeadwaterError):
                raise OpenFailed(self.directory, error) from error
            raise
        self.used = True
        self._owners += 1
        try:
            state = self._catch_up()
            if self._resting:
                self._wake()
            return state
        except BaseException as error:
            self.release(error)
            raise

    def release(self, error: BaseException | None) -> None:
        """Let go, after finishing what an error may have left half-done. Errors of the disk are told as WriteFailed."""
        try:
            if error is not None:
                self._finish_change()
        finally:
            self._owners -= 1
            self._lock.release()
            self.mutex.release()
        if isinstance(error, OSError) and not isinstance(error, HeadwaterError):
            raise WriteFailed(self.directory, error) from error

    def _finish_change(self) -> None:
        """After an error in the middle of a change: carry it out or drop it now, not at some later time."""
        with suppress(HeadwaterError, OSError):
            state, _ = self.page.read()
            if state is not None and state.flags == CHANGING:
                self.recover()

    def check_open(self) -> None:
        """Raise when the handle can no longer be used."""
        if self._closed is not None:
            raise self._closed(self.directory)

    def check_present(self) -> None:
        """Raise when the partition has been deleted, or replaced by another one of the same name."""
        if self._resting:
            self.look()
        with opening(self.directory):
            self._lock.check_present()

    # Resting.

    def look(self) -> tuple[State | None, bool]:
        """The published state, without the lock; see `StatePage.read`."""
        self.check_open()
        self.used = True
        try:
            state = self.page.read()
        except OSError as error:
            raise OpenFailed(self.directory, error) from error
        if self._resting:  # asked afterwards: a rest that came between has closed what the reading has opened, or not
            self._wake()
        return state

    def rest(self) -> bool:
        """Close the files until the partition is used again, unless it is in use; whether none are open now."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._owners or self.poison is not None:
                return False
            if self._closed is None and not self._resting:
                self._resting = True
                self._close_segment()
                self._layout = -1
                self._lock.rest()
                self.page.rest(self.state.partition)
            return True
        finally:
            self.mutex.release()

    def _wake(self) -> None:
        """The files are being opened again: from now on they count."""
        self._resting = False
        OPEN_FILES.add(self)

    # The state and the growing segment.

    def _catch_up(self) -> State:
        state, whole = self.page.read()
        if state is not None and state.poisoned:
            raise PartitionPoisoned(self.directory, "a sync failed")
        if self.poison is not None:
            raise PartitionPoisoned(self.directory, self.poison)
        if state is None or not whole or state.flags:
            return self.recover()
        if state.segment != self._log or state.layout != self._layout:
            self.open_segment(state)
        if os.lseek(self.log_fd, 0, os.SEEK_END) != state.position:
            return self.recover()  # the last owner died between its write and its publication
        self.state = state
        return state

    def mend(self) -> None:
        """Bring the files in order, when a reader has found them otherwise."""
        with self.locked():
            self.recover(thorough=True)

    def _open_clean(self) -> bool:
        """Open without the lock, if there is nothing to recover; whether that was so."""
        try:
            page = StatePage(self.disk, self.directory / STATE_FILE)
        except OSError:
            return False
        try:
            state = clean_state(self.directory, page)
            if state is not None:
                self._use(state, page)
                return True
        except OSError:
            pass  # replaced or removed since it was found: the lock's owner will see
        self._page = None
        page.close()
        return False

    def recover(self, partition: bytes | None = None, *, thorough: bool = False) -> State:
        """Run recovery and go on from its result. The lock is held."""
        config = replace(self.config, recovery="repair") if self._always_repair else self.config
        recovery = Recovery(self.directory, config, self.disk, self.clock, self.schemas, partition, thorough=thorough)
        try:
            state = recovery.run()
        except Exception:
            self._count_failed_recovery()
            raise
        if not recovery.report.clean:
            self.reports.append(recovery.report)
        self._close_page()
        self._use(state, StatePage(self.disk, self.directory / STATE_FILE))
        return state

    def _count_failed_recovery(self) -> None:
        with suppress(HeadwaterError, OSError):
            page = StatePage(self.disk, self.directory / STATE_FILE)
            try:
                state, _ = page.read()
                if state is not None:
                    counters = count_failure(state.counters, "failed_recoveries", self.clock.now_ns())
                    page.write_hint(state._replace(counters=counters))
            finally:
                page.close()

    def _use(self, state: State, page: StatePage) -> None:
        """Go on from this state, which is published."""
        self.state = state
        self._page = page
        self.seed = seed_of(state.partition)
        self.recovered += 1
        self.open_segment(state)

    @property
    def page(self) -> StatePage:
        """The state page of the open partition."""
        assert self._page is not None, "the partition has not been opened"
        return self._page

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()

    def open_segment(self, state: State) -> None:
        """Open the files of the segment that grows in this state, in the place of those that are open."""
        self._close_segment()
        path = self.directory / f"{state.segment_base:020d}.log"
        self.log_fd = self.disk.open(path)
        try:
            self.index_fd = self.disk.open(path.with_suffix(".index"))
        except FileNotFoundError:
            self.index_fd = -1  # readers walk instead, and the next recovery or roll makes a new one
        self._layout = state.layout
        self._log = state.segment
        self.opened += 1

    def _close_segment(self) -> None:
        descriptors = self.log_fd, self.index_fd
        self.log_fd = self.index_fd = -1  # first: a number that is closed twice may be another file's by then
        for fd in descriptors:
            if fd >= 0:
                self.disk.close(fd)

    def open_list(self, state: State) -> tuple[State, SegmentList | None]:
        """The list for writing, None while there is none. One that is not as the state says is made anew before."""
        for attempt in range(2):
            try:
                listed = SegmentList.open(self.disk, self.directory, state.partition)
            except FileNotFoundError:
                if not state.listed:
                    return state, None
            except SegmentListDamaged:
                if attempt:
                    raise
            else:
                if listed.generation == state.list_generation and len(listed) == state.listed:
                    return state, listed
                listed.close(self.disk)
            state = self.recover()
        raise SegmentListDamaged("the list of segments cannot be kept", file=self.directory / LIST_FILE)

    # Failed syncs.

    def tell_poison(self, state: State) -> None:
        """Tell every process, before any waiting sender is told. The lock is held."""
        with suppress(OSError):  # if even that fails, the others meet unpublished bytes and write them anew
            counters = count_failure(state.counters, "failed_syncs", self.clock.now_ns())
            self.page.write_both(state._replace(flags=state.flags | POISONED, counters=counters))

    def tell_poison_unlocked(self) -> None:
        """Do the same without holding the lock."""
        with self.mutex, suppress(PartitionBusy):
            self._lock.acquire(self.config.lock_timeout)
            try:
                self.tell_poison(self.page.read()[0] or self.state)
            finally:
                self._lock.release()

    # Counting.

    def count_failure(self, kind: str) -> None:
        """Count a failure in what the page says now, or in the next state if it cannot be written. The lock is held."""
        self.uncounted.append((kind, self.clock.now_ns()))
        with suppress(HeadwaterError, OSError):
            state, _ = self.page.read()
            if state is not None:
                self.state = self.page.write_hint(self.with_failures(state))
                self.uncounted.clear()

    def with_failures(self, state: State) -> State:
        """Return the state with the failures that the page does not know of yet."""
        counters = state.counters
        for kind, when_ns in self.uncounted:
            counters = count_failure(counters, kind, when_ns)
        return state._replace(counters=counters)

    def count_later(self, added: Mapping[str, int]) -> bool:
        """Add to counters without keeping anybody waiting; whether it was done.

        False if someone is at work, or if this handle has only read so far.
        """
        if not self.has_appended or not self.mutex.acquire(blocking=False):
            return False
        try:
            state, whole = self.look()
            if self._owners or state is None or not whole or state.flags:
                return False
            with self.locked(timeout=0) as state:
                self.state = self.page.write_hint(state._replace(counters=count(state.counters, **added)))
        except PartitionBusy:
            return False
        except (HeadwaterError, OSError):
            pass  # closed, deleted, poisoned, or on a disk that takes no writes: these are not counted
        finally:
            self.mutex.release()
        return True

    # Damage.

    def note_damage(self, damage: Damage) -> bool:
        """Count damage that a reader has met, unless it is known. False when someone is at work: try again later."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            with self.locked(timeout=0) as state:
                known = read_damage(self.directory)
                noted, new = with_damage(known, [damage] if state.start <= damage.offset < state.end else [])
                if new:
                    self.state = self.page.write(state._replace(damaged=state.damaged + new))
                if noted != known:
                    write_damage(self.disk, self.directory, noted)
        except PartitionBusy:
            return False
        except (HeadwaterError, OSError):
            pass  # closed, deleted, poisoned, or on a disk that takes no writes: reading goes on all the same
        finally:
            self.mutex.release()
        return True

    def forget_damage(self, start: int, end: int) -> None:
        """Damage in [start, end) is known no more, because it was mended."""
        with self.locked() as state:
            known = read_damage(self.directory)
            left = without_damage_in(known, start, end)
            if left != known:
                write_damage(self.disk, self.directory, left)
                self.state = self.page.write(state._replace(damaged=len(left)))

    # The handle's life.

    @property
    def closed(self) -> bool:
        """True once the handle was closed."""
        return self._closed is not None

    def close(self) -> None:
        """Give all files back. The mutex is held."""
        self._closed = PartitionClosed
        self._close_files()

    def _close_files(self) -> None:
        self._close_segment()
        self._close_page()
        self._lock.close()

    def abandon_in_child(self) -> None:
        """After a fork: close the descriptors without unlocking, which would unlock the parent's lock too."""
        self.mutex = threading.RLock()
        if self._closed is None:
            self._closed = PartitionForked
            self._close_files()
