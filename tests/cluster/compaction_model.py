"""The cluster's model with a topic that is compacted: each replica removes records by itself, and others catch up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headwater.cluster.replication.replica import FollowerRequest
from tests.cluster.log import KEPT, Entry, LogStart, SimulatedLog
from tests.cluster.model import Answer, Broker, Client, Cluster, Record, Truth, Violation

REMOVED = Entry(-1, -1, -1)
"""Stands where compaction has removed a record."""
KEYS = 4


def key_of(record: Record) -> int:
    """Return the key of a record. All producers write the same keys."""
    return record[1] % KEYS


class Placed(NamedTuple):
    """A record that is copied, and where it belongs."""

    offset: int
    entry: Entry


class Told(NamedTuple):
    """The facts that a leader tells of the records that it has removed."""

    compacted_until: int
    epochs: tuple[tuple[int, int], ...]
    """The epochs that begin behind the follower's end."""
    producers: tuple[tuple[int, int, int], ...]


class CompactedLog(SimulatedLog):
    """A log that keeps the newest record of each key. Of what it has compacted it forgets who wrote it, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted_until = 0
        self.producers: tuple[tuple[int, int, int], ...] = ()
        """The last records of each producer before `compacted_until`."""
        self._noted: list[tuple[int, int]] = []
        self._told = Told(0, (), ())

    # Epochs, which are kept beside the records.

    def epochs(self) -> list[tuple[int, int]]:
        return [epoch for epoch in self._noted if epoch[1] < self.end]

    def epoch_before(self, offset: int) -> int:
        return max((epoch for epoch, start in self._noted if start < offset <= self.end), default=0)

    def note(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Epochs begin here."""
        self._noted = self.epochs()
        for epoch, start in sorted(epochs):
            if not self._noted or epoch > self._noted[-1][0]:
                self._noted.append((epoch, start))

    def had_the_same(self, epochs: Sequence[tuple[int, int]], until: int) -> bool:
        """Return whether a log with these epochs had the same records before an offset."""
        return [epoch for epoch in epochs if epoch[1] < until] == [epoch for epoch in self.epochs() if epoch[1] < until]

    # Copying.

    def read(self, start: int) -> Sequence[Placed]:  # type: ignore[override]
        entries: list[Placed] = []
        for offset in range(max(start, self.start), self.end):
            entry = self.verified(offset)
            if entry != REMOVED:
                entries.append(Placed(offset, entry))
            if len(entries) == 4:
                break
        return tuple(entries)

    def told(self, start: int) -> Told:
        """Return the facts to tell a follower whose log ends at `start`."""
        epochs = tuple(epoch for epoch in self.epochs() if epoch[1] >= start)
        return Told(self.compacted_until, epochs, self.producers)

    def expect(self, told: Told) -> None:
        """Expect the next records from a leader that has told this."""
        self._told = told

    def add(self, batches: Sequence[Entry | Placed]) -> None:
        for batch in batches:
            if isinstance(batch, Placed):
                self._copy(batch)
            else:
                self.note([(batch.epoch, self.end)])
                self.entries.append(batch)

    def _copy(self, placed: Placed) -> None:
        until = self._told.compacted_until
        if not self.end <= placed.offset or (placed.offset > self.end and placed.offset > until):
            raise Violation(f"lost: {placed} comes behind {self.end}, and was compacted up to {until}")
        if self.end < until:
            self.compacted_until = max(self.compacted_until, until)
            self.producers = self._told.producers
        self.note(
            [*(epoch for epoch in self._told.epochs if epoch[1] <= placed.offset), (placed.entry.epoch, placed.offset)]
        )
        self.entries += [REMOVED] * (placed.offset - self.end)
        self.entries.append(placed.entry)

    def restart(self, begins: LogStart) -> None:
        super().restart(begins)
        self._noted = list(begins.epochs)
        self.producers = ()
        self.compacted_until = 0

    # Compacting.

    def compact(self, until: int, forgotten: int) -> None:
        """Remove what has a newer one of its key before `until`; of one key nothing is known."""
        records = [(offset, entry) for offset, entry in enumerate(self.entries, self.start) if offset < until]
        newest = {key_of(entry[1:]): offset for offset, entry in records if entry != REMOVED}
        newest.pop(forgotten, None)
        self.producers = self._known(until)
        self.compacted_until = max(self.compacted_until, until)
        for offset, entry in records:
            if entry != REMOVED and newest.get(key_of(entry[1:]), offset) != offset and offset not in self.damaged:
                self.entries[offset - self.start] = REMOVED

    def note_compacted(self, until: int) -> None:
        """Gaps of another log come in, whose reasons are before an offset."""
        if until > self.compacted_until:
            self.producers = self._known(until)
            self.compacted_until = until

    # Producers.

    def _known(self, end: int) -> tuple[tuple[int, int, int], ...]:
        """The last records of each producer before `end`, and what is known of those beyond."""
        first = max(self.compacted_until, self.start)
        records = [
            *self.begins.producers,
            *(record for record in self.producers if record not in self.begins.producers),
        ]
        records += [
            (entry.producer, entry.sequence, offset)
            for offset, entry in enumerate(self.entries, self.start)
            if first <= offset < end
        ]
        names = {name for name, _, _ in records}
        return tuple(
            record for name in sorted(names) for record in [record for record in records if record[0] == name][-KEPT:]
        )

    def begin_at(self, offset: int) -> LogStart:
        return LogStart(offset, tuple(epoch for epoch in self.epochs() if epoch[1] < offset), self._known(offset))

    def find(self, producer: int, sequence: int) -> int | None:
        offsets = [offset for name, number, offset in self._all() if (name, number) == (producer, sequence)]
        return offsets[0] if offsets else None

    def last_sequence(self, producer: int) -> int:
        return max((number for name, number, _ in self._all() if name == producer), default=-1)

    def _all(self) -> list[tuple[int, int, int]]:
        first = max(self.compacted_until, self.start)
        behind = [
            (entry.producer, entry.sequence, offset)
            for offset, entry in enumerate(self.entries, self.start)
            if offset >= first
        ]
        return [*self.begins.producers, *self.producers, *behind]


