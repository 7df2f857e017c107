"""A replica is mended on real files, from two others: every frame that one of them has, and no other one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.etcd.keys import BrokerMember
from headwater.cluster.link import Link, Links
from headwater.cluster.replication.durable_log import DurableLog, EpochStart, OffsetSpan
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.repair import Repair, answer_replica, sources_of
from headwater.core.config import PartitionConfig
from headwater.core.errors import BrokerUnavailable, FrameDamaged
from headwater.log import DirectoryPartition, encode
from headwater.log.format.frame import HEADER_BYTES
from headwater.log.maintain.check import Check
from headwater.log.recover.damage import read_damage
from headwater.streams.catalog import partition_uuid
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from tests.cluster.damage import FramePlace, flip, frames_in, lose

KEY = (bytes(range(16)), 0)
CONFIG = PartitionConfig(segment_bytes=4096, index_interval=512, delete_grace=0)
FRAMES = 40
STATE = PartitionState((0, 1, 2), {0: 10, 1: 11, 2: 12}, 0, 10, 3)
MEMBERS = {number: BrokerMember(number, 10 + number, "127.0.0.1:1", b"") for number in range(3)}


class Threads:
    """Threads for the work of a disk."""

    def read(self, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(work, *args)

    write = read


class NextDoor(Link):
    """A link to a replica in the same process, or to one that is away."""

    def __init__(self, log: DurableLog | None) -> None:
        self._log = log

    async def call(self, method: str, request: Any, timeout: float, user: str | None = None) -> Any:  # noqa: ARG002
        assert method == "ReadReplica"
        if self._log is None:
            raise BrokerUnavailable("broker 2", method, timeout, "it is away")
        answer: pb.ReadReplicaResponse = await asyncio.to_thread(answer_replica, self._log, request)
        return pb.ReadReplicaResponse.FromString(answer.SerializeToString())


class NextDoors(Links):
    def __init__(self, logs: dict[int, DurableLog]) -> None:
        self._logs = logs

    def to(self, member: BrokerMember) -> Link:
        return NextDoor(self._logs.get(member.id))


class Replicas:
    """Three of one partition, all with the same records: two epochs, some frames of several records, some in groups."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.logs: dict[int, DurableLog] = {}
        for number in range(3):
            partition = DirectoryPartition(directory / str(number), CONFIG, uuid=partition_uuid(*KEY))
            self.logs[number] = DurableLog(stack.enter_context(partition))
        leader = self.logs[0]
        for number in range(FRAMES):
            if number in (0, FRAMES // 2):
                leader.lead(1 + (number > 0))
            with leader.leading():
                leader.partition.append(
                    [encode([b"%d.%d" % (number, record) * 40]) for record in range(1 + number % 3)]
                )
        leader.refresh()
        for number in (1, 2):
            log = self.logs[number]
            log.follow(2)
            log.copy(2, leader.frames(OffsetSpan(0, leader.end), 1 << 30))
            log.refresh()
        self.values = self.read(0)

    def read(self, number: int) -> list[bytes | None]:
        """The values of a replica."""
        return [record.value for record in self.logs[number].partition.records()]

    def frames(self, number: int) -> list[FramePlace]:
        """Return the places of a replica's frames."""
        return frames_in(self.logs[number].partition.path)

    def met(self, number: int) -> list[int]:
        """Read a replica to its end; the offsets that are damaged."""
        offsets: list[int] = []
        for _ in self.logs[number].partition.frames(
            on_damage=lambda damage: offsets.extend(range(damage.offset, damage.next_offset))
        ):
            pass
        return offsets

    def repair(
        self, number: int, *, without: tuple[int, ...] = (), below: int | None = None, state: PartitionState = STATE
    ) -> Repair:
        """Repair a replica, while some of the others are away."""
        log = self.logs[number]
        self.met(number)
        local = LocalReplica(KEY, TopicPartition("numbers", 0), log, number, 2, lambda _: None)
        local.become(10 + number)
        local.observe(state, 100)
        local.replica.high_watermark = log.end if below is None else below
        links = NextDoors({broker: log for broker, log in self.logs.items() if broker not in without})
        repair = Repair(local, state, sources_of(state, number, MEMBERS), links, Threads())
        asyncio.run(repair.run())
        return repair

    def check_whole(self, number: int) -> None:
        """Nothing of a replica is damaged any more, nor known to be."""
        log = self.logs[number]
        assert self.read(number) == self.values
        assert not self.met(number)
        assert not read_damage(log.partition.path)
        assert not log.partition.statistics().damaged
        assert [finding for finding in Check(log.partition.path).run() if finding.kind == "damage"] == []
        assert list(log.partition.path.glob("*.compacting")) == []


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(tmp_path, stack)


@pytest.mark.parametrize("seed", range(10))
def test_every_frame_that_one_of_the_others_has_is_put_in_its_place(replicas: Replicas, seed: int) -> None:
    random = Random(seed)
    frames = replicas.frames(0)
    hit = [set(random.sample(range(len(frames)), len(frames) // 3)) for _ in range(3)]
    for number in range(3):
        for index in hit[number] - (hit[0] & hit[1] & hit[2]):
            flip(replicas.frames(number)[index], 8 * HEADER_BYTES + random.randrange(64))
    for number in (0, 1, 2, 0, 1):
        replicas.repair(number)
    for number in range(3):
        replicas.check_whole(number)


def test_what_nobody_has_stays_named_and_the_rest_of_the_hole_is_repaired(replicas: Replicas) -> None:
    frames = {number: replicas.frames(number) for number in range(3)}
    for index in (3, 4, 5):
        flip(frames[0][index])
    for number in (1, 2):
        flip(frames[number][4])
    lost = list(range(frames[0][4].offset, frames[0][4].next_offset))
    repair = replicas.repair(0)
    assert repair.mended
    assert repair.left == [OffsetSpan(lost[0], lost[-1] + 1)]
    assert replicas.met(0) == lost
    with pytest.raises(FrameDamaged):
        replicas.read(0)
    check_rest(replicas, lost)


def test_a_hole_that_stays_does_not_spoil_its_neighbours(replicas: Replicas) -> None:
    """One hole of a segment is repaired, and the one behind it is not: from wherever one reads, the rest is there."""
    frames = {number: replicas.frames(number) for number in range(3)}
    file = frames[0][4].file
    first, _, second, *_ = [number for number, frame in enumerate(frames[0]) if frame.file == file]
    flip(frames[0][first])
    for number in range(3):
        flip(frames[number][second])
    lost = list(range(frames[0][second].offset, frames[0][second].next_offset))
    repair = replicas.repair(0)
    assert (repair.mended, repair.left) == (1, [OffsetSpan(lost[0], lost[-1] + 1)])
    check_rest(replicas, lost)


def check_rest(replicas: Replicas, lost: list[int]) -> None:
    """Check that each record that is not lost is read, from wherever a reader begins."""
    partition = replicas.logs[0].partition
    for start in range(len(replicas.values)):
        rest = [value for offset, value in enumerate(replicas.values) if offset not in lost and offset >= start]
        assert [record.value for record in partition.records(start, on_damage=lambda _: None)] == rest


def test_where_nobody_helps_not_a_byte_is_changed(replicas: Replicas) -> None:
    frame = replicas.frames(0)[4]
    flip(frame)
    before = frame.file.read_bytes()
    repair = replicas.repair(0, without=(1, 2))
    assert (repair.mended, repair.answered) == (0, set())
    assert frame.file.read_bytes() == before
    assert replicas.repair(0, without=(1,)).helped == {2}
    replicas.check_whole(0)


@pytest.mark.parametrize("how", ["cut", "beginning", "empty", "zeros"])
def test_a_closed_segment_that_has_lost_more_than_a_bit(replicas: Replicas, how: str) -> None:
    frames = replicas.frames(0)
    file = sorted({frame.file for frame in frames})[1]
    mine = [frame for frame in frames if frame.file == file]
    content = file.read_bytes()
    changed = {
        "cut": content[: mine[-1].position],
        "beginning": content[: mine[0].position] + content[mine[1].position :],
        "empty": content[: mine[0].position],
        "zeros": content[: mine[0].position] + bytes(len(content) - mine[0].position),
    }[how]
    other = file.with_name("other")
    other.write_bytes(changed)
    os.replace(other, file)  # as if it had been found so: nobody has mapped it
    replicas.logs[0].meet(OffsetSpan(mine[0].offset, mine[-1].next_offset))
    replicas.repair(0)
    replicas.check_whole(0)


def test_the_growing_segment_is_closed_and_goes_on(replicas: Replicas) -> None:
    flip(replicas.frames(0)[-2])
    assert not replicas.repair(0).left
    replicas.check_whole(0)
    log = replicas.logs[0]
    with log.leading():
        log.partition.append(encode([b"after"]))
    assert replicas.read(0) == [*replicas.values, b"after"]


def test_what_is_not_acknowledged_is_left_alone(replicas: Replicas) -> None:
    frame = replicas.frames(0)[-2]
    flip(frame)
    before = frame.file.read_bytes()
    repair = replicas.repair(0, below=frame.offset)
    assert repair.left
    assert frame.file.read_bytes() == before
    assert not replicas.repair(0).left
    replicas.check_whole(0)


def test_records_of_another_leader_are_not_taken(replicas: Replicas) -> None:
    """A replica that was cut off has others at the same offsets: they were never acknowledged."""
    stranger, leader = replicas.logs[2], replicas.logs[0]
    frame = replicas.frames(0)[-3]
    stranger.cut(2, frame.offset)
    stranger.lead(3)
    with stranger.leading():
        stranger.partition.append(encode([b"never"] * (leader.end - frame.offset)))
    stranger.refresh()
    assert stranger.end == leader.end
    flip(frame)
    assert replicas.repair(0, without=(1,)).left
    assert replicas.repair(0, without=(1,), state=STATE.without(2)).left
    assert not replicas.repair(0, without=(2,)).left
    replicas.check_whole(0)


def test_epochs_that_nobody_here_knows_are_learned(replicas: Replicas) -> None:
    """The first frame of an epoch is damaged, and the file is lost that says where it begins."""
    log = replicas.logs[1]
    known = log.epochs_before(log.end)
    frame = next(candidate for candidate in replicas.frames(1) if candidate.offset == known[1].start)
    flip(frame)
    (log.partition.path / "epochs").unlink()
    again = replicas.logs[1] = DurableLog(log.partition)
    again.follow(2)
    assert again.epochs_before(again.end) != known
    assert not replicas.repair(1).left
    assert again.epochs_before(again.end) == known == [EpochStart(1, 0), known[1]]
    replicas.check_whole(1)


# Compacted logs.


def keyed(directory: Path, stack: ExitStack, batches: list[tuple[list[bytes], list[bytes]]]) -> Replicas:
    """Three with the same frames, each of some keys and their values."""
    replicas = Replicas.__new__(Replicas)
    replicas.logs = {}
    for number in range(3):
        partition = DirectoryPartition(directory / str(number), CONFIG, uuid=partition_uuid(*KEY))
        replicas.logs[number] = DurableLog(stack.enter_context(partition))
    leader = replicas.logs[0]
    leader.lead(1)
    for keys, values in batches:
        with leader.leading():
            leader.partition.append(encode(values, keys=keys))
    leader.refresh()
    for number, log in replicas.logs.items():
        if number:
            log.follow(1)
            log.copy(1, leader.frames(OffsetSpan(0, leader.end), 1 << 30))
            log.refresh()
    return replicas


def compacted(directory: Path, stack: ExitStack, *, markers: bool) -> Replicas:
    """Three with keys, each compacted by itself, two of them further than the first."""
    batches = [
        ([b"%d" % (number % 7), b"once %d" % number], [b"%d" % number * 100, b"." * 100]) for number in range(FRAMES)
    ]
    replicas = keyed(directory, stack, batches)
    for number, log in replicas.logs.items():
        log.keep_watermark(log.end if number else log.end // 2)
        log.forgettable = log.watermark if markers else 0
        assert log.compact() is not None
    return replicas


def newest(log: DurableLog) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The newest record of each key."""
    return {record.key: (record.offset, record.value) for record in log.partition.records()}


def test_a_compacted_replica_is_repaired_by_one_that_was_compacted_further(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = compacted(tmp_path, stack, markers=False)
        expected = newest(replicas.logs[1])
        for frame in replicas.frames(0)[2:9]:
            flip(frame)
        assert replicas.met(0)
        assert not replicas.repair(0).left
        assert newest(replicas.logs[0]) == expected
        assert not replicas.met(0)
        assert [finding for finding in Check(replicas.logs[0].partition.path).run() if finding.kind == "damage"] == []


def test_where_delete_markers_are_gone_nothing_is_mixed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = compacted(tmp_path, stack, markers=True)
        flip(replicas.frames(0)[2])
        repair = replicas.repair(0)
        assert repair.left
        assert repair.anew
        assert asyncio.run(repair.whole_elsewhere())
        for number in (1, 2):
            flip(replicas.frames(number)[-3])
        assert not asyncio.run(repair.whole_elsewhere())  # what it would throw away may be the only copy


ONCE = 20
"""The record of a key that has no other one, among those that are compacted away."""


def superseded(directory: Path, stack: ExitStack, once: tuple[int, ...] = (ONCE,)) -> Replicas:
    """Three with one record a frame and few keys: the second and the third have compacted most of them away."""
    keys = [b"once %d" % number if number in once else b"%d" % (number % 7) for number in range(FRAMES)]
    replicas = keyed(directory, stack, [([key], [b"%d" % number * 50]) for number, key in enumerate(keys)])
    for number in (1, 2):
        replicas.logs[number].keep_watermark(replicas.logs[number].end)
        assert replicas.logs[number].compact() is not None
    return replicas


def check_gap(replicas: Replicas, number: int) -> None:
    """A replica has the newest record of each key, and everybody can read it from anywhere, also after a restart."""
    partition = replicas.logs[number].partition
    assert newest(replicas.logs[number]) == newest(replicas.logs[1])
    assert not replicas.met(number)
    assert not read_damage(partition.path)
    assert [finding for finding in Check(partition.path).run() if finding.kind == "damage"] == []
    offsets = [record.offset for record in partition.records()]
    with DirectoryPartition(partition.path, CONFIG, uuid=partition_uuid(*KEY)) as again:
        for start in range(replicas.logs[number].end):
            assert [record.offset for record in again.records(start)] == [
                offset for offset in offsets if offset >= start
            ]


@pytest.mark.parametrize("which", ["first", "middle", "neighbours", "last", "segment", "segments"])
def test_a_frame_that_the_others_have_compacted_away_is_repaired(tmp_path: Path, which: str) -> None:
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack)
        frames = replicas.frames(0)
        files = sorted({frame.file for frame in frames})
        second = [frame for frame in frames if frame.file == files[1]]
        hit = {
            "first": frames[:1],
            "middle": second[3:4],
            "neighbours": second[2:6],
            "last": second[-1:],
            "segment": [frame for frame in frames if frame.file == files[0]],
            "segments": [frame for frame in frames if frame.file in files[:2]],
        }[which]
        gone = {frame.offset for frame in hit} - {ONCE}
        assert gone.isdisjoint(record.offset for record in replicas.logs[1].partition.records())
        for frame in hit:
            flip(frame)
        repair = replicas.repair(0)
        assert not repair.left
        assert repair.helped == {1}
        check_gap(replicas, 0)
        assert gone.isdisjoint(record.offset for record in replicas.logs[0].partition.records())


def test_a_replica_that_took_a_gap_over_is_copied_and_repairs_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack)
        flip(replicas.frames(0)[4])
        assert not replicas.repair(0).left
        helper, follower = replicas.logs[0], replicas.logs[2]
        # The newer records may be a reason for the gap up to there.
        assert helper.compacted_until == replicas.logs[1].compacted_until
        follower.cut(1, 0)
        follower.refresh()
        follower.copy(1, helper.frames(OffsetSpan(0, helper.end), 1 << 30), compacted_until=helper.compacted_until)
        follower.refresh()
        assert newest(follower) == newest(helper)
        flip(replicas.frames(2)[3])
        assert not replicas.repair(2, without=(1,)).left
        check_gap(replicas, 2)


def test_a_gap_beside_what_nobody_has_stays_a_part_of_the_damage(tmp_path: Path) -> None:
    """No reader could tell one from the other, and no attempt changes a byte, however many there are."""
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack)
        hit = replicas.frames(0)[ONCE - 2 : ONCE + 2]
        elsewhere = [next(frame for frame in replicas.frames(number) if frame.offset == ONCE) for number in (1, 2)]
        for frame in (*hit, *elsewhere):
            flip(frame)
        before = hit[0].file.read_bytes()
        for _ in range(2):
            repair = replicas.repair(0)
            assert (repair.mended, repair.left) == (0, [OffsetSpan(ONCE - 2, ONCE + 2)])
            assert hit[0].file.read_bytes() == before
        flip(elsewhere[0])  # as it was
        assert not replicas.repair(0).left
        check_gap(replicas, 0)


@pytest.mark.parametrize(
    ("once", "hit", "left"),
    [
        ((), (4,), [OffsetSpan(4, 5)]),
        ((ONCE,), (ONCE - 1, ONCE), [OffsetSpan(ONCE - 1, ONCE)]),
        ((ONCE - 2, ONCE), (ONCE - 2, ONCE - 1, ONCE), [OffsetSpan(ONCE - 2, ONCE + 1)]),
    ],
    ids=["of frames", "before a frame", "in a frame"],
)
def test_a_gap_is_not_believed_before_its_reasons_are_acknowledged_here(
    tmp_path: Path, once: tuple[int, ...], hit: tuple[int, ...], left: list[OffsetSpan]
) -> None:
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack, once)
        frames = replicas.frames(0)
        for offset in hit:
            flip(frames[offset])
        until = replicas.logs[1].compacted_until
        assert replicas.repair(0, below=until - 1).left == left
        assert not replicas.repair(0, below=until).left
        check_gap(replicas, 0)


def test_a_gap_in_the_log_of_another_leader_is_not_believed(tmp_path: Path) -> None:
    """It was made for newer records that an operator has given up since."""
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack)
        log, stranger = replicas.logs[0], replicas.logs[2]
        frame = replicas.frames(0)[4]
        kept = stranger.compacted_until // 2
        log.follow(1)
        log.cut(1, kept)
        log.lead(2)
        while log.end < stranger.end:
            with log.leading():
                log.partition.append(encode([b"another"], keys=[b"other %d" % log.end]))
            log.refresh()
        flip(frame)
        assert replicas.repair(0, without=(1,)).left == [OffsetSpan(frame.offset, frame.next_offset)]
        with pytest.raises(FrameDamaged):
            replicas.read(0)


@pytest.mark.parametrize("why", ["deleted", "missing", "emptied", "raw"])
def test_what_is_missing_for_another_reason_is_no_gap(tmp_path: Path, why: str) -> None:
    with ExitStack() as stack:
        replicas = superseded(tmp_path, stack)
        frame, helper = replicas.frames(0)[4], replicas.logs[2]
        flip(frame)
        first = helper.partition.closed()[0]
        match why:
            case "deleted":
                helper.partition.delete_before(first.end)
            case "raw":  # nothing says that it was compacted
                helper.compacted_until = 0
            case _:
                lose(first.segment.path, why)
        assert replicas.repair(0, without=(1,)).left == [OffsetSpan(frame.offset, frame.next_offset)]
        assert not replicas.repair(0).left
        check_gap(replicas, 0)
