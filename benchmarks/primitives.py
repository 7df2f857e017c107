"""The machine's floor: each primitive that the engine is built on, beside the one it could have used."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c

from benchmarks.measure import compare, timed
from benchmarks.report import Goal, Row, at_least, at_most

MIB = 1024 * 1024
PAGE = os.urandom(4096)


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    repeats = 2 if quick else 15
    yield from _checksums(repeats, calls=20 if quick else 2000)
    file = os.open(scratch / "file", os.O_RDWR | os.O_CREAT)
    try:
        yield _vectored_write(file, repeats, calls=10 if quick else 500)
        yield _sync(file, repeats, calls=5 if quick else 200)
        yield _positioned_read(scratch / "file", repeats, calls=2_000 if quick else 50_000)
        yield _lock(file, repeats, calls=2_000 if quick else 50_000)
    finally:
        os.close(file)


def _checksums(repeats: int, calls: int) -> Iterator[Row]:
    body, header = os.urandom(MIB), os.urandom(64)
    seconds, peer_seconds = compare(
        timed(_repeat(calls, lambda: crc32c.crc32c(body))),
        timed(_repeat(calls, lambda: zlib.crc32(body))),
        repeats=repeats,
    )
    assert peer_seconds is not None
    yield Row(
        work="checksum 1 MiB",
        unit="GB/s",
        ours=calls * MIB / seconds / 1e9,
        peer_name="zlib.crc32",
        peer=calls * MIB / peer_seconds / 1e9,
        goal=at_least(2),
    )
    yield _per_call(
        "checksum a header of 64 bytes",
        lambda: crc32c.crc32c(header),
        "zlib.crc32",
        lambda: zlib.crc32(header),
        goal=at_most(2),
        calls=calls * 20,
        repeats=repeats,
    )


def _vectored_write(file: int, repeats: int, calls: int) -> Row:
    parts = [os.urandom(64 * 1024) for _ in range(16)]
    return _per_call(
        "write 16 buffers of 64 KiB: pwritev",
        lambda: os.pwritev(file, parts, 0),
        "join, pwrite",
        lambda: os.pwrite(file, b"".join(parts), 0),
        goal=at_most(1),
        calls=calls,
        repeats=repeats,
    )


def _sync(file: int, repeats: int, calls: int) -> Row:
    def append_then(sync: Callable[[int], None]) -> Callable[[], None]:
        def append() -> None:
            os.pwrite(file, PAGE, os.fstat(file).st_size)
            sync(file)

        return append

    # macOS has no fdatasync; there the two sides are the same call.
    return _per_call(
        "append 4 KiB and sync: fdatasync",
        append_then(getattr(os, "fdatasync", os.fsync)),
        "fsync",
        append_then(os.fsync),
        goal=at_most(1.2),
        calls=calls,
        repeats=repeats,
    )


def _positioned_read(path: Path, repeats: int, calls: int) -> Row:
    with path.open("rb") as reader:
        descriptor = reader.fileno()

        def seek_and_read() -> bytes:
            reader.seek(8192)
            return reader.read(4096)

        return _per_call(
            "read 4 KiB at a position: pread",
            lambda: os.pread(descriptor, 4096, 8192),
            "seek, read",
            seek_and_read,
            goal=at_most(1),
            calls=calls,
            repeats=repeats,
        )


def _lock(file: int, repeats: int, calls: int) -> Row:
    def lock_by(lock: Callable[[int, int], object]) -> Callable[[], None]:
        def lock_and_unlock() -> None:
            lock(file, fcntl.LOCK_EX)
            lock(file, fcntl.LOCK_UN)

        return lock_and_unlock

    return _per_call(
        "lock and unlock a file: flock",
        lock_by(fcntl.flock),
        "lockf",
        lock_by(fcntl.lockf),
        goal=at_most(1.2),
        calls=calls,
        repeats=repeats,
    )


def _per_call(
    work: str,
    ours: Callable[[], object],
    peer_name: str,
    peer: Callable[[], object],
    *,
    goal: Goal,
    calls: int,
    repeats: int,
) -> Row:
    seconds, peer_seconds = compare(timed(_repeat(calls, ours)), timed(_repeat(calls, peer)), repeats=repeats)
    assert peer_seconds is not None
    return Row(
        work=work,
        unit="µs",
        ours=seconds / calls * 1e6,
        peer_name=peer_name,
        peer=peer_seconds / calls * 1e6,
        goal=goal,
    )


def _repeat(calls: int, function: Callable[[], object]) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(calls):
            function()

    return repeated
