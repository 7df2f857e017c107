"""The engine beside what it is built on and what it would replace: files, checksums and SQLite.

Both sides of a row do their work in one directory, in turns. A side's preparation (opening, creating tables, making
the peer's bytes) is never in its figure; making ours durable always is, where the row says durable.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, cycle, islice, repeat
from mmap import PROT_READ, mmap
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter, sleep, time_ns
from typing import Final

from crc32c import crc32c

from benchmarks.measure import Measure, compare, timed
from benchmarks.report import Goal, Row, at_least, at_most
from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, Disk, encode
from headwater.log.files.disk import REAL_DISK
from headwater.log.files.index import IndexBuilder
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, Segment, new_segment_header, seed_of
from headwater.log.files.segment_list import listed_segment, replace_list, with_newest
from headwater.log.files.state import StatePage, begin_segment
from headwater.log.format.frame import GROUP_ONLY
from headwater.log.recover.recovery import STATE_FILE

BATCH: Final = 1000
"""Records in a frame."""
POOL: Final = 32
"""Batches that are made once and written over and over: more than fit in a core's cache."""
THREADS: Final = 8
SLOW_SYNC: Final = 2e-3
MEMORY_LIMIT_MB: Final = 200

NEVER: Final = PartitionConfig(sync="never")
ALWAYS: Final = PartitionConfig(sync="always")

STORED: Final = ["timestamp", "value"]
"""The columns that these frames hold."""

Batches = Sequence[list[bytes]]


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    repeats = 3 if quick else 7
    small, large = _batches(100), _batches(1000)
    yield _append_beside_file(scratch, small, 200 if quick else 2000, at_least(0.3), repeats)
    yield _append_beside_file(scratch, large, 40 if quick else 400, at_least(0.4), repeats)
    yield _append_beside_sqlite(scratch, small, 100 if quick else 500, repeats)
    yield _scan(scratch, small, 300 if quick else 3000, STORED, at_least(0.5), repeats)
    yield _scan(scratch, large, 60 if quick else 600, STORED, at_least(0.7), repeats)
    yield _scan(scratch, small, 300 if quick else 3000, None, at_least(0.25), repeats)
    yield _records(scratch, small, 100 if quick else 500, repeats)
    yield _threads(scratch, 30 if quick else 150, False, at_least(0.8), repeats)
    yield _threads(scratch, 10 if quick else 50, True, at_least(4), repeats)
    yield _reopen(scratch, repeats * 4)
    yield from _growth(scratch, 2_000 if quick else 20_000, repeats * 4)
    yield _processes(scratch, small, 200 if quick else 1000, 1 if quick else 3)
    if Path("/proc/self/status").exists():
        yield _memory(scratch, large, 512 if quick else 4096)


# Appending in batches.


def _append_beside_file(scratch: Path, batches: Batches, number: int, goal: Goal, repeats: int) -> Row:
    """From Python lists to the disk, beside a program that has the very same bytes ready."""
    frames = _stored(scratch, batches)

    def write_files() -> float:
        with _fresh(scratch) as directory, _opened(directory / "file") as fd:
            started = perf_counter()
            for frame in islice(cycle(frames), number):
                os.write(fd, frame)
            os.fdatasync(fd)
            return perf_counter() - started

    size = len(batches[0][0])
    return _rate(
        f"append {size} B records, {BATCH} at a time, then sync",
        "MB/s",
        number * BATCH * size / 1e6,
        partial(_append, scratch, batches, number),
        "os.write of the same bytes, ready-made",
        write_files,
        goal,
        repeats,
    )


def _append_beside_sqlite(scratch: Path, batches: Batches, number: int, repeats: int) -> Row:
    def insert() -> float:
        with _fresh(scratch) as directory, closing(_database(directory, _APPENDED)) as database:
            started = perf_counter()
            _insert(database, batches, number)
            _sync_database(directory)
            return perf_counter() - started

    return _rate(
        f"append 100 B records, {BATCH} at a time, then sync",
        "records/s",
        number * BATCH,
        partial(_append, scratch, batches, number),
        "SQLite, WAL, one transaction per batch",
        insert,
        at_least(6),
        repeats,
    )


