"""The content that a partition may have after a fault, computed from notes before it.

Mostly that is one log. Where an action was cut short, it was done or it was not; where the power went, what was
published and not durable may be gone from some append on. So there are several logs that may be left, and what is read
back must be one of them, to the last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from headwater.core.errors import WriteFailed
from headwater.core.record import Record
from headwater.log import Appended, Bounds
from tests.faults.violation import Kind, Violation
from tests.faults.workload import Action, Began, Ended, Event, Sent
from tests.faults.workload import Kind as Do


class Batch(NamedTuple):
    """An append that is recognised when it is sent again, and where it is."""

    action: Action
    base: int
    end: int


@dataclass(slots=True)
class Log:
    """One log that may be there."""

    starts: range = range(1)
    """The offsets at which it may start."""
    end: int = 0
    durable: int = 0
    records: dict[int, Sent] = field(default_factory=dict)
    removable: set[int] = field(default_factory=set)
    """Offsets that compaction may have removed: the key has a newer record, or was deleted by this one."""
    ends: list[int] = field(default_factory=lambda: [0])
    """The ends of appends, at which the log may end if its tail is lost."""
    batches: list[Batch] = field(default_factory=list)

    def copy(self) -> Self:
        """The same log, to be changed by itself."""
        return replace(
            self,
            records=dict(self.records),
            removable=set(self.removable),
            ends=list(self.ends),
            batches=list(self.batches),
        )

    def place(self, action: Action) -> Self:
        """Append; returns the log itself."""
        base = self.end
        for offset, record in enumerate(action.records, base):
            self.records[offset] = record
        self.end = base + len(action.records)
        self.ends.append(self.end)
        if action.identity is not None:
            self.batches.append(Batch(action, base, self.end))
        return self

    def cut(self, offset: int) -> Self:
        """Remove everything from `offset` on, durably; returns the log itself."""
        self.end = self.durable = offset
        self.ends = [*(end for end in self.ends if end < offset), offset]
        self.records = {at: record for at, record in self.records.items() if at < offset}
        self.removable = {at for at in self.removable if at < offset}
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        return self

    def after(self, began: Began) -> Self | None:
        """The log when this action has been done; None when it changes nothing that could be seen."""
        action, start = began.action, self.starts.start
        match action.kind:
            case Do.APPEND:
                return self.copy().place(action)
            case Do.TRUNCATE if action.offset <= self.end:
                return self.copy().cut(action.offset)
            case Do.DELETE_BEFORE if action.offset > start:
                return replace(self.copy(), starts=range(action.offset, action.offset + 1))
            case Do.RETAIN if began.growing > start:
                return replace(self.copy(), starts=range(start, began.growing + 1))
        return None

    def compacted(self, growing: int) -> None:
        """Records in closed segments may go when their keys have newer ones there, and delete markers after those."""
        newest = {record.key: at for at, record in self.records.items() if at < growing}
        newest[None] = 0  # records without a key are nobody's successors
        self.removable |= {
            at
            for at, record in self.records.items()
            if at < newest.get(record.key, 0) or (at < growing and record.value is None)
        }

    def compare(self, bounds: Bounds, read: list[Record]) -> Iterator[Violation]:
        """Everything that was read, in its order, against everything that must be there."""
        if bounds.end != self.end:
            kind = Kind.LOST_WRITE if bounds.end < self.end else Kind.UNSEEN
            yield Violation(kind, f"the log ends at {bounds.end}, not at {self.end}")
        if bounds.start not in self.starts or bounds.start > bounds.end:
            yield Violation(Kind.LOST_WRITE, f"the log starts at {bounds.start}, not in {self.starts}")
        yield from self._compare_records(read)
        there = {record.offset for record in read}
        yield from self._compare_deleted(bounds, read, there)
        for offset in range(bounds.start, self.end):
            if offset not in there and offset not in self.removable:
                yield Violation(Kind.LOST_WRITE, f"offset {offset} is not there: {self.records[offset].value!r:.40}")

    def _compare_deleted(self, bounds: Bounds, read: list[Record], there: set[int]) -> Iterator[Violation]:
        """A delete marker goes only after everything that it deletes has gone for good."""
        gone = {
            record.key: at
            for at, record in self.records.items()
            if record.value is None and at >= bounds.start and at not in there
        }
        for record in read:
            if record.offset < gone.get(record.key, 0):
                detail = f"offset {record.offset} is there, the marker at {gone[record.key]} that deleted it is not"
                yield Violation(Kind.CAME_BACK, detail)

    def _compare_records(self, read: list[Record]) -> Iterator[Violation]:
        sent = {record.value for record in self.records.values()}
        before = -1
        for record in read:
            if record.offset <= before:
                yield Violation(Kind.DUPLICATE, f"offset {record.offset} was read after {before}")
            before = record.offset
            value = value_of(record)
            expected = self.records.get(record.offset)
            if expected is None:
                yield Violation(Kind.UNSEEN, f"offset {record.offset} was acknowledged to nobody: {value!r:.40}")
            elif Sent(value, record.key) != expected:
                kind = Kind.REORDERED if value in sent else Kind.SERVED_DAMAGE
                yield Violation(kind, f"offset {record.offset} is {value!r:.40}, not {expected.value!r:.40}")


def value_of(record: Record) -> bytes | None:
    """Return what was sent as the record's value."""
    value: bytes | None = record.value["id"] if isinstance(record.value, dict) else record.value
    return value


