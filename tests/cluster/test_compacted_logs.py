"""Three replicas of a topic that is compacted, on real files: what is in any of them is true, and enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from headwater.cluster.durable_log import COMPACTED_FILE, EPOCHS_FILE, DurableLog, EpochStart, Span
from headwater.config import PartitionConfig
from headwater.log import Appended, DirectoryPartition, Identity, encode
from headwater.log.check import Check
from headwater.log.damage import read_damage
from headwater.log.report import Damage
from tests.disks import HastyDisk

UUID = bytes(range(16))
PRODUCER = b"p" * 16
KEYS = 9
CONFIG = PartitionConfig(segment_bytes=4096, index_interval=128)


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
        self.truth: dict[int, tuple[bytes, bytes]] = {}
        """The key and the value at each offset, as the leader has it."""
        self.batches: list[tuple[int, int, int]] = []
        """What the producer has appended there: a sequence number, the first offset, and how many."""
        self._all: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._sent: dict[tuple[int, int], tuple[int, int, int]] = {}
        """The same of everything that was ever appended, by epoch and offset."""
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
        """How far each follower is, as it has said in this epoch."""
        self._epoch_start = log.end
        self.truth = {offset: self._all[log.epoch_before(offset + 1), offset] for offset in range(log.end)}
        self.batches = [one for (epoch, base), one in self._sent.items() if log.epoch_before(base + 1) == epoch]
        for sequence, base, count in self.batches[-4:]:  # who sends again hears where it is
            retry = encode([b"?"] * count, keys=[b"?"] * count, identity=Identity(PRODUCER, 1, sequence))
            with log.leading():
                assert log.partition.append(retry) == Appended(base, base + count, duplicate=True)

    def append(self) -> None:
        random, log = self.random, self.logs[self.leader]
        count = random.choice([1, 2, 6])
        keys = [b"%d" % random.randrange(KEYS) for _ in range(count)]
        values = [random.randbytes(random.choice([4, 150])) for _ in range(count)]
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
            frames = leader.frames(Span(end, leader.end), self.random.choice([1, 600, 4000]))
            until = leader.compacted_until
            follower.copy(
                self.epoch,
                frames,
                epochs=[one for one in leader.epochs_before(frames[-1].header.next_offset) if one.start >= end],
                compacted_until=until,
                producers=leader.partition.producers_at(until) if end < until else b"",
            )
        follower.refresh()
        self._advance()

    def _advance(self) -> None:
        ends = {**dict.fromkeys(self.in_sync, 0), **self._progress, self.leader: self.logs[self.leader].end}
        self.high_watermark = max(self.high_watermark, min(ends[one] for one in self.in_sync))
        for number, end in ends.items():
            if end >= max(self.high_watermark, self._epoch_start):
                self.in_sync.add(number)
            self.logs[number].keep_watermark(min(self.high_watermark, end))

    def change(self) -> None:
        """Another one leads, or one is left behind, or damaged."""
        random = self.random
        number = random.choice([one for one in range(3) if one != self.leader])
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
            self.pull(random.choice([one for one in range(3) if one != self.leader]))
        elif roll < 0.93:
            self.logs[random.choice(list(self.in_sync))].compact()
        else:
            self.change()

    def check(self) -> None:
        """All that keep up have the same records and epochs, but for what none of them needs."""
        while self.in_sync != {0, 1, 2} or self.high_watermark < self.logs[self.leader].end:
            for number in {0, 1, 2} - {self.leader}:
                self.pull(number)
        newest = {key: offset for offset, (key, _) in sorted(self.truth.items())}
        leader = self.logs[self.leader]
        for log in self.logs:
            found = {one.offset: (one.key, one.value) for one in log.partition.records()}
            assert log.end == self.high_watermark == leader.end
            assert all(self.truth[offset] == record for offset, record in found.items())
            assert found.keys() >= set(newest.values())
            assert log.epochs_before(log.end) == leader.epochs_before(log.end)
            assert [one for one in Check(log.partition.path).run() if one.kind == "damage"] == []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("seed", range(10))
def test_replicas_that_compact_by_themselves_agree(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    replicas = Replicas(tmp_path, Random(seed), stack)
    for _ in range(250):
        replicas.step()
    replicas.check()
    assert any(log.compacted_until for log in replicas.logs)


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
    assert 0 < until <= log.end // 2 < next(one.end for one in log.partition.closed() if one.end > until)
    replicas.reopen(0)
    assert replicas.logs[0].compacted_until == until
    (tmp_path / "0" / COMPACTED_FILE).write_bytes(b"3\n00000000\n")
    replicas.reopen(0)
    assert replicas.logs[0].compacted_until == replicas.logs[0].end


def test_epochs_that_nobody_knows_any_more_are_damage(stack: ExitStack, tmp_path: Path) -> None:
    """Where an epoch begins in a gap, only the file says where: without it that replica is copied anew."""
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
