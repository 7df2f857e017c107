"""The writer: appends frames, of a leader or of a follower, and begins new segments. `PartitionOwner` has the lock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from headwater.core.errors import HeadwaterError, PartitionDeleted, PartitionPoisoned
from headwater.log.files import fork
from headwater.log.files.counters import count
from headwater.log.files.index import ENTRY_BYTES, INDEX_HEADER_BYTES, NEVER, IndexHeader
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader, new_segment_header
from headwater.log.files.segment_list import UNKNOWN, SegmentList, listed_segment, replace_list
from headwater.log.files.state import CHANGING, State, begin_segment
from headwater.log.write.commit import Appended, Stretch, Ticket
from headwater.log.write.flush import Flush
from headwater.log.write.owner import PartitionOwner
from headwater.log.write.producers import KnownProducers, ProducerTable
from headwater.log.write.role import NotLeading, WriterRole
from headwater.log.write.syncer import Syncer

_WRITTEN_AT_ONCE: Final = 4 * 1024 * 1024
"""If appends are not synced one by one, the device begins to write whenever so many bytes have gathered."""


class Writer:
    """The writing side of one partition in one process."""

    def __init__(self, owner: PartitionOwner, syncer: Syncer) -> None:
        self._owner = owner
        self._syncer = syncer
        self.producers = KnownProducers(owner)
        self.role: WriterRole | None = None
        """The role of a replica, which changes only while the mutex is held; None for a log that is not replicated."""
        self._started_in = 0
        self._started_position = 0
        """Up to where the device was told to write, in the files that were opened as number `_started_in`."""

    @contextmanager
    def acting(self, *, leads: bool, epoch: int | None = None) -> Iterator[None]:
        """Keep the role of a replica for the length of a block; raise NotLeading if it has another role or epoch."""
        with self._owner.mutex:
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
        with self._owner.locked() as state:
            role = self.role
            if role is not None and any(bool(ticket.copied) is role.leads for ticket in tickets):
                raise NotLeading
            waiting = list(tickets)
            while waiting:
                if self._roll_due(state, waiting[0].size):
                    state = self.roll_locked(state)
                run = [waiting.pop(0)]
                room = self._owner.config.segment_bytes - state.position - run[0].size
                while waiting and waiting[0].size <= room:
                    room -= waiting[0].size
                    run.append(waiting.pop(0))
                state = self._append(state, run, stretches, durable=durable)
                self._start_writing(state)
        if state.durable_end < state.end:
            self._syncer.schedule()

    def _roll_due(self, state: State, size: int) -> bool:
        owner = self._owner
        if state.position == SEGMENT_HEADER_BYTES:
            return False
        age = owner.clock.now_ns() - state.segment_created_ns
        return state.position + size > owner.config.segment_bytes or age > owner.config.segment_age * 1e9

    def _append(
        self, state: State, tickets: Sequence[Ticket], stretches: list[Stretch] | None, *, durable: bool
    ) -> State:
        """Append with one vectored write, at most one sync, and one publication."""
        owner = self._owner
        before = state
        epoch = 0 if self.role is None else self.role.epoch
        flush = Flush(state, seed=owner.seed, leader_epoch=epoch, index_interval=owner.config.index_interval)
        outcomes: list[tuple[Ticket, Appended]] = []
        for ticket in tickets:
            try:
                known = self._known(ticket)
                outcomes.append((ticket, known if known is not None else self._add(flush, ticket)))
            except HeadwaterError as error:
                ticket.error = error
        awaited = max((appended.end_offset for _, appended in outcomes if appended.duplicate), default=0)
        try:
            if flush.size:
                started = owner.clock.boot_ns()
                owner.disk.writev(owner.log_fd, flush.buffers, state.position, flush.size)
                write_ns = owner.clock.boot_ns() - started
                indexed = self._write_index(state, flush.index_entries())
                state = flush.published(owner.clock, max(indexed, 0), write_ns)
                if indexed < 0:
                    owner.uncounted.append(("failed_index_writes", state.last_append_ns))
            if durable or self._syncer.is_due() or awaited > state.durable_end:
                state = self._syncer.make_durable(state)
            if state is not before:
                failures = len(owner.uncounted)
                state = owner.page.write(owner.with_failures(state) if failures else state)
                owner.state = state
                owner.has_appended = True
                if failures:
                    owner.uncounted.clear()
        except BaseException as error:
            if not self._undo(before):
                _tell(outcomes)  # interrupted (Ctrl-C) when readers could see it already: it has happened
            elif isinstance(error, OSError) and not isinstance(error, HeadwaterError):
                owner.count_failure("failed_writes")
            raise
        self.producers.follow(before, state)
        _tell(outcomes)
        if stretches is not None:
            stretches += flush.stretches(state, owner.directory)
        return state

    def _start_writing(self, state: State) -> None:
        """Give the device what it can write by itself while more is being appended: the next sync waits for less."""
        owner = self._owner
        if self._started_in != owner.opened:
            self._started_in, self._started_position = owner.opened, 0
        started = max(self._started_position, state.durable_position)
        if state.position - started >= _WRITTEN_AT_ONCE:
            owner.disk.start_writing(owner.log_fd, started, state.position - started)
            self._started_position = state.position

    def _add(self, flush: Flush, ticket: Ticket) -> Appended:
        added = flush.add(ticket)
        first = ticket.frames[0]
        if first.identity is not None:
            self.producers.table().add(
                first.identity, first.record_count, added.base_offset, added.end_offset, self._owner.clock.now_ns()
            )
        return added

    def _known(self, ticket: Ticket) -> Appended | None:
        """The outcome of the original when the ticket is a retry."""
        identity = ticket.frames[0].identity
        if identity is None or ticket.copied:
            return None
        original = self.producers.table().check(identity, ticket.frames[0].record_count)
        return None if original is None else Appended(original.base_offset, original.end_offset, duplicate=True)

    def _write_index(self, state: State, entries: list[bytes]) -> int:
        """Append the new entries; how many, or -1 if that failed: later readers walk longer, which is no error."""
        owner = self._owner
        if not entries or owner.index_fd < 0:
            return 0
        try:
            position = INDEX_HEADER_BYTES + state.index_entries * ENTRY_BYTES
            owner.disk.write(owner.index_fd, b"".join(entries), position)
        except OSError:
            return -1
        return len(entries)

    def _undo(self, before: State) -> bool:
        """Take back what was written, unless it was published; whether it was not.

        Recovery deals with what cannot be taken back.
        """
        owner = self._owner
        self.producers.forget()
        if owner.poison is None:
            with suppress(OSError):
                state, _ = owner.page.read()
                if state is not None and state.sequence > before.sequence:
                    return False
                owner.disk.truncate(owner.log_fd, before.position)
        return True

    # Segments.

    def roll(self) -> bool:
        """Close the growing segment, if it holds anything, and begin the next one."""
        with self._owner.locked() as state:
            if state.position == SEGMENT_HEADER_BYTES:
                return False
            self.roll_locked(state)
            return True

    def roll_locked(self, state: State, base: int | None = None, producers: ProducerTable | None = None) -> State:
        """Everything in the old segment is durable before the new one can be found: recovery builds on that.

        So is its entry in the list of closed segments. If nothing lies behind the segment that the state calls the
        growing one, the entry is of a roll that did not come to its end. The new segment begins at the end, or further
        on at `base`, with who has written what up to there.
        """
        started = self._owner.clock.boot_ns()
        state, listed = self._owner.open_list(self._syncer.make_durable(state))
        try:
            return self._begin_next(state, listed, base, producers, started)
        except OSError:
            self._owner.count_failure("failed_rotations")
            raise
        finally:
            if listed is not None:
                listed.close(self._owner.disk)

    def _begin_next(
        self,
        state: State,
        listed: SegmentList | None,
        base: int | None,
        producers: ProducerTable | None,
        started: int,
    ) -> State:
        owner = self._owner
        state = owner.page.write(state._replace(flags=CHANGING))
        table = producers or self.producers.table()
        now = owner.clock.now_ns()
        table.expire(owner.elapsed.is_older(owner.config.producer_expiry))
        header = new_segment_header(state.partition, state.end if base is None else base, now)
        path = owner.directory / f"{header.base:020d}.log"
        if owner.index_fd >= 0:
            sealed = IndexHeader(state.segment, state.position, state.segment_max_timestamp, state.index_entries)
            owner.disk.write(owner.index_fd, sealed.pack(), 0)
        owner.disk.replace(path.with_suffix(".producers"), table.pack())
        owner.disk.replace(path.with_suffix(".index"), IndexHeader(header.log, 0, NEVER, 0).pack(), sync=False)
        closed = self._list_closed(listed, state, header.base, now)
        Segment.create(owner.disk, owner.directory, header)
        try:
            owner.disk.sync_directory(owner.directory)
        except OSError as error:
            owner.poison = str(error)
            owner.tell_poison(state)
            raise PartitionPoisoned(owner.directory, owner.poison) from error
        counters = count(state.counters, rotations=1, rotation_ns=owner.clock.boot_ns() - started)
        owner.state = state = owner.page.write(begin_segment(state, header)._replace(listed=closed, counters=counters))
        owner.open_segment(state)
        self.producers.begin(table)
        return state

    def _list_closed(self, listed: SegmentList | None, state: State, end: int, now_ns: int) -> int:
        """Add the growing segment, which is durable, to the list; how many entries that has then.

        One without offsets is not listed: the new segment takes its place.
        """
        owner = self._owner
        if end == state.segment_base:
            return state.listed
        header = SegmentHeader.unpack(os.pread(owner.log_fd, SEGMENT_HEADER_BYTES, 0))
        records = max(state.total_records - state.records_before, UNKNOWN)
        entry = listed_segment(header, end, state.position, records, state.segment_max_timestamp, now_ns)
        if listed is None:
            replace_list(owner.disk, owner.directory, state.partition, state.list_generation, [entry])
        else:
            newest = max(entry.max_timestamp, listed[state.listed - 1].newest if state.listed else NEVER)
            listed.write(owner.disk, state.listed, entry._replace(newest=newest))
        return state.listed + 1

    # The handle's life.

    def learn_producers(self, producers: ProducerTable) -> None:
        """Take over what another replica knows, which is all that is known here and more. It is durable with a roll."""
        with self._owner.locked() as state:
            self.roll_locked(state, producers=producers)

    def close(self) -> None:
        """Sync what is not yet durable, then the state, so that the next opening has nothing to walk.

        Where nothing was written there is nothing to sync, and nobody to wait for.
        """
        owner = self._owner
        with owner.mutex:
            if owner.closed:
                return
            try:
                with suppress(PartitionDeleted):  # then there is nothing left to sync
                    if owner.poison is None and owner.config.sync != "always" and not self._all_durable():
                        self._syncer.sync()
                    if owner.poison is None:
                        self._sync_page()
            finally:
                owner.close()
        fork.unwatch(owner)

    def _sync_page(self) -> None:
        with suppress(OSError):  # a state that is lost is made anew from the log
            self._owner.page.sync_writes()

    def _all_durable(self) -> bool:
        state, whole = self._owner.look()
        return state is not None and whole and not state.flags and state.durable_end == state.end


def _tell(outcomes: list[tuple[Ticket, Appended]]) -> None:
    for ticket, outcome in outcomes:
        ticket.result = outcome
