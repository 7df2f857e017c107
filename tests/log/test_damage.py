"""Damage that a reader meets: never served, told precisely, passed over when asked, and noted once for everyone."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

import headwater as hw
from headwater import Consumer, PartitionConfig, RecordsDamaged, Store, TopicPartition
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, Disk, encode
from headwater.log.recover.damage import DAMAGE_FILE, read_damage, with_damage, without_damage
from headwater.log.recover.report import Damage
from tests.support.backends import OpenDirectory, OpenDirectoryStore
from tests.support.patience import has_finished, wait_until

PLACE: Final = TopicPartition("orders", 0)
FRAME: Final = 10
"""Records in each frame of `damaged`."""


def flip(path: Path, *values: bytes) -> None:
    """Damage the frames that have these values."""
    content = bytearray(path.read_bytes())
    for value in values:
        content[content.index(value)] ^= 1
    path.write_bytes(content)


def value(offset: int) -> bytes:
    return b"<%03d>" % offset


@pytest.fixture
def store(open_directory_store: OpenDirectoryStore) -> DirectoryStore:
    """Sixty records in six frames and two closed segments; offsets 10 to 19 and 40 to 59 are damaged."""
    with open_directory_store() as store:
        orders, other = store.create_topic("orders", partitions=2).partitions()
        for first in range(0, 60, FRAME):
            # Not by a producer: how many records it puts into a frame depends on how fast the machine is.
            orders.append(encode([value(offset) for offset in range(first, first + FRAME)]))
            if first in (20, 50):
                orders.roll()
        orders.append(encode([value(60)]))
        other.append(encode([b"<fine>"]))
    oldest, middle, _ = sorted((store.path / "orders" / "0").glob("*.log"))
    flip(oldest, value(15))
    flip(middle, value(41), value(52))
    return open_directory_store()


GOOD: Final = [value(offset) for offset in (*range(10), *range(20, 40), 60)]


def offsets(errors: list[RecordsDamaged]) -> list[tuple[str, int, int, int | None]]:
    return [(error.topic, error.partition, error.offset or 0, error.next_offset) for error in errors]


def drain(consumer: Consumer) -> list[bytes]:
    values: list[bytes] = []
    while records := consumer.poll(7):
        for record in records:
            consumer.ack(record)
            if record.partition == 0:
                values.append(record.value)
    return values


def committed(store: Store) -> int:
    return store.group("g").committed()[store.describe_topic("orders").uuid, 0].offset


# Consumers.


def test_a_consumer_stops_before_the_damage_and_says_what_is_lost(store: Store) -> None:
    with store.consumer("orders", group="g") as inbox:
        records = inbox.poll()
        assert sorted(record.value for record in records) == sorted([*GOOD[:10], b"<fine>"])
        for record in records:
            inbox.ack(record)
        for _ in range(3):
            with pytest.raises(RecordsDamaged, match=r"orders/0: offsets 10 to 19 cannot be read.*00000.log") as caught:
                inbox.poll()
            assert offsets([caught.value]) == [("orders", 0, 10, 20)]
        assert committed(store) == 10
        inbox.seek("orders", 0, 20)
        assert [record.value for record in inbox.poll()] == GOOD[10:30]
        with pytest.raises(RecordsDamaged):
            inbox.poll_batches()
        assert inbox.lag()[PLACE] == 41


def test_with_a_callback_it_goes_on_behind_the_damage(store: Store) -> None:
    told: list[RecordsDamaged] = []
    with store.consumer("orders", group="g", on_damage=told.append) as inbox:
        assert drain(inbox) == GOOD
        assert inbox.lag()[PLACE] == 0
    assert offsets(told) == [("orders", 0, 10, 20), ("orders", 0, 40, 60)]
    assert committed(store) == 61
    values: list[bytes] = []
    with store.consumer("orders", on_damage=told.append) as inbox:
        while batches := inbox.poll_batches():
            for consumed in batches:
                values += consumed.batch.column("value").to_pylist() if consumed.partition == 0 else []
    assert values == GOOD


def test_what_the_callback_refuses_is_not_passed_over(store: Store) -> None:
    def refuse(lost: RecordsDamaged) -> None:
        raise lost

    with store.consumer("orders", group="g", on_damage=refuse) as inbox:
        inbox.ack_range("orders", 0, 0, len([record for record in inbox.poll() if record.partition == 0]))
        for _ in range(2):
            with pytest.raises(RecordsDamaged):
                inbox.poll()
    assert committed(store) == 10


def test_processing_ends_with_the_same_error_or_goes_on(store: Store) -> None:
    stop = threading.Event()
    seen: list[bytes] = []

    def handle(record: hw.ConsumedRecord) -> None:
        seen.append(record.value)
        if record.value == GOOD[-1]:
            stop.set()

    with store.consumer("orders", group="g") as inbox, pytest.raises(RecordsDamaged):
        inbox.process(handle, stop=stop)
    assert committed(store) == 10
    with store.consumer("orders", group="g", on_damage=lambda _: None) as inbox:
        inbox.process(handle, stop=stop)
    assert [content for content in seen if content != b"<fine>"] == GOOD


# Notes of the damage.


def damaged(store: Store) -> tuple[int, tuple[str, ...]]:
    return store.topic("orders").statistics().partitions[0].damaged, store.statistics().unhealthy


def test_damage_is_noted_once_for_everyone_by_whoever_meets_it(
    store: DirectoryStore, open_directory_store: OpenDirectoryStore
) -> None:
    other = open_directory_store()
    assert damaged(store) == damaged(other) == (0, ())
    with pytest.raises(hw.FrameDamaged, match="offset 10 to 19"):
        store.topic("orders").scan().read_all()
    assert damaged(store) == damaged(other) == (1, ("orders/0",))
    code = """
