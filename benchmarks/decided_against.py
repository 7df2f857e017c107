"""Measures what a record index and preallocation would cost and save: `python -m benchmarks.decided_against`."""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from headwater import PartitionConfig
from headwater.log import DirectoryPartition, encode

RECORDS = 1000
"""The records of a frame, of 100 bytes each."""
FRAMES = 1000
SEGMENT_BYTES = 32 << 20
SIZES = {4096: 150, 256 << 10: 60}
"""The sizes of appends, and how many of each there are in a round."""
ROUNDS = 5


def main() -> None:
    """Print both."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        record_index(Path(directory))
        preallocation(Path(directory))


def record_index(directory: Path) -> None:
    """Compare the processor time of an append with that of its index entries, and read single records."""
    values = [os.urandom(100) for _ in range(RECORDS)]
    with DirectoryPartition(directory / "log", PartitionConfig(sync="never")) as log:
        appends = [_processor_time(lambda: log.append(encode(values))) for _ in range(FRAMES)]
        fd = os.open(directory / "record-index", os.O_RDWR | os.O_CREAT)
        packed = struct.Struct(f"<{RECORDS}Q")

        def index(start: int) -> None:
            os.pwrite(fd, packed.pack(*range(start, start + RECORDS)), start * 8)

        def read(offset: int) -> None:
            log.read(offset, max_bytes=1)[0].records(offset, offset + 1)

        entries = [_processor_time(partial(index, number * RECORDS)) for number in range(FRAMES)]
        os.close(fd)
        offsets = [random.randrange(RECORDS * FRAMES) for _ in range(2000)]
        reads = [_processor_time(partial(read, offset)) for offset in offsets]
        frames = [_processor_time(partial(log.read, offset, max_bytes=1)) for offset in offsets]
        files = directory / "log"
        sizes = {end: sum(file.stat().st_size for file in files.glob(f"*.{end}")) for end in ("log", "index")}
    of_append, of_entries = median(appends) * 1e6, median(entries) * 1e6
    _print(f"append of {RECORDS} records: {of_append:.0f} µs; their index entries: {of_entries:.0f} µs")
    _print(f"log: {sizes['log']:,} bytes, index: {sizes['index']:,}; a record index: {8 * RECORDS * FRAMES:,}")
    _print(
        f"read of one record: {median(reads) * 1e6:.0f} µs, {median(frames) * 1e6:.0f} of them for its verified frame"
    )


def preallocation(directory: Path) -> None:
    """Compare appends that are synced, each in turn, to a file that grows, a reserved one, and one of zeros."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for kind in ("growing", "reserved", "zeros"):
            fd = os.open(directory / kind, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if kind != "growing":
                os.posix_fallocate(fd, 0, SEGMENT_BYTES)
            if kind == "zeros":
                os.pwrite(fd, bytes(SEGMENT_BYTES), 0)
                os.fsync(fd)
            position = 0
            for size, count in SIZES.items():
                for _ in range(count):
                    began = time.perf_counter()
                    os.pwrite(fd, os.urandom(size), position)
                    os.fdatasync(fd)
                    seconds.setdefault((kind, size), []).append(time.perf_counter() - began)
                    position += size
            os.close(fd)
            (directory / kind).unlink()
    for (kind, size), times in seconds.items():
        _print(f"{kind}: an append of {size} bytes with its sync: {median(times) * 1e6:.0f} µs")


def _processor_time(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
