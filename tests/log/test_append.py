"""Appending: what is acknowledged can be read, in order, at the offsets that were given, whole appends only."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import PartitionConfig, Record
from headwater.core.record import NO_HEADERS
from headwater.log import Appended, Bounds, Frame, encode
from tests.support import strategies
from tests.support.backends import BACKENDS, OpenPartition, temporary
from tests.support.strategies import Columns


def test_a_new_partition_is_empty(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.bounds() == Bounds(start=0, end=0, durable_end=0)
    assert list(partition.records()) == []
    assert list(partition.frames()) == []
    assert partition.read(0) == []
    assert partition.scan().read_all().num_rows == 0


def test_an_append_is_answered_with_its_offsets(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.append(encode([b"a", b"b"])) == Appended(0, 2)
    assert partition.append(encode([b"c"])) == Appended(2, 3)
    assert partition.bounds() == Bounds(start=0, end=3, durable_end=3)


def test_an_append_is_read_back(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"a", b"b"], keys=[b"k", None], headers=[None, {"trace": b"1"}], timestamps=[5, 6]))
    assert list(partition.records()) == [
        Record(0, 5, b"k", b"a", NO_HEADERS),
        Record(1, 6, None, b"b", {"trace": b"1"}),
    ]


def test_nothing_and_empty_are_two_things(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([None, b""], keys=[b"", None]))
    assert [(record.key, record.value) for record in partition.records()] == [(b"", None), (None, b"")]


def test_records_without_headers_share_an_empty_mapping_that_cannot_be_changed(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"a", b"b"], headers=[{}, {"x": b""}]))
    first, second = partition.records()
    assert first.headers == {}
    assert second.headers == {"x": b""}
    with pytest.raises(TypeError):
        first.headers["x"] = b""  # type: ignore[index]


def test_records_without_timestamps_are_stamped_with_the_time_of_encoding(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"a", b"b"]))
    partition.append(encode([b"c"]))
    stamps = [record.timestamp for record in partition.records()]
    assert stamps[0] == stamps[1] <= stamps[2]


def test_one_frame_can_be_appended_many_times(open_partition: OpenPartition) -> None:
    partition, other = open_partition(), open_partition()
    frame = encode([b"a"])
    assert [partition.append(frame).base_offset for _ in range(3)] == [0, 1, 2]
    assert other.append(frame) == Appended(0, 1)
    assert [record.value for record in partition.records()] == [b"a"] * 3


def test_several_frames_are_one_append(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.append([encode([b"a"]), encode([b"b", b"c"]), encode([b"d"])]) == Appended(0, 4)
    assert [record.value for record in partition.records()] == [b"a", b"b", b"c", b"d"]
    assert partition.statistics().total_appends == 1
    assert partition.statistics().total_frames == 3


def test_frames_appended_together_become_visible_together(open_partition: OpenPartition) -> None:
    partition = open_partition()
    group = [encode([b"x"] * size) for size in (1, 2, 3)]
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(partition.bounds().end)
            seen.add(sum(1 for _ in partition.records()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(50):
        partition.append(group)
    done.set()
    watcher.join()
    assert {end % 6 for end in seen} == {0}


def test_threads_append_at_once_and_nothing_is_lost_or_doubled(open_partition: OpenPartition) -> None:
    partition = open_partition()
    answers: dict[bytes, Appended] = {}

    def produce(name: str) -> None:
        for number in range(40):
            value = f"{name}-{number}".encode()
            answers[value] = partition.append(encode([value]))

    threads = [threading.Thread(target=produce, args=(str(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {record.value: Appended(record.offset, record.offset + 1) for record in partition.records()}
    assert stored == answers
    assert sorted(answer.base_offset for answer in answers.values()) == list(range(240))


def test_a_frame_may_be_larger_than_a_segment(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(segment_bytes=4096))
    partition.append(encode([b"small"]))
    partition.append(encode([b"x" * 100_000]))
    partition.append(encode([b"small"]))
    assert [len(record.value) for record in partition.records()] == [5, 100_000, 5]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20)
@given(st.lists(st.lists(strategies.columns(max_records=5), min_size=1, max_size=3), max_size=6), st.data())
def test_any_appends_are_read_back(backend: str, groups: list[list[Columns]], data: st.DataObject) -> None:
    expected: list[Record] = []
    with temporary(backend) as partition:
        for group in groups:
            frames: list[Frame] = [columns.encode(data.draw(strategies.compressions)) for columns in group]
            partition.append(frames)
            for columns in group:
                keys = columns.keys or [None] * len(columns.values)
                headers = columns.headers or [None] * len(columns.values)
                for row in zip(columns.timestamps, keys, columns.values, headers, strict=True):
                    expected.append(Record(len(expected), *row[:3], row[3] or NO_HEADERS))
            if data.draw(st.booleans()):
                partition.roll()
        assert list(partition.records()) == expected
        assert partition.bounds().end == len(expected)