@dataclass(slots=True)
class Expected:
    """The logs that may be there, and the action that is under way, if one is."""

    logs: list[Log] = field(default_factory=lambda: [Log()])
    under_way: Began | None = None
    undone: list[Action] = field(default_factory=list)
    """Appends that failed and were taken back, which only the next sync makes sure of."""
    violations: list[Violation] = field(default_factory=list)
    """Problems that were there before the fault."""

    @classmethod
    def after(cls, events: Iterable[Event]) -> Expected:
        """Return the content that may be there after these events."""
        expected = cls()
        for event in events:
            expected.apply(event)
        return expected

    def apply(self, event: Event) -> None:
        """Learn what happened."""
        if isinstance(event, Began):
            if self.under_way is not None:  # whoever did it has died, and someone else goes on
                self.logs += _done(self.logs, self.under_way)
            self.under_way = event
            if event.action.kind is Do.COMPACT:
                for log in self.logs:
                    log.compacted(event.growing)
            return
        began, self.under_way = self.under_way, None
        assert began is not None, "nothing ends that has not begun"
        if isinstance(event, Ended):
            self._ended(began, event.bounds, event.appended)
        elif event.action.kind is Do.APPEND and isinstance(event.error, WriteFailed):
            self.undone.append(event.action)  # it promises that nothing was written
        else:
            self.logs += _done(self.logs, began)

    def _ended(self, began: Began, bounds: Bounds | None, appended: Appended | None) -> None:
        if bounds is None:
            for log in self.logs:
                log.durable = log.end
            return
        if began.action.kind is Do.RETAIN:
            self.logs += _done(self.logs, began)
        elif began.action.kind in (Do.APPEND, Do.TRUNCATE, Do.DELETE_BEFORE):
            self.logs = [log.after(began) or log for log in self.logs]
        if len(self.logs) > 1 and began.action.kind in (Do.RETAIN, Do.COMPACT):
            if not any(_fits(log, bounds) for log in self.logs):
                self.violations.append(_misfit(began, bounds, self.logs))
            return  # with nothing to do they only read, and what is open stays open
        fitting = [log for log in self.logs if _fits(log, bounds)]
        if not fitting or (appended is not None and (appended.duplicate or appended.end_offset != bounds.end)):
            self.violations.append(_misfit(began, bounds, self.logs))
        self.logs = fitting or self.logs
        self.undone = [] if appended is not None else self.undone
        for log in self.logs:
            log.starts = range(bounds.start, bounds.start + 1)
            log.durable = bounds.durable_end

    def possible(self, power_loss: bool) -> list[Log]:
        """The logs that may be left when the process, or the power, is gone."""
        done = _done(self.logs, self.under_way) if self.under_way else []
        logs = self.logs + done
        if power_loss:
            # Records that were taken back may return behind a cut at the front, which does not touch the end.
            front = self.under_way is not None and self.under_way.action.kind in (Do.DELETE_BEFORE, Do.RETAIN)
            logs += [log.copy().place(action) for log in self.logs + done * front for action in self.undone]
            logs += [log.copy().cut(end) for log in logs for end in log.ends if log.durable <= end < log.end]
        return logs


def _done(logs: list[Log], began: Began) -> list[Log]:
    return [after for log in logs if (after := log.after(began)) is not None]


def _fits(log: Log, bounds: Bounds) -> bool:
    return log.end == bounds.end and bounds.start in log.starts


def _misfit(began: Began, bounds: Bounds, logs: list[Log]) -> Violation:
    ends = [(log.starts, log.end) for log in logs]
    kind = Kind.LOST_WRITE if bounds.end < logs[-1].end else Kind.UNSEEN
    return Violation(kind, f"after {began.action.kind.value} the log is {bounds}, which is none of {ends}")