class CompactingTruth(Truth):
    """The records that clients have been told of, in a topic that keeps the newest record of each key."""

    def tell(self, offset: int, record: Record, who: str, *, acknowledged: bool = False) -> None:
        if record != REMOVED[1:]:
            super().tell(offset, record, who, acknowledged=acknowledged)

    def has(self, log: SimulatedLog, offset: int, record: Record) -> bool:
        """Return whether a log has the record, or a newer one of its key."""
        later = (entry for entry in log.entries[offset - log.start :] if entry != REMOVED)
        return log.at(offset)[1:] == record or (
            log.at(offset) == REMOVED and any(key_of(entry[1:]) == key_of(record) for entry in later)
        )


@dataclass(frozen=True)
class GapAnswer:
    """A leader's answer to a follower, and the facts about the records that the leader has removed."""

    answer: Answer
    told: Told


class CompactingBroker(Broker):
    """A broker that compacts what it has."""

    log_kind = CompactedLog
    log: CompactedLog

    def _registered(self, incarnation: int) -> None:
        before = self.incarnation
        super()._registered(incarnation)
        if not before and self.incarnation:
            self.every(0.4, self._compact)

    def _compact(self) -> None:
        """Now and then, up to some segment's end."""
        replica, random = self.replica, self.world.random
        most = self.compactable()
        if replica is None or not (replica.leads or replica.in_sync) or most <= self.log.start:
            return
        self.log.compact(random.choice([most, random.randint(self.log.start, most)]), random.randrange(2 * KEYS))

    def compactable(self) -> int:
        """Before which offset records may be removed."""
        return min(self.checkpoint, self.log.end)

    def serve(self, request: FollowerRequest) -> GapAnswer | None:  # type: ignore[override]
        answer = super().serve(request)
        return None if answer is None else GapAnswer(answer, self.tell(request.end))

    def tell(self, start: int) -> Told:
        """Return the facts to tell a follower beside the records."""
        return self.log.told(start)

    def _take(self, answer: GapAnswer | None) -> None:  # type: ignore[override]
        if answer is not None:
            self.log.expect(answer.told)
        super()._take(None if answer is None else answer.answer)

    def give(self, offset: int) -> Entry | Told | None:  # type: ignore[override]
        entry = super().give(offset)
        return self.log.told(0) if entry == REMOVED else entry

    def _repaired(self, offset: int, given: Entry | Told | None) -> None:
        if not isinstance(given, Told):
            super()._repaired(offset, given)
        elif offset in self.log.known_damage and self.believes(offset, given):
            self.world.note(f"{self.name} has a gap at {offset} by now")
            self.note_compacted(given)
            self.log.repair(offset, REMOVED)

    def believes(self, offset: int, told: Told) -> bool:
        """Return whether a gap of another replica is one here as well.

        All reasons for the gap must be acknowledged, and the same here.
        """
        assert self.replica is not None
        until = told.compacted_until
        return offset < until <= self.replica.high_watermark and self.log.had_the_same(told.epochs, until)

    def note_compacted(self, told: Told) -> None:
        """Tell others of the gap, from now on."""
        self.log.note_compacted(told.compacted_until)


class ForgetfulClient(Client):
    """A producer that sends as many again as a log knows of: also what is compacted by then."""

    def forgets(self) -> int:
        return self.world.random.randint(1, KEPT - 1)


class CompactingCluster(Cluster):
    """A cluster with a topic that is compacted."""

    truth_kind = CompactingTruth
    client_kind = ForgetfulClient

    def _alike(self, log: SimulatedLog, other: SimulatedLog) -> bool:
        """Return whether two logs differ only in what compaction has removed, and agree on their epochs."""
        if (log.start, log.end, log.epochs()) != (other.start, other.end, other.epochs()):
            return False
        pairs = zip(log.entries, other.entries, strict=True)
        return all(ours == theirs or REMOVED in (ours, theirs) for ours, theirs in pairs)