def _append(scratch: Path, batches: Batches, number: int) -> float:
    with _fresh(scratch) as directory, DirectoryPartition(directory, NEVER) as partition:
        started = perf_counter()
        for batch in islice(cycle(batches), number):
            partition.append(encode(batch))
        partition.sync()
        return perf_counter() - started


# Reading.


def _scan(scratch: Path, batches: Batches, number: int, columns: list[str] | None, goal: Goal, repeats: int) -> Row:
    """Every batch verified and decoded, beside the checksum alone: what verifying costs at the least.

    With no columns chosen, those that the frames leave out (offsets, and keys and headers of which there are none) are
    made for each batch too.
    """
    size = len(batches[0][0])
    with _filled(scratch, batches, number) as partition:
        files = [_mapped(path) for path in sorted(partition.path.glob("*.log"))]

        def scan() -> None:
            assert sum(batch.num_rows for batch in partition.scan(columns=columns)) == number * BATCH

        def checksum() -> None:
            for file in files:
                crc32c(file)

        return _rate(
            f"scan {size} B records as Arrow, verified, warm: {', '.join(columns) if columns else 'all columns'}",
            "GB/s",
            sum(len(file) for file in files) / 1e9,
            timed(scan),
            "crc32c over the same mapped files",
            timed(checksum),
            goal,
            repeats,
        )


def _records(scratch: Path, batches: Batches, number: int, repeats: int) -> Row:
    with (
        _filled(scratch, batches, number) as partition,
        _fresh(scratch) as directory,
        closing(_database(directory, "timestamp, key, value, headers")) as database,
    ):
        _insert(database, batches, number)

        def read() -> None:
            for _ in partition.records():
                pass

        def select() -> None:
            for _ in database.execute("SELECT offset, timestamp, key, value, headers FROM log ORDER BY offset"):
                pass

        return _rate(
            "read 100 B records as Python objects",
            "records/s",
            number * BATCH,
            timed(read),
            "SQLite, SELECT of the same columns",
            timed(select),
            at_least(1.3),
            repeats,
        )


# Durable appends from many threads.


class _SlowDisk(Disk):
    """The real disk with slower syncs, as on machines without a write cache."""

    def sync(self, fd: int) -> None:
        sleep(SLOW_SYNC)
        super().sync(fd)


def _threads(scratch: Path, appends: int, slow: bool, goal: Goal, repeats: int) -> Row:
    """Each of eight threads appends one record at a time and goes on when it is durable."""
    value = os.urandom(100)
    frame = _stored(scratch, [[value]])[0]
    disk = _SlowDisk() if slow else Disk()

    def append() -> float:
        with _fresh(scratch) as directory, DirectoryPartition(directory, ALWAYS, disk=disk) as partition:
            return _together(lambda: partition.append(encode([value])), appends)

    def write() -> float:
        lock = threading.Lock()
        with _fresh(scratch) as directory, _opened(directory / "file") as fd:

            def write_and_sync() -> None:
                with lock:
                    os.write(fd, frame)
                    disk.sync(fd)

            return _together(write_and_sync, appends)

    return _rate(
        f"durable appends of 1 record, {THREADS} threads{f', syncs {SLOW_SYNC * 1e3:g} ms slower' if slow else ''}",
        "appends/s",
        THREADS * appends,
        append,
        "write and fdatasync under one lock",
        write,
        goal,
        repeats,
    )


