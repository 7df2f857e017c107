"""Many processes on one log, with no one in charge: nothing is lost, doubled, or seen half done."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from headwater import OffsetOutOfRange, PartitionBusy, PartitionConfig
from headwater.log import DirectoryPartition, Identity, encode
from tests.support.backends import OpenDirectory

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 4
APPENDS = 100
SMALL = PartitionConfig(segment_bytes=8192, index_interval=512)


def produce(path: Path, name: str) -> list[tuple[bytes, int]]:
    """Append numbered values, one to three at a time, each batch twice; where each was acknowledged."""
    acknowledged = []
    with DirectoryPartition(path, SMALL) as partition:
        sequence = 0
        for number in range(APPENDS):
            values = [f"{name}-{sequence + i}".encode() for i in range(number % 3 + 1)]
            frame = encode(values, identity=Identity(name.encode().ljust(16), 0, sequence))
            appended = partition.append(frame)
            retry = partition.append(frame)
            assert retry.duplicate
            assert retry[:2] == appended[:2]
            acknowledged += [(value, appended.base_offset + i) for i, value in enumerate(values)]
            sequence += len(values)
    return acknowledged


def test_processes_append_at_once_and_each_append_is_there_once(open_directory: OpenDirectory) -> None:
    partition = open_directory(SMALL)
    with SPAWN.Pool(PROCESSES) as pool:
        answers = pool.starmap(produce, [(partition.path, f"process {number}") for number in range(PROCESSES)])
    acknowledged = {offset: value for answer in answers for value, offset in answer}
    assert sorted(acknowledged) == list(range(partition.bounds().end))
    assert {record.offset: record.value for record in partition.records()} == acknowledged
    assert partition.statistics().total_appends == PROCESSES * APPENDS
    assert partition.statistics().segments > 5
    for answer in answers:
        assert [offset for _, offset in answer] == sorted(offset for _, offset in answer)


def churn(path: Path, done: Event) -> None:
    """Append, roll, compact and trim for a while. Each value is its record's offset."""
    with DirectoryPartition(path, SMALL) as partition:
        for number in range(600):
            base = partition.bounds().end
            values = [b"%d" % (base + i) for i in range(5)]
            partition.append(encode(values, keys=[b"%d" % ((base + i) % 40) for i in range(5)], timestamps=base))
            if number % 20 == 19:
                partition.roll()
            if number % 60 == 59:
                partition.compact()
            if number % 90 == 89:
                partition.delete_before(base - 300)
    done.set()


def test_a_reader_is_undisturbed_by_a_process_that_appends_rolls_compacts_and_trims(
    open_directory: OpenDirectory,
) -> None:
    partition = open_directory(SMALL)
    done = SPAWN.Event()
    writer = SPAWN.Process(target=churn, args=(partition.path, done))
    writer.start()
    position = rounds = overtaken = 0
    while not (done.is_set() and position == partition.bounds().end) and (writer.is_alive() or done.is_set()):
        try:
            for record in partition.records(position):
                assert record.offset >= position
                assert record.value == b"%d" % record.offset
                position = record.offset + 1
            read_elsewhere(partition, rounds)
        except OffsetOutOfRange:
            overtaken += 1
            position = max(position, partition.bounds().start)
        rounds += 1
    writer.join()
    assert writer.exitcode == 0
    assert position == partition.bounds().end == 3000
    assert partition.statistics().damaged == 0
    assert partition.recovery_reports == []


def read_elsewhere(partition: DirectoryPartition, number: int) -> None:
    """Columns from some place in the middle, a time, and the numbers: all of it agrees with itself."""
    start, end, _ = partition.bounds()
    middle = start + (end - start) * (number % 7) // 7
    table = partition.scan(middle, columns=["offset", "value"]).read_all()
    assert table["value"].to_pylist() == [b"%d" % offset for offset in table["offset"].to_pylist()]
    offset = partition.offset_at(middle - middle % 5)
    assert offset is None or offset >= middle - middle % 5 or offset >= start
    assert partition.statistics().end >= end


HOLDER = """
import sys
from headwater.log import DirectoryPartition, Disk
from headwater.log import encode

class Stuck(Disk):
    def sync(self, fd):
        super().sync(fd)
        if armed:
            print("holding", flush=True)
            sys.stdin.readline()

armed = False
partition = DirectoryPartition(sys.argv[1], disk=Stuck())
armed = True
partition.append(encode([b"from the holder"]))
"""


def test_a_stuck_process_is_named_and_loses_nothing_when_it_goes_on(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(lock_timeout=0.05))
    partition.append(encode([b"before"]))
    command = [sys.executable, "-c", HOLDER, str(partition.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(PartitionBusy, match=f"process {holder.pid}") as caught:
            partition.append(encode([b"refused"]))
        assert caught.value.pid == holder.pid
        assert [record.value for record in partition.records()] == [b"before"]
        holder.stdin.write("go on\n")
        holder.stdin.flush()
        assert holder.wait() == 0
    partition.append(encode([b"after"]))
    assert [record.value for record in partition.records()] == [b"before", b"from the holder", b"after"]


def test_a_process_that_dies_in_an_append_blocks_nobody(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(lock_timeout=0.05))
    partition.append(encode([b"before"]))
    command = [sys.executable, "-c", HOLDER, str(partition.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        holder.kill()
    partition.append(encode([b"after"]))
    values = [record.value for record in partition.records()]
    assert values == [b"before", b"from the holder", b"after"]
    (report,) = partition.recovery_reports
    assert report.adopted_records == 1
    assert str(os.path.basename(partition.path)) in str(report)
