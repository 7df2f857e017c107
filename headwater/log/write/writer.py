"""The writer: all that happens under a partition's lock.

Invariants, each of which recovery restores when a writer dies between two lines:
- the file of the growing segment is exactly as long as the state's `position` says;
- the state's `durable_end` is never beyond what a sync has confirmed;
- the state is published last, so readers never meet bytes that may still change.

Threads take turns by a mutex, processes by the partition's lock, always in that order.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headwater.core.config import PartitionConfig
from headwater.core.errors import (
    Damaged,
    HeadwaterError,
    OffsetOutOfRange,
    OpenFailed,
    PartitionBusy,
    PartitionClosed,
    PartitionDeleted,
    PartitionForked,
    PartitionPoisoned,
    SegmentListDamaged,
    WriteFailed,
)
from headwater.log.clock import Clock
from headwater.log.elapsed import Elapsed
from headwater.log.files import fork
from headwater.log.files.disk import Disk
from headwater.log.files.index import ENTRY_BYTES, INDEX_HEADER_BYTES, NEVER, IndexHeader
from headwater.log.files.lock import PartitionLock
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, pack_mark
from headwater.log.files.open_files import OPEN_FILES
from headwater.log.files.ownership import Ownership
from headwater.log.files.refusals import opening
from headwater.log.files.segment import (
    SEGMENT_HEADER_BYTES,
    FrameFile,
    Segment,
    SegmentHeader,
    delete_segment,
    new_segment_header,
    seed_of,
)
from headwater.log.files.segment_list import (
    LIST_FILE,
    NO_LOG,
    UNKNOWN,
    ListedSegment,
    SegmentList,
    Successor,
    listed_segment,
    replace_list,
    with_newest,
)
from headwater.log.files.state import CHANGING, POISONED, State, StatePage, begin_segment
from headwater.log.format.schemas import Schemas
from headwater.log.recover.clean import clean_state
from headwater.log.recover.damage import read_damage, with_damage, without_damage_in, write_damage
from headwater.log.recover.recovery import STATE_FILE, Recovery
from headwater.log.recover.report import Damage, RecoveryReport
from headwater.log.write.commit import Appended, Stretch, Ticket
from headwater.log.write.flush import Flush
from headwater.log.write.producers import ProducerTable, load_producers
from headwater.log.write.role import NotLeading, WriterRole
from headwater.log.write.syncer import sync_later

LOCK_FILE: Final = "lock"
REPORTS_KEPT: Final = 64
_WRITTEN_AT_ONCE: Final = 4 * 1024 * 1024
"""Where appends are not synced one by one, the device begins with them whenever there are so many bytes of them."""


class Writer:
    """The writing side of one partition in one process."""

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
    ) -> None:
        self.directory = directory
        self.config = config
        self.disk = disk
        self.clock = clock
        self.elapsed = elapsed
        self.schemas = schemas
        self.role: WriterRole | None = None
        """The role of a replica, which changes only while the mutex is held; None for a log that is not replicated."""
        self.reports: deque[RecoveryReport] = deque(maxlen=REPORTS_KEPT)
        self.mutex = threading.RLock()
        self.used = True
        self._owners = 0
        """How often the lock is held here: a block within a block counts."""
        self._resting = False
        """Whether the files were closed, and are opened when they are needed."""
        self._page: StatePage | None = None
        self._closed: type[PartitionClosed | PartitionForked] | None = None
        self._poison: str | None = None
        self._producers: ProducerTable | None = None
        self._producers_position = 0
        self._log = bytes(16)
        self._layout = -1
        self._log_fd = -1
        self._index_fd = -1
        self._started_position = 0
        self._last_sync = time.monotonic()
        self._sync_scheduled = False
        self._sync_mutex = threading.Lock()
        self._lock = PartitionLock(directory / LOCK_FILE, kept=exclusive)
        try:
            if not self._open_clean():
                self._lock.acquire(config.lock_timeout)
                self._recover(partition)
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
                self._recover()

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
            found = self.page.read()
        except OSError as error:
            raise OpenFailed(self.directory, error) from error
        if self._resting:  # asked afterwards: a rest that came between has closed what the reading has opened, or not
            self._wake()
        return found

    def rest(self) -> bool:
        """Close the files until the partition is used again, unless it is in use; whether none are open now."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._owners or self._poison is not None:
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

    def _catch_up(self) -> State:
        state, whole = self.page.read()
        if state is not None and state.poisoned:
            raise PartitionPoisoned(self.directory, "a sync failed")
        if self._poison is not None:
            raise PartitionPoisoned(self.directory, self._poison)
        if state is None or not whole or state.flags:
            return self._recover()
        if state.segment != self._log or state.layout != self._layout:
            self._open_segment(state)
        if os.lseek(self._log_fd, 0, os.SEEK_END) != state.position:
            return self._recover()  # the last owner died between its write and its publication
        self.state = state
        return state

    def mend(self) -> None:
        """Bring the files in order, when a reader has found them otherwise."""
        with self.locked():
            self._recover(thorough=True)

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

    def _recover(self, partition: bytes | None = None, *, thorough: bool = False) -> State:
        recovery = Recovery(
            self.directory, self.config, self.disk, self.clock, self.schemas, partition, thorough=thorough
        )
        state = recovery.run()
        if not recovery.report.clean:
            self.reports.append(recovery.report)
        self._close_page()
        self._use(state, StatePage(self.disk, self.directory / STATE_FILE))
        return state

    def _use(self, state: State, page: StatePage) -> None:
        """Go on from this state, which is published."""
        self.state = state
        self._page = page
        self.seed = seed_of(state.partition)
        self._producers = None
        self._open_segment(state)

    @property
    def page(self) -> StatePage:
        """The state page of the open partition."""
        assert self._page is not None, "the partition has not been opened"
        return self._page

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()

    def _open_segment(self, state: State) -> None:
        self._close_segment()
        path = self.directory / f"{state.segment_base:020d}.log"
        self._log_fd = self.disk.open(path)
        try:
            self._index_fd = self.disk.open(path.with_suffix(".index"))
        except FileNotFoundError:
            self._index_fd = -1  # readers walk instead, and the next recovery or roll makes a new one
        self._layout = state.layout
        self._started_position = 0
        if state.segment != self._log:
            self._log = state.segment
            self._producers = None

    def _close_segment(self) -> None:
        descriptors = self._log_fd, self._index_fd
        self._log_fd = self._index_fd = -1  # first: a number that is closed twice may be another file's by then
        for fd in descriptors:
            if fd >= 0:
                self.disk.close(fd)

    # Appending.

    @contextmanager
    def acting(self, *, leads: bool, epoch: int | None = None) -> Iterator[None]:
        """Keep the role of a replica for the length of a block; raise NotLeading if it has another role or epoch."""
        with self.mutex:
            role = self.role
            if role is None or role.leads != leads or epoch not in (None, role.epoch):
                raise NotLeading
            yield

    def commit(
        self, tickets: Sequence[Ticket], stretches: list[Stretch] | None = None, *, durable: bool = False
    ) -> None:
        """Write the frames, sync as the mode says, or in any case if `durable`, and publish them.

        Appends of a leader and copies of a follower both pass here: a ticket says which it is, and the role of this
        replica says which may be written, or NotLeading is raised. Tickets get results or errors; `stretches` get the
        bytes.
        """
        with self.locked() as state:
            role = self.role
            if role is not None and any(bool(ticket.copied) is role.leads for ticket in tickets):
                raise NotLeading
            waiting = list(tickets)
            while waiting:
                if self._roll_due(state, waiting[0].size):
                    state = self._roll(state)
                run = [waiting.pop(0)]
                room = self.config.segment_bytes - state.position - run[0].size
                while waiting and waiting[0].size <= room:
                    room -= waiting[0].size
                    run.append(waiting.pop(0))
                state = self._append(state, run, stretches, durable=durable)
                self._start_writing(state)
        if state.durable_end < state.end and not self._sync_scheduled and self.config.sync != "never":
            self._sync_scheduled = True
            sync_later(self, float(self.config.sync))

    def _roll_due(self, state: State, size: int) -> bool:
        if state.position == SEGMENT_HEADER_BYTES:
            return False
        age = self.clock.now_ns() - state.segment_created_ns
        return state.position + size > self.config.segment_bytes or age > self.config.segment_age * 1e9

    def _append(
        self, state: State, tickets: Sequence[Ticket], stretches: list[Stretch] | None, *, durable: bool
    ) -> State:
        """Append with one vectored write, at most one sync, and one publication."""
        before = state
        epoch = 0 if self.role is None else self.role.epoch
        flush = Flush(state, seed=self.seed, leader_epoch=epoch, index_interval=self.config.index_interval)
        outcomes: list[tuple[Ticket, Appended]] = []
        for ticket in tickets:
            try:
                known = self._known(ticket)
                outcomes.append((ticket, known if known is not None else self._add(flush, ticket)))
            except HeadwaterError as error:
                ticket.error = error
        awaited = max((found.end_offset for _, found in outcomes if found.duplicate), default=0)
        try:
            if flush.size:
                self.disk.writev(self._log_fd, flush.buffers, state.position, flush.size)
                state = flush.published(self.clock.now_ns(), self._write_index(state, flush.index_entries()))
            if durable or self._sync_due() or awaited > state.durable_end:
                state = self._sync(state)
            if state is not before:
                self.state = state = self.page.write(state)
        except BaseException:
            if not self._undo(before):
                _tell(outcomes)  # interrupted (Ctrl-C) when readers could see it already: it has happened
            raise
        if self._producers_position == before.position:
            self._producers_position = state.position
        _tell(outcomes)
        if stretches is not None:
            stretches += flush.stretches(state, self.directory)
        return state

    def _start_writing(self, state: State) -> None:
        """Give the device what it can write by itself while more is being appended: the next sync waits for less."""
        started = max(self._started_position, state.durable_position)
        if state.position - started >= _WRITTEN_AT_ONCE:
            self.disk.start_writing(self._log_fd, started, state.position - started)
            self._started_position = state.position

    def _add(self, flush: Flush, ticket: Ticket) -> Appended:
        added = flush.add(ticket)
        first = ticket.frames[0]
        if first.identity is not None:
            self.producers().add(
                first.identity, first.record_count, added.base_offset, added.end_offset, self.clock.now_ns()
            )
        return added

    def _known(self, ticket: Ticket) -> Appended | None:
        """The outcome of the original when the ticket is a retry."""
        identity = ticket.frames[0].identity
        if identity is None or ticket.copied:
            return None
        found = self.producers().check(identity, ticket.frames[0].record_count)
        return None if found is None else Appended(found.base_offset, found.end_offset, duplicate=True)

    def _write_index(self, state: State, entries: list[bytes]) -> int:
        """Append the new entries; how many. Losing some costs later readers a longer walk, so failing is no error."""
        if not entries or self._index_fd < 0:
            return 0
        try:
            position = INDEX_HEADER_BYTES + state.index_entries * ENTRY_BYTES
            self.disk.write(self._index_fd, b"".join(entries), position)
        except OSError:
            return 0
        return len(entries)

    def _undo(self, before: State) -> bool:
        """Take back what was written, unless it was published; whether it was not.

        What cannot be taken back, recovery will deal with.
        """
        self._producers = None
        if self._poison is None:
            with suppress(OSError):
                state, _ = self.page.read()
                if state is not None and state.sequence > before.sequence:
                    return False
                self.disk.truncate(self._log_fd, before.position)
        return True

    # Syncing.

    def _sync_due(self) -> bool:
        mode = self.config.sync
        if mode == "always":
            return True
        return mode != "never" and time.monotonic() - self._last_sync >= float(mode)

    def _sync(self, state: State) -> State:
        """Sync the growing segment under the lock. A failure poisons it: its pages can no longer be trusted."""
        if state.durable_end == state.end:
            return state
        try:
            self._sync_device(self._log_fd)
        except PartitionPoisoned:
            self._tell_poison(self.state)
            raise
        return state._replace(
            durable_end=state.end,
            durable_position=state.position,
            durable_stamp=state.stamp,
            total_syncs=state.total_syncs + 1,
        )

    def _sync_device(self, fd: int) -> None:
        """One sync at a time: the kernel tells of a failure once, so another caller would hear of success."""
        with self._sync_mutex:
            if self._poison is None:
                try:
                    self.disk.sync(fd)
                except OSError as error:
                    self._poison = str(error)
            if self._poison is not None:
                raise PartitionPoisoned(self.directory, self._poison)
        self._last_sync = time.monotonic()

    def _tell_poison(self, state: State) -> None:
        """Tell every process, before any waiting sender is told. The lock is held."""
        with suppress(OSError):  # if even that fails, the others meet unpublished bytes and write them anew
            self.page.write_both(state._replace(flags=state.flags | POISONED))

    def _tell_poison_unlocked(self) -> None:
        with self.mutex, suppress(PartitionBusy):
            self._lock.acquire(self.config.lock_timeout)
            try:
                self._tell_poison(self.page.read()[0] or self.state)
            finally:
                self._lock.release()

    def sync(self) -> None:
        """Make everything published durable, without keeping appenders out meanwhile."""
        self._sync_scheduled = False
        with self.locked() as state:
            if state.durable_end == state.end:
                return
            fd = os.dup(self._log_fd)
        try:
            self._sync_device(fd)
        except PartitionPoisoned:
            self._tell_poison_unlocked()
            raise
        finally:
            os.close(fd)
        with self.locked() as now:
            if now.segment == state.segment and now.durable_end < state.end:
                self.state = self.page.write(
                    now._replace(
                        durable_end=state.end,
                        durable_position=state.position,
                        durable_stamp=state.stamp,
                        total_syncs=now.total_syncs + 1,
                    )
                )

    # Segments.

    def roll(self) -> bool:
        """Close the growing segment, if it holds anything, and begin the next one."""
        with self.locked() as state:
            if state.position == SEGMENT_HEADER_BYTES:
                return False
            self._roll(state)
            return True

    def _roll(self, state: State, base: int | None = None, producers: ProducerTable | None = None) -> State:
        """Everything in the old segment is durable before the new one can be found: recovery builds on that.

        So is its entry in the list of closed segments. If nothing lies behind the segment that the state calls the
        growing one, the entry is of a roll that did not come to its end. The new segment begins at the end, or further
        on at `base`, with who has written what up to there.
        """
        state, listed = self._open_list(self._sync(state))
        try:
            return self._begin_next(state, listed, base, producers)
        finally:
            if listed is not None:
                listed.close(self.disk)

    def _begin_next(
        self, state: State, listed: SegmentList | None, base: int | None, producers: ProducerTable | None
    ) -> State:
        state = self.page.write(state._replace(flags=CHANGING))
        table = producers or self.producers()
        now = self.clock.now_ns()
        table.expire(self.elapsed.is_older(self.config.producer_expiry))
        header = new_segment_header(state.partition, state.end if base is None else base, now)
        path = self.directory / f"{header.base:020d}.log"
        if self._index_fd >= 0:
            sealed = IndexHeader(state.segment, state.position, state.segment_max_timestamp, state.index_entries)
            self.disk.write(self._index_fd, sealed.pack(), 0)
        self.disk.replace(path.with_suffix(".producers"), table.pack())
        self.disk.replace(path.with_suffix(".index"), IndexHeader(header.log, 0, NEVER, 0).pack(), sync=False)
        count = self._list_closed(listed, state, header.base, now)
        Segment.create(self.disk, self.directory, header)
        try:
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self._poison = str(error)
            self._tell_poison(state)
            raise PartitionPoisoned(self.directory, self._poison) from error
        self.state = state = self.page.write(begin_segment(state, header)._replace(listed=count))
        self._open_segment(state)
        self._producers, self._producers_position = table, SEGMENT_HEADER_BYTES
        return state

    def _list_closed(self, listed: SegmentList | None, state: State, end: int, now_ns: int) -> int:
        """Add the growing segment, which is durable, to the list; how many entries that has then.

        One without offsets is not listed: the new segment takes its place.
        """
        if end == state.segment_base:
            return state.listed
        header = SegmentHeader.unpack(os.pread(self._log_fd, SEGMENT_HEADER_BYTES, 0))
        records = max(state.total_records - state.records_before, UNKNOWN)
        entry = listed_segment(header, end, state.position, records, state.segment_max_timestamp, now_ns)
        if listed is None:
            replace_list(self.disk, self.directory, state.partition, state.list_generation, [entry])
        else:
            newest = max(entry.max_timestamp, listed[state.listed - 1].newest if state.listed else NEVER)
            listed.write(self.disk, state.listed, entry._replace(newest=newest))
        return state.listed + 1

    def _open_list(self, state: State) -> tuple[State, SegmentList | None]:
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
            state = self._recover()
        raise SegmentListDamaged("the list of segments cannot be kept", file=self.directory / LIST_FILE)

    # Idempotence.

    def producers(self) -> ProducerTable:
        """Who has written what, up to the published end. The lock is held."""
        state = self.state
        table = self._producers
        if table is None:
            table = load_producers(self.directory, state.partition, state.segment_base)
            self._producers_position = SEGMENT_HEADER_BYTES
        if self._producers_position < state.identified_position:
            file = FrameFile(self._log_fd, state.position, self.seed, self.directory / f"{state.segment_base:020d}.log")
            now = self.clock.now_ns()
            for header in file.walk_identified(self._producers_position, state.segment_base):
                table.add_stored(header, now)
        self._producers = table
        self._producers_position = state.position
        return table

    def learn_producers(self, producers: ProducerTable) -> None:
        """Take over what another replica knows, which is all that is known here and more. It is durable with a roll."""
        with self.locked() as state:
            self._roll(state, producers=producers)

    # Cutting at either end.

    def truncate(self, offset: int) -> None:
        """Remove everything from `offset` on. The intent is durable first; carrying it out is recovery's job."""
        with self.locked() as state:
            if not state.start <= offset <= state.end:
                raise OffsetOutOfRange(offset, state.start, state.end, str(self.directory))
            if offset == state.end:
                return
            # What the decision relies on is durable before it: else a power loss could leave the decision alone.
            self.page.write(self._sync(state)._replace(flags=CHANGING))
            self.disk.replace(self.directory / TRUNCATE_FILE, pack_mark(TRUNCATE_FILE, offset))
            self.disk.sync_directory(self.directory)
            self._recover()

    def delete_before(self, offset: int, producers: ProducerTable | None = None) -> int:
        """Make `offset` the first one and delete the segments that lie wholly below it; how many.

        With `producers`, who have written what is below, it may lie beyond the end: the log goes on from there.
        """
        with self.locked() as state:
            if offset > state.end and producers is not None:
                state = self._roll(state, offset, producers)
            if offset > state.end:
                raise OffsetOutOfRange(offset, state.start, state.end, str(self.directory))
            if offset <= state.start:
                return 0
            if offset == state.end and state.position > SEGMENT_HEADER_BYTES:
                state = self._roll(state)
            if offset > state.durable_end:
                state = self._sync(state)
            state, doomed, kept = self._divided_list(state, offset)
            state = self.page.write(state._replace(flags=CHANGING))
            self.disk.replace(self.directory / START_FILE, pack_mark(START_FILE, offset))
            self.disk.sync_directory(self.directory)
            # Readers learn where the log begins before the list forgets what lies before.
            state = self.page.write(state._replace(start=offset))
            if doomed:
                state = state._replace(list_generation=state.list_generation + 1, listed=len(kept))
                replace_list(self.disk, self.directory, state.partition, state.list_generation, kept)
                self.disk.sync_directory(self.directory)
            forgotten = self._forget_damage(offset)
            self.state = self.page.write_both(
                state._replace(flags=0, layout=state.layout + 1, damaged=max(state.damaged - forgotten, 0))
            )
            for entry in doomed:
                delete_segment(self.disk, self.directory / f"{entry.base:020d}.log")
            return len(doomed)

    def _divided_list(self, state: State, start: int) -> tuple[State, list[ListedSegment], list[ListedSegment]]:
        """The entries of segments that lie wholly below `start`, and the others."""
        state, listed = self._open_list(state)
        if listed is None:
            return state, [], []
        try:
            entries = list(listed.entries())
        finally:
            listed.close(self.disk)
        number = sum(entry.end <= start for entry in entries)
        return state, entries[:number], list(with_newest(entries[number:]))

    def _forget_damage(self, start: int) -> int:
        """Forget damage to records that are deleted; how many stretches that were."""
        known = read_damage(self.directory)
        kept = [one for one in known if one.next_offset > start]
        if kept != known:
            write_damage(self.disk, self.directory, kept)
        return len(known) - len(kept)

    def settle_replacements(self) -> None:
        """Find out how replacements of segments ended whose writers died, before anyone begins another one.

        Otherwise the list would name, as the file before, one that never was in the segment's place.
        """
        with self.locked() as state:
            state, listed = self._open_list(state)
            if listed is None:
                return
            try:
                unsettled = [
                    (number, entry) for number, entry in enumerate(listed.entries()) if entry.former_log != NO_LOG
                ]
                if not unsettled:
                    return
                self.disk.sync_directory(self.directory)  # the file that is found is the one that stays
                for number, entry in unsettled:
                    listed.write(self.disk, number, entry.settled_as(self._log_of(entry)))
            finally:
                listed.close(self.disk)
            self.state = self.page.write_both(state._replace(layout=state.layout + 1))

    def _log_of(self, entry: ListedSegment) -> bytes | None:
        try:
            return Segment.read(self.directory / f"{entry.base:020d}.log").header.log
        except (FileNotFoundError, Damaged):
            return None

    def swap(self, old: Segment, successor: Successor) -> bool:
        """Put a rewritten segment in the place of `old`, unless that was deleted or replaced in the meantime.

        The list tells that, so a file that is lost can be replaced as well. It names both files until the new one has
        the name: so whichever a crash leaves is the right one, and neither can come back in the place of the other.
        """
        with self.locked() as state:
            state, listed = self._open_list(state)
            if listed is None:
                return False
            try:
                if not self._put_in_place(listed, old, successor):
                    return False
            finally:
                listed.close(self.disk)
            self.state = self.page.write_both(state._replace(layout=state.layout + 1))
            return True

    def _put_in_place(self, listed: SegmentList, old: Segment, successor: Successor) -> bool:
        number = listed.holding(old.base)
        entry = listed[number] if number >= 0 else None
        if entry is None or entry.base != old.base or entry.log != old.header.log or entry.former_log != NO_LOG:
            return False
        try:
            listed.write(self.disk, number, entry.replaced(successor))
            self.disk.rename(successor.path, old.path)
        except OSError:
            with suppress(OSError):
                listed.write(self.disk, number, entry, sync=False)
            raise
        self.disk.sync_directory(self.directory)
        listed.write(self.disk, number, entry.replaced(successor).settled(), sync=False)
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

    def close(self) -> None:
        """Sync what is not yet durable, then the state, so that the next opening has nothing to walk.

        Where nothing was written there is nothing to sync, and nobody to wait for.
        """
        with self.mutex:
            if self._closed is not None:
                return
            try:
                with suppress(PartitionDeleted):  # then there is nothing left to sync
                    if self._poison is None and self.config.sync != "always" and not self._all_durable():
                        self.sync()
                    if self._poison is None:
                        self._sync_page()
            finally:
                self._closed = PartitionClosed
                self._close_files()
        fork.unwatch(self)

    def _sync_page(self) -> None:
        with suppress(OSError):  # a state that is lost is made anew from the log
            self.page.sync_writes()

    def _all_durable(self) -> bool:
        state, whole = self.look()
        return state is not None and whole and not state.flags and state.durable_end == state.end

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


def _tell(outcomes: list[tuple[Ticket, Appended]]) -> None:
    for ticket, outcome in outcomes:
        ticket.result = outcome