import sys, headwater as hw
with hw.open(sys.argv[1]) as store:
    inbox = store.consumer("orders", on_damage=lambda _: None)
    while inbox.poll():
        pass
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(store.path)], check=True)
        assert damaged(store) == damaged(other) == (2, ("orders/0",))
    partition = other.topic("orders").partition(0)
    for start in (10, 13, 50, 55):
        list(partition.records(start, start + 3, on_damage=lambda _: None))
    assert partition.statistics().damaged == 2
    assert [(damage.offset, damage.next_offset) for damage in read_damage(store.path / "orders" / "0")] == [
        (10, 20),
        (40, 60),
    ]
    other.close()
    assert damaged(open_directory_store()) == (2, ("orders/0",))


def test_reading_waits_for_nobody_and_notes_the_damage_later(store: DirectoryStore) -> None:
    holder = DirectoryPartition(store.path / "orders" / "0")
    partition = store.topic("orders").partition(0)
    with holder._owner.locked():
        assert [record.value for record in partition.records(on_damage=lambda _: None)] == GOOD
        assert partition.statistics().damaged == 0
    wait_until(lambda: partition.statistics().damaged == 2)
    holder.close()


def test_a_thread_that_is_writing_is_not_waited_for(store: DirectoryStore) -> None:
    partition = store.topic("orders").partition(0)
    assert isinstance(partition, DirectoryPartition)
    values: list[bytes] = []
    reader = threading.Thread(
        target=lambda: values.extend(record.value for record in partition.records(on_damage=lambda _: None))
    )
    with partition._owner.locked():
        reader.start()
        assert has_finished(reader, 60)
    assert values == GOOD


class ReadOnly(Disk):
    """A disk that takes no more writes, from some moment on."""

    refusing = False

    def write(self, fd: int, content: bytes, position: int) -> None:
        self._refuse()
        super().write(fd, content, position)

    def create(self, path: Path) -> int:
        self._refuse()
        return super().create(path)

    def _refuse(self) -> None:
        if self.refusing:
            raise OSError(errno.EROFS, "Read-only file system")


def test_what_cannot_be_noted_can_be_read_all_the_same(
    store: DirectoryStore, open_directory_store: OpenDirectoryStore
) -> None:
    disk = ReadOnly()
    again = open_directory_store(disk=disk)
    partition = again.topic("orders").partition(0)
    disk.refusing = True
    assert [record.value for record in partition.records(on_damage=lambda _: None)] == GOOD
    told: list[RecordsDamaged] = []
    with again.consumer("orders", on_damage=told.append) as inbox:
        assert [record.value for _ in range(9) for record in inbox.poll() if record.partition == 0] == GOOD
    assert len(told) == 2
    assert partition.statistics().damaged == 0
    disk.refusing = False
    with pytest.raises(hw.FrameDamaged):
        list(store.topic("orders").partition(0).records())
    assert partition.statistics().damaged == 1


def test_recovery_and_readers_count_the_same_damage_once(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        for number in range(4):
            partition.append(encode([value(number)]))
    (log,) = partition.path.glob("*.log")
    flip(log, value(1))
    for _ in range(3):
        (partition.path / "state").unlink()
        with open_directory() as again:
            assert [record.offset for record in again.records(on_damage=lambda _: None)] == [0, 2, 3]
    assert len(read_damage(partition.path)) == 1
    with open_directory() as again:
        list(again.records(on_damage=lambda _: None))
        assert again.statistics().damaged == 1


def test_what_is_appended_after_a_truncation_is_not_known_to_be_damaged(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(segment_bytes=4096))
    for number in range(4):
        partition.append(encode([value(number)]))
    flip(next(partition.path.glob("*.log")), value(2))
    list(partition.records(on_damage=lambda _: None))
    assert [(damage.offset, damage.next_offset) for damage in read_damage(partition.path)] == [(2, 3)]
    partition.truncate(1)
    assert read_damage(partition.path) == []


@pytest.mark.parametrize("content", [b"", b"[1", b"{}", b'[{"file": 1}]', b'[{"offset": 1}]', b"[7]"])
def test_a_damaged_list_of_damage_is_begun_anew(open_directory: OpenDirectory, content: bytes) -> None:
    partition = open_directory()
    for number in range(3):
        partition.append(encode([value(number)]))
    flip(next(partition.path.glob("*.log")), value(1))
    (partition.path / DAMAGE_FILE).write_bytes(content)
    list(partition.records(on_damage=lambda _: None))
    assert [(damage.offset, damage.next_offset) for damage in read_damage(partition.path)] == [(1, 2)]
    assert partition.statistics().damaged == 1


def stretch(offset: int, next_offset: int) -> Damage:
    return Damage(Path("log/0.log"), offset * 10, offset, next_offset, "torn")


@pytest.mark.parametrize(
    ("added", "expected", "new"),
    [
        ((12, 14), [(10, 20), (40, 60)], 0),
        ((20, 30), [(10, 30), (40, 60)], 0),
        ((5, 10), [(5, 20), (40, 60)], 0),
        ((15, 45), [(10, 60)], 0),
        ((25, 30), [(10, 20), (25, 30), (40, 60)], 1),
        ((0, 9), [(0, 9), (10, 20), (40, 60)], 1),
    ],
)
def test_stretches_that_overlap_or_touch_are_one(
    added: tuple[int, int], expected: list[tuple[int, int]], new: int
) -> None:
    known = [stretch(10, 20), stretch(40, 60)]
    merged, count = with_damage(known, [stretch(*added)])
    assert [(damage.offset, damage.next_offset) for damage in merged] == expected
    assert count == new
    assert with_damage(merged, [stretch(*added)]) == (merged, 0)
    assert without_damage(known, 45) == [known[0], stretch(40, 45)]
