"""Three replicas of a topic that is compacted, on real files: what is in any of them is true, and enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from headwater.cluster.replication.durable_log import (
    COMPACTED_FILE,
    EPOCHS_FILE,
    MARKERS_FILE,
    DurableLog,
    EpochStart,
    OffsetSpan,
)
from headwater.core.config import PartitionConfig
from headwater.log import Appended, DirectoryPartition, Identity, encode
from headwater.log.maintain.check import Check
from headwater.log.recover.damage import read_damage
from headwater.log.recover.report import Damage
from tests.support.disks import HastyDisk

UUID = bytes(range(16))
PRODUCER = b"p" * 16
KEYS = 9
CONFIG = PartitionConfig(segment_bytes=4096, index_interval=128, delete_grace=0)
Record = tuple[bytes, bytes | None]


def copy(follower: DurableLog, leader: DurableLog, epoch: int, max_bytes: int) -> bool:
    """Copy some of what comes next; False if the follower has to begin anew, and has done so."""
    end, until = follower.end, leader.compacted_until
    frames = leader.frames(OffsetSpan(end, leader.end), max_bytes)
    fits = follower.fits_behind(leader.markers)
    if fits:
        follower.copy(
            epoch,
            frames,
            epochs=[entry for entry in leader.epochs_before(frames[-1].header.next_offset) if entry.start >= end],
            compacted_until=until,
            producers=leader.partition.producers_at(until) if end < until else b"",
            markers=leader.markers,
        )
    else:
        follower.begin_anew(epoch, leader.markers)
    follower.refresh()
    return fits


class Replicas:
    """Their protocol in its simplest form: who is in sync counts, and one of them leads."""

    def __init__(self, directory: Path, random: Random, stack: ExitStack) -> None:
        self.random = random
        self._directory = directory
        self._stack = stack
        self.logs = [self._open(number) for number in range(3)]
        self.in_sync = {0, 1, 2}
        self.epoch = 0
        self.high_watermark = 0
        self.truth: dict[int, Record] = {}
        """The key and the value at each offset, as the leader has it."""
        self.batches: list[tuple[int, int, int]] = []
        """The producer's batches in the leader's log: sequence number, first offset and number of records of each."""
        self._all: dict[tuple[int, int], Record] = {}
        self._sent: dict[tuple[int, int], tuple[int, int, int]] = {}
        """The same of everything that was ever appended, by epoch and offset."""
        self.begun_anew = 0
        self.forgotten = 0
        self.lead(0)

    def _open(self, number: int) -> DurableLog:
        path = self._directory / str(number)
        disk = HastyDisk()
        return DurableLog(self._stack.enter_context(DirectoryPartition(path, CONFIG, uuid=UUID, disk=disk)), disk)

    def reopen(self, number: int) -> None:
        self.logs[number].partition.close()
        self.logs[number] = self._open(number)
        if number == self.leader:
            self.lead(number)
        else:
            self.logs[number].follow(self.epoch)

    def lead(self, number: int) -> None:
        """Another epoch begins."""
        self.epoch += 1
        self.leader = number
        for other, log in enumerate(self.logs):
            log.refresh()
            if other != number:
                log.follow(self.epoch)
        log = self.logs[number]
        log.lead(self.epoch)
        self._progress: dict[int, int] = {}
        """The offset that each follower has reached, as it has said in this epoch."""
        self._epoch_start = log.end
        self.truth = {offset: self._all[log.epoch_before(offset + 1), offset] for offset in range(log.end)}
        self.batches = [batch for (epoch, base), batch in self._sent.items() if log.epoch_before(base + 1) == epoch]
        for sequence, base, count in self.batches[-4:]:  # who sends again hears where it is
            retry = encode([b"?"] * count, keys=[b"?"] * count, identity=Identity(PRODUCER, 1, sequence))
            with log.leading():
                assert log.partition.append(retry) == Appended(base, base + count, duplicate=True)

    def append(self) -> None:
        random, log = self.random, self.logs[self.leader]
        count = random.choice([1, 2, 6])
        # Some keys go out of use: their last records get old.
        keys = [b"%d" % (len(self.batches) // 12 + random.randrange(KEYS)) for _ in range(count)]
        values = [random.choice([None, random.randbytes(4), random.randbytes(150)]) for _ in range(count)]
        sequence = self.batches[-1][0] + self.batches[-1][2] if self.batches else 0
        with log.leading():
            appended = log.partition.append(encode(values, keys=keys, identity=Identity(PRODUCER, 1, sequence)))
        assert not appended.duplicate
        base = appended.base_offset
        self.batches.append((sequence, base, count))
        self._sent[self.epoch, base] = self.batches[-1]
        for offset, record in enumerate(zip(keys, values, strict=True), base):
            self.truth[offset] = self._all[self.epoch, offset] = record
        log.refresh()

    def pull(self, number: int) -> None:
        """A follower asks once."""
        follower, leader = self.logs[number], self.logs[self.leader]
        follower.refresh()
        end = follower.end
        if end > leader.end or leader.epoch_before(end) != follower.last_epoch:
            theirs = leader.end_of(follower.last_epoch)
            ours = follower.end_of(theirs.epoch)
            target = min(theirs.end, ours.end) if ours.epoch == theirs.epoch else ours.end
            assert target >= self.high_watermark or number not in self.in_sync
            follower.cut(self.epoch, target)
            follower.refresh()
            return
        self._progress[number] = end
        if end < leader.end:
            follower.forgettable = leader.markers.until
            if not copy(follower, leader, self.epoch, self.random.choice([1, 600, 4000])):
                assert number not in self.in_sync
                self._progress.pop(number)
                self.begun_anew += 1
                return
        self._advance()

    def _advance(self) -> None:
        ends = {**dict.fromkeys(self.in_sync, 0), **self._progress, self.leader: self.logs[self.leader].end}
        self.high_watermark = max(self.high_watermark, min(ends[broker] for broker in self.in_sync))
        for number, end in ends.items():
            if end >= max(self.high_watermark, self._epoch_start):
                self.in_sync.add(number)
            self.logs[number].keep_watermark(min(self.high_watermark, end))

    def change(self) -> None:
        """Another one leads, or one is left behind, or damaged."""
        random = self.random
        number = random.choice([broker for broker in range(3) if broker != self.leader])
        match random.choice(["lead", "leave", "damage", "reopen"]):
            case "lead" if number in self.in_sync:
                self.lead(number)
            case "leave" if len(self.in_sync) == 3:
                self.in_sync.remove(number)
            case "damage" if self.in_sync >= {0, 1, 2} - {number} and self.logs[number].end:
                self.in_sync.discard(number)
                self._progress.pop(number, None)
                log = self.logs[number]
                offset = random.randrange(log.partition.bounds().start, log.end)
                log.partition.note_damage(Damage(log.partition.path, 0, offset, log.end, "for a test"))
                log.cut_damage()
                log.refresh()
                assert log.end <= offset
                assert not read_damage(log.partition.path)
            case "reopen":
                self.reopen(random.randrange(3))
            case _:
                pass

    def step(self) -> None:
        random = self.random
        roll = random.random()
        if roll < 0.45:
            self.append()
        elif roll < 0.85:
            self.pull(random.choice([broker for broker in range(3) if broker != self.leader]))
        elif roll < 0.93:
            self.compact(random.choice(list(self.in_sync)))
        else:
            self.change()

    def compact(self, number: int) -> None:
        """Compact a replica's log.

        A leader gives leave to forget all acknowledged records or none, at random, whether or not all are in sync.
        That is a matter of work, not of truth.
        """
        log = self.logs[number]
        if number == self.leader:
            log.forgettable = self.random.choice([0, log.watermark])
        log.compact()

    def check(self) -> None:
        """All that keep up have the same records and epochs, but for what none of them needs."""
        while self.in_sync != {0, 1, 2} or self.high_watermark < self.logs[self.leader].end:
            for number in {0, 1, 2} - {self.leader}:
                self.pull(number)
        newest = {key: offset for offset, (key, _) in sorted(self.truth.items())}
        present = {key: offset for key, offset in newest.items() if self.truth[offset][1] is not None}
        leader = self.logs[self.leader]
        for log in self.logs:
            records = {record.offset: (record.key, record.value) for record in log.partition.records()}
            assert log.end == self.high_watermark == leader.end
            assert all(self.truth[offset] == record for offset, record in records.items())
            left = {key: offset for offset, (key, _) in sorted(records.items())}
            assert left.items() <= newest.items()  # what was deleted does not come back
            assert left.keys() >= present.keys()
            self.forgotten += len(newest) - len(left)
            assert log.epochs_before(log.end) == leader.epochs_before(log.end)
            assert [finding for finding in Check(log.partition.path).run() if finding.kind == "damage"] == []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_replicas_that_compact_by_themselves_agree(stack: ExitStack, tmp_path: Path) -> None:
    forgotten = begun_anew = 0
    for seed in range(10):
        replicas = Replicas(tmp_path / str(seed), Random(seed), stack)
        for _ in range(250):
            replicas.step()
        replicas.check()
        assert any(log.compacted_until for log in replicas.logs)
        forgotten, begun_anew = forgotten + replicas.forgotten, begun_anew + replicas.begun_anew
    assert forgotten > 20
    assert begun_anew > 10


# Delete markers.


@pytest.fixture
def logs(stack: ExitStack, tmp_path: Path) -> list[DurableLog]:
    """Three replicas, all with the same six records, each in a segment of its own: the fourth deletes the second."""
    logs = []
    for number in range(3):
        partition = stack.enter_context(DirectoryPartition(tmp_path / str(number), CONFIG, uuid=UUID))
        logs.append(DurableLog(partition))
    first, *others = logs
    first.lead(1)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"b", None), (b"d", b"1"), (b"e", b"1")):
        with first.leading():
            first.partition.append(encode([value], keys=[key]))
        first.partition.roll()
    first.refresh()
    first.keep_watermark(5)
    for log in others:
        log.follow(1)
        while log.end < first.end:
            copy(log, first, 1, 1)
            log.partition.roll()
        log.keep_watermark(5)
    return logs


def forget(log: DurableLog) -> None:
    log.forgettable = 5
    log.compact()
    assert newest(log) == {b"a": 0, b"c": 2, b"d": 4, b"e": 5}
    assert log.markers.until == 5


def newest(log: DurableLog) -> dict[bytes | None, int]:
    return {record.key: record.offset for record in log.partition.records()}


def cut(log: DurableLog, offset: int) -> None:
    """It was away since then."""
    log.keep_watermark(offset)
    log.cut(1, offset)
    log.refresh()


def test_what_was_deleted_while_a_replica_was_away_does_not_come_back_with_it(logs: list[DurableLog]) -> None:
    leader, away, _ = logs
    cut(away, 3)
    forget(leader)
    assert not copy(away, leader, 1, 1)
    assert away.end == 0
    while away.end < leader.end:
        assert copy(away, leader, 1, 1)
    assert newest(away) == newest(leader)
    assert away.markers.until == 5  # and whoever follows it hears of it


def test_who_is_as_far_as_markers_may_be_gone_goes_on(logs: list[DurableLog]) -> None:
    leader, behind, _ = logs
    cut(behind, 5)
    forget(leader)
    assert copy(behind, leader, 1, 1)
    assert newest(behind) == {b"a": 0, b"b": 3, b"c": 2, b"d": 4, b"e": 5}


@pytest.mark.parametrize("reason", ["start", "pass", "leader", "election"])
def test_a_copy_is_of_one_state_of_one_log(logs: list[DurableLog], reason: str) -> None:
    leader, copying, other = logs
    forget(leader)
    cut(copying, 3)
    assert not copy(copying, leader, 1, 1)
    assert copy(copying, leader, 1, 1)
    match reason:
        case "start":
            leader = DurableLog(leader.partition)
        case "pass":
            leader.partition.append(encode([b"2"], keys=[b"a"]))
            leader.partition.roll()
            leader.refresh()
            leader.keep_watermark(leader.end)
            leader.forgettable = leader.end
            leader.compact()
        case "leader":
            forget(other)
            leader = other
        case "election":  # who leads again: another one may have led in between
            leader.lead(2)
    assert not copy(copying, leader, 1, 1)
    assert copying.end == 0


def test_what_was_copied_from_another_log_meanwhile_does_not_count(logs: list[DurableLog]) -> None:
    leader, copying, other = logs
    forget(leader)
    cut(copying, 3)
    assert not copy(copying, leader, 1, 1)
    assert copy(copying, leader, 1, 1)
    assert copying.end == 1
    assert copy(copying, other, 1, 1)  # which has the marker, and what it deletes
    assert newest(copying) == {b"a": 0, b"b": 1}
    assert not copy(copying, leader, 1, 1)


def test_markers_that_are_gone_are_known_again(logs: list[DurableLog]) -> None:
    leader = logs[0]
    forget(leader)
    assert DurableLog(leader.partition).markers.until == 5
    (leader.partition.path / MARKERS_FILE).write_bytes(b"[3, 0]\n00000000\n")
    assert DurableLog(leader.partition).markers.until == leader.end


def test_nobody_is_given_what_markers_are_about_to_leave(logs: list[DurableLog]) -> None:
    leader, copying, _ = logs
    forget(leader)
    cut(copying, 3)
    with leader._forgetting(5):
        assert leader.markers.state == 0
        assert not copying.fits_behind(leader.markers)


def test_what_was_compacted_is_known_again(stack: ExitStack, tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, Random(1), stack)
    for _ in range(120):
        replicas.append()
        replicas.pull(1)
        replicas.pull(2)
    log = replicas.logs[0]
    log.keep_watermark(log.end // 2)
    assert log.compact() is not None
    assert log.compact() is None  # nothing is new
    until = log.compacted_until
    assert 0 < until <= log.end // 2 < next(segment.end for segment in log.partition.closed() if segment.end > until)
    replicas.reopen(0)
    assert replicas.logs[0].compacted_until == until
    (tmp_path / "0" / COMPACTED_FILE).write_bytes(b"3\n00000000\n")
    replicas.reopen(0)
    assert replicas.logs[0].compacted_until == replicas.logs[0].end


def test_epochs_that_nobody_knows_any_more_are_damage(stack: ExitStack, tmp_path: Path) -> None:
    """If an epoch begins in a gap, only the file says where: without the file the replica is copied anew."""
    partition = stack.enter_context(DirectoryPartition(tmp_path / "0", CONFIG, uuid=UUID))
    log = DurableLog(partition)
    for epoch in (1, 2, 3):
        log.lead(epoch)
        for key in (b"a", b"b", b"%d" % epoch):
            with log.leading():
                partition.append(encode([b"x" * 900], keys=[key]))
    partition.roll()
    log.refresh()
    log.keep_watermark(log.end)
    log.compact()
    assert log.epochs_before(9) == [EpochStart(1, 0), EpochStart(2, 3), EpochStart(3, 6)]
    assert DurableLog(partition).damaged_at() is None
    (tmp_path / "0" / EPOCHS_FILE).unlink()
    again = DurableLog(partition)
    assert again.damaged_at() == 0  # the first epoch's beginning is gone
    again.cut_damage()
    again.refresh()
    assert again.end == 0
