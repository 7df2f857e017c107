"""Idempotence: a retry is answered with the place of the original, and nothing is ever stored twice."""

from __future__ import annotations

import pytest

from headwater import InvalidRecord, OutOfOrderSequence, PartitionConfig, ProducerFenced
from headwater.log import Appended, Frame, Identity, Partition, encode
from headwater.log.format.encode import signed
from headwater.log.format.frame import UNSIGNED
from headwater.testing import ManualClock
from tests.support.backends import OpenDirectory, OpenPartition

PRODUCER = b"a producer's id."
WRITER = b"a writer's id..."


def batch(sequence: int, count: int = 1, *, epoch: int = 0, producer: bytes = PRODUCER) -> Frame:
    """Records numbered from `sequence` on."""
    values = [b"%d" % number for number in range(sequence, sequence + count)]
    return encode(values, identity=Identity(producer, epoch, sequence))


def group(sequence: int) -> list[Frame]:
    """Two frames of the writer's atomic group with this number."""
    identity = Identity(WRITER, 0, sequence, forever=True)
    return [encode([b"%d" % sequence], keys=[b"k"], identity=identity), encode([b"and"], identity=identity)]


def values(partition: Partition) -> list[bytes]:
    return [record.value for record in partition.records()]


def test_a_retry_is_answered_with_the_place_of_the_original(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.append(batch(0, 3)) == Appended(0, 3)
    partition.append(encode([b"other"]))
    assert partition.append(batch(3, 2)) == Appended(4, 6)
    assert partition.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
    assert partition.append(batch(3, 2)) == Appended(4, 6, duplicate=True)
    assert values(partition) == [b"0", b"1", b"2", b"other", b"3", b"4"]


def test_a_frame_whose_producer_is_not_known_yet_is_signed_before_it_is_appended(open_partition: OpenPartition) -> None:
    partition = open_partition()
    unsigned = encode([b"0", b"1"], timestamps=7, identity=UNSIGNED)
    with pytest.raises(InvalidRecord, match="signed"):
        partition.append(unsigned)
    assert partition.append(encode([b"first"])) == Appended(0, 1)
    identity = Identity(b"p" * 16, 0, 0)
    assert signed(unsigned, identity) == encode([b"0", b"1"], timestamps=7, identity=identity)
    assert partition.append(signed(unsigned, identity)) == Appended(1, 3)
    assert values(partition) == [b"first", b"0", b"1"]


def test_a_batch_that_leaves_one_out_is_refused(open_partition: OpenPartition) -> None:
    partition = open_partition()
    with pytest.raises(OutOfOrderSequence) as caught:
        partition.append(batch(1))
    assert (caught.value.sequence, caught.value.expected) == (1, 0)
    partition.append(batch(0, 2))
    with pytest.raises(OutOfOrderSequence, match="sequence 3 refused: sequence 2 comes next"):
        partition.append(batch(3))
    assert partition.bounds().end == 2


def test_a_batch_that_overlaps_another_is_refused(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(batch(0, 4))
    for sequence, count in ((0, 3), (1, 3), (3, 2), (0, 5)):
        with pytest.raises(OutOfOrderSequence):
            partition.append(batch(sequence, count))


def test_the_last_five_batches_are_known_and_the_sixth_is_refused(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for sequence in range(6):
        partition.append(batch(sequence))
    for sequence in range(1, 6):
        assert partition.append(batch(sequence)) == Appended(sequence, sequence + 1, duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        partition.append(batch(0))
    assert partition.bounds().end == 6


def test_a_newer_incarnation_fences_the_older(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(batch(0, 2, epoch=1))
    assert partition.append(batch(0, epoch=2)) == Appended(2, 3)
    for sequence in (0, 2):
        with pytest.raises(ProducerFenced) as caught:
            partition.append(batch(sequence, 2, epoch=1))
        assert (caught.value.epoch, caught.value.current) == (1, 2)
    assert partition.append(batch(1, epoch=2)) == Appended(3, 4)


def test_a_new_incarnation_begins_at_zero(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(batch(0, 2))
    with pytest.raises(OutOfOrderSequence):
        partition.append(batch(2, epoch=1))


def test_producers_are_independent(open_partition: OpenPartition) -> None:
    partition = open_partition()
    other = bytes(reversed(PRODUCER))
    assert partition.append(batch(0)) == Appended(0, 1)
    assert partition.append(batch(0, producer=other)) == Appended(1, 2)
    assert partition.append(batch(0)) == Appended(0, 1, duplicate=True)


def test_an_atomic_group_is_stored_once_for_ever(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.writer_sequence(WRITER) == -1
    assert partition.append(group(7)) == Appended(0, 2)
    assert partition.append(group(9)) == Appended(2, 4)
    assert partition.writer_sequence(WRITER) == 9
    for sequence in (7, 9, 0):
        assert partition.append(group(sequence)) == Appended(-1, -1, duplicate=True)
    assert values(partition) == [b"7", b"and", b"9", b"and"]


def test_a_writer_is_remembered_however_long_ago_it_wrote(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(producer_expiry=60), clock=clock)
    partition.append(group(1))
    for _ in range(3):
        clock.advance(1_000_000)
        partition.append(encode([b"x"]))
        partition.roll()
    partition.delete_before(partition.bounds().end)
    assert partition.append(group(1)).duplicate


def test_a_silent_producer_is_forgotten(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(producer_expiry=60), clock=clock)
    partition.append(batch(0, 2))
    clock.advance(59)
    partition.append(encode([b"x"]))
    partition.roll()
    assert partition.append(batch(0, 2)).duplicate
    clock.advance(120)
    partition.append(encode([b"x"]))
    partition.roll()
    assert partition.append(batch(0)) == Appended(4, 5)


def test_retries_are_known_after_a_roll(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(batch(0, 3))
    partition.append(group(1))
    partition.roll()
    assert partition.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
    assert partition.append(group(1)).duplicate
    partition.append(encode([b"x"]))
    partition.roll()
    partition.delete_before(5)
    assert partition.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
    assert partition.append(group(1)).duplicate
    assert partition.append(batch(3)) == Appended(6, 7)


def test_truncation_forgets_what_it_removes(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(batch(0, 2))
    partition.append(group(1))
    partition.append(batch(2, 2))
    partition.append(group(2))
    partition.truncate(4)
    assert partition.append(batch(0, 2)) == Appended(0, 2, duplicate=True)
    assert partition.append(group(1)).duplicate
    assert partition.writer_sequence(WRITER) == 1
    assert partition.append(batch(2, 2)) == Appended(4, 6)
    assert partition.append(group(2)) == Appended(6, 8)


def test_compaction_forgets_no_one(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(group(1))
    partition.append(batch(0, 2))
    partition.append(encode([b"newer"], keys=[b"k"]))
    partition.roll()
    assert partition.compact().removed_records == 1
    partition.append(encode([b"x"]))
    partition.truncate(5)
    assert partition.append(group(1)).duplicate
    assert partition.append(batch(0, 2)) == Appended(2, 4, duplicate=True)


def test_no_retry_is_answered_with_a_place_that_truncation_removed(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for sequence in range(4):
        identity = Identity(PRODUCER, 0, sequence)
        partition.append(encode([b"%d" % sequence], keys=[b"k"], identity=identity))
    partition.roll()
    partition.compact()
    partition.truncate(2)
    assert partition.append(batch(1)) == Appended(1, 2, duplicate=True)
    assert partition.append(batch(2)) == Appended(2, 3)
    assert values(partition) == [b"2"]


def test_retries_are_known_after_reopening(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(batch(0, 3))
        partition.append(group(1))
    with open_directory() as partition:
        assert partition.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
        assert partition.append(group(1)).duplicate
        partition.roll()
        partition.append(batch(3))
    with open_directory() as partition:
        assert partition.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
        assert partition.append(batch(3)) == Appended(5, 6, duplicate=True)
        assert partition.append(group(1)).duplicate
        assert partition.writer_sequence(WRITER) == 1


def test_a_retry_through_another_handle_is_known(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    for sequence in range(0, 10, 2):
        assert partition.append(batch(sequence)) == Appended(sequence, sequence + 1)
        assert other.append(batch(sequence)) == Appended(sequence, sequence + 1, duplicate=True)
        assert other.append(batch(sequence + 1)) == Appended(sequence + 1, sequence + 2)
        assert partition.append(batch(sequence + 1)).duplicate
        other.roll()


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_retries_are_known_without_the_snapshot(open_directory: OpenDirectory, damage: str) -> None:
    with open_directory() as partition:
        partition.append(batch(0, 3))
        partition.append(group(1))
        partition.roll()
        partition.append(encode([b"x"]))
    for path in partition.path.glob("*.producers"):
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"\0" * 40)
    again = open_directory()
    assert again.append(batch(0, 3)) == Appended(0, 3, duplicate=True)
    assert again.append(group(1)).duplicate


def test_a_duplicate_is_answered_only_when_its_original_is_durable(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync="never"))
    partition.append(batch(0))
    assert partition.bounds().durable_end == 0
    assert partition.append(batch(0)).duplicate
    assert partition.bounds().durable_end == 1


def test_frames_appended_together_have_one_writer(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for frames in ([batch(0), batch(1)], [batch(0), encode([b"x"])], [*group(1), *group(2)]):
        with pytest.raises(InvalidRecord, match="the same writer"):
            partition.append(frames)
    assert partition.bounds().end == 0