def _together(work: Callable[[], object], times: int) -> float:
    """The seconds until all threads have done their share."""
    ready = threading.Barrier(THREADS + 1)

    def share() -> None:
        ready.wait()
        for _ in range(times):
            work()

    threads = [threading.Thread(target=share) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    return perf_counter() - started


# Opening.


def _reopen(scratch: Path, repeats: int) -> Row:
    many, few = 10_000, 100
    values = [os.urandom(100)] * 10
    with _filled(scratch, [values], many) as large, _filled(scratch, [values], few) as little:
        large.close()
        little.close()
        seconds, peer_seconds = compare(partial(_open, large.path), partial(_open, little.path), repeats=repeats)
    assert peer_seconds is not None
    return Row(
        work=f"open a log of {many:,} frames, cleanly closed",
        unit="ms",
        ours=seconds * 1e3,
        peer_name=f"open one of {few} frames",
        peer=peer_seconds * 1e3,
        goal=at_most(2),
    )


def _open(path: Path) -> float:
    started = perf_counter()
    partition = DirectoryPartition(path, NEVER)
    partition.bounds()
    seconds = perf_counter() - started
    partition.close()
    return seconds


def _growth(scratch: Path, many: int, repeats: int) -> Iterator[Row]:
    """Compare opening and searching in a log of many closed segments with one of few."""
    few = 20
    with _fresh(scratch) as directory:
        for count in (many, few):
            _make_segments(directory / str(count), count)
        for work, measure in (
            ("open", _open),
            ("seek", _seek),
            ("offset_at", _find_time),
            ("first append", _append_first),
        ):
            seconds, peer_seconds = compare(
                partial(measure, directory / str(many)), partial(measure, directory / str(few)), repeats=repeats
            )
            assert peer_seconds is not None
            yield Row(
                work=f"growth: {work}, {many:,} segments",
                unit="ms",
                ours=seconds * 1e3,
                peer_name=f"the same with {few} segments",
                peer=peer_seconds * 1e3,
                goal=at_most(3),
            )


def _make_segments(directory: Path, count: int) -> None:
    """A log of so many closed segments with one record each, written as rolls would, but at once."""
    with DirectoryPartition(directory, NEVER) as partition:
        partition.bounds()
    page = StatePage(REAL_DISK, directory / STATE_FILE)
    state = page.read()[0]
    assert state is not None
    entries = []
    for base in range(count):
        frame = encode([b"value"], timestamps=base)
        header = new_segment_header(state.partition, base, base)
        content, _ = frame.stamp(
            base,
            durable_end=base,
            leader_epoch=0,
            previous=header.chain,
            group=GROUP_ONLY,
            seed=seed_of(state.partition),
        )
        segment = header.pack() + content + frame.message.to_pybytes()
        (directory / f"{base:020d}.log").write_bytes(segment)
        builder = IndexBuilder(4096)
        builder.add(SEGMENT_HEADER_BYTES, frame.length, base, base)
        (directory / f"{base:020d}.index").write_bytes(builder.pack(header.log, len(segment)))
        entries.append(listed_segment(header, base + 1, len(segment), 1, base, base))
    replace_list(REAL_DISK, directory, state.partition, 1, with_newest(entries))
    header = new_segment_header(state.partition, count, count)
    Segment.create(REAL_DISK, directory, header)
    (directory / f"{count:020d}.index").write_bytes(IndexBuilder(4096).pack(header.log, 0))
    page.write_both(begin_segment(state, header)._replace(list_generation=1, listed=count, total_records=count))
    page.close()


def _seek(path: Path) -> float:
    with DirectoryPartition(path, NEVER) as partition:
        started = perf_counter()
        partition.read(partition.bounds().end // 2, max_bytes=1)
        return perf_counter() - started


def _find_time(path: Path) -> float:
    with DirectoryPartition(path, NEVER) as partition:
        timestamp = partition.bounds().end // 3
        started = perf_counter()
        partition.offset_at(timestamp)
        return perf_counter() - started


def _append_first(path: Path) -> float:
    with DirectoryPartition(path, NEVER) as partition:
        frame = encode([b"value"])
        started = perf_counter()
        partition.append(frame)
        return perf_counter() - started


# Several processes.


def _processes(scratch: Path, batches: Batches, number: int, repeats: int) -> Row:
    """Processes take turns at a partition, so more of them add no speed; the point is how little they lose."""
    return _rate(
        f"append 100 B records, {BATCH} at a time, 4 processes",
        "records/s",
        number * BATCH,
        partial(_append_from_processes, scratch, batches, number, 4),
        "the same from 1 process",
        partial(_append_from_processes, scratch, batches, number, 1),
        at_least(0.5),
        repeats,
    )


def _append_from_processes(scratch: Path, batches: Batches, number: int, processes: int) -> float:
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Barrier(processes + 1), spawn.Barrier(processes + 1)
    with _fresh(scratch) as directory:
        share = (directory / "log", batches, number // processes, ready, done)
        workers = [spawn.Process(target=_append_share, args=share) for _ in range(processes)]
        for worker in workers:
            worker.start()
        ready.wait(60)
        started = perf_counter()
        done.wait(600)
        seconds = perf_counter() - started
        for worker in workers:
            worker.join()
    return seconds


def _append_share(directory: Path, batches: Batches, number: int, ready: Barrier, done: Barrier) -> None:
    with DirectoryPartition(directory, NEVER) as partition:
        ready.wait(60)
        for batch in islice(cycle(batches), number):
            partition.append(encode(batch))
        done.wait(600)


# Memory.


def _memory(scratch: Path, batches: Batches, megabytes: int) -> Row:
    """Measure the memory of a scan, in a process that does nothing else. The kernel can take mapped pages back."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    with _filled(scratch, batches, megabytes) as partition:
        partition.close()
        child = spawn.Process(target=_scan_and_report, args=(partition.path, sender))
        child.start()
        most: int = receiver.recv()
        child.join()
    return Row(
        work=f"scan a log of {megabytes:,} MB: most anonymous memory",
        unit="MB",
        ours=most / 1e6,
        peer_name="the limit",
        peer=MEMORY_LIMIT_MB,
        goal=at_most(1),
    )


def _scan_and_report(directory: Path, sender: Connection) -> None:
    with DirectoryPartition(directory, NEVER) as partition:
        sender.send(max(_anonymous_bytes() for _ in partition.scan()))


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this kernel does not tell anonymous memory apart")


# Shared by the rows.


def _rate(
    work: str, unit: str, amount: float, ours: Measure, peer_name: str, peer: Measure, goal: Goal, repeats: int
) -> Row:
    """A row of `amount` per second, from two measures of seconds."""
    seconds, peer_seconds = compare(ours, peer, repeats=repeats)
    assert peer_seconds is not None
    return Row(work=work, unit=unit, ours=amount / seconds, peer_name=peer_name, peer=amount / peer_seconds, goal=goal)


def _batches(size: int) -> Batches:
    return [[os.urandom(size) for _ in range(BATCH)] for _ in range(POOL)]


_serial = count()


@contextmanager
def _fresh(scratch: Path) -> Iterator[Path]:
    """A new directory, for as long as it is needed."""
    directory = scratch / str(next(_serial))
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _filled(scratch: Path, batches: Batches, number: int) -> Iterator[DirectoryPartition]:
    """A partition with so many frames in it."""
    frames = [encode(batch) for batch in batches]
    with _fresh(scratch) as directory, closing(DirectoryPartition(directory, NEVER)) as partition:
        for frame in islice(cycle(frames), number):
            partition.append(frame)
        partition.sync()
        yield partition


def _stored(scratch: Path, batches: Batches) -> list[bytes]:
    """The bytes that the engine stores for each of the batches."""
    with _filled(scratch, batches, len(batches)) as partition:
        return [frame.data.to_pybytes() for frame in partition.frames()]


def _mapped(path: Path) -> mmap:
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, prot=PROT_READ)


# SQLite, as its manual advises for many small writes.

_APPENDED: Final = "timestamp, value"
_INSERT: Final = "INSERT INTO log(offset, timestamp, value) VALUES (?, ?, ?)"


def _database(directory: Path, columns: str) -> sqlite3.Connection:
    database = sqlite3.connect(directory / "log.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(f"CREATE TABLE log(offset INTEGER PRIMARY KEY, {columns})")
    return database


def _insert(database: sqlite3.Connection, batches: Batches, number: int) -> None:
    for base, batch in zip(count(0, BATCH), islice(cycle(batches), number)):
        with database:
            database.executemany(_INSERT, zip(range(base, base + BATCH), repeat(time_ns()), batch))


def _sync_database(directory: Path) -> None:
    """The least that makes the last transactions durable: cheaper for SQLite than a checkpoint."""
    for file in directory.iterdir():
        with _opened(file) as fd:
            os.fdatasync(fd)
