"""The processes that the tour starts. Each says on its standard output what it has done, a line at a time.

The tour compares these lines with the log, so nothing is said before it is true.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import headwater as hw
from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, Disk, encode


def start(main: Callable[..., None], *arguments: object) -> subprocess.Popen[bytes]:
    """Run one of the functions below in a process, and in a process group, of its own."""
    program = f"import sys; from headwater.cli.tour.processes import {main.__name__}; {main.__name__}(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, process_group=0
    )


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


# Writers of one partition.

FRAME_RECORDS: Final = 50
NUMBER_DIGITS: Final = 12
WRITER_CONFIG: Final = PartitionConfig(segment_bytes=16 * 1024 * 1024)
_RECORD_BYTES: Final = 100


class DyingDisk(Disk):
    """A disk whose user dies at a chosen moment, once it is armed."""

    moment: str | None = None

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        """Write half of the bytes, and die."""
        if self.moment == "halfway":
            content = b"".join(buffers)
            os.pwrite(fd, content[: len(content) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwritev(fd, buffers, position)

    def sync(self, fd: int) -> None:
        """Make all bytes safe on the device, and die before anyone is told."""
        super().sync(fd)
        if self.moment == "unpublished":
            os.kill(os.getpid(), signal.SIGKILL)


def key_of(writer: int) -> bytes:
    """The key of all records of a writer."""
    return b"writer-%d" % writer


def _value_of(number: int) -> bytes:
    """The value of a writer's record: its number, and filling."""
    return b"%0*d " % (NUMBER_DIGITS, number) + b"." * (_RECORD_BYTES - NUMBER_DIGITS - 1)


def append_frames(directory: str, number: str, frames: str, seconds: str, moment: str | None = None) -> None:
    """Append so many frames, in so many seconds at most, as the writer of this number.

    With a moment, `halfway` or `unpublished`, the writer dies by SIGKILL at that moment of its last append. It says
    `acknowledged FIRST COUNT BASE_OFFSET` when an append has returned, and `recovered REPORT` when it has cleaned up
    after a dead writer.
    """
    disk = DyingDisk()
    keys = [key_of(int(number))] * FRAME_RECORDS
    with DirectoryPartition(Path(directory), WRITER_CONFIG, disk=disk) as partition:
        reported = 0
        deadline = time.monotonic() + float(seconds)
        for first in range(0, int(frames) * FRAME_RECORDS, FRAME_RECORDS):
            if time.monotonic() > deadline:
                break
            if moment is not None and first == (int(frames) - 1) * FRAME_RECORDS:
                disk.moment = moment
            appended = partition.append(encode([_value_of(first + i) for i in range(FRAME_RECORDS)], keys=keys))
            _say(f"acknowledged {first} {FRAME_RECORDS} {appended.base_offset}")
            reports = partition.recovery_reports
            for report in reports[reported:]:
                _say(f"recovered {str(report).partition(': ')[2]}")
            reported = len(reports)


# Workers of a group, which read ticks and write trades.

TICKS: Final = "ticks"
TRADES: Final = "trades"
TRADERS: Final = "traders"
PARTITIONS: Final = 4
_WORKERS: Final = 2
_BLOCK: Final = 200
_QUIET: Final = 2.0
"""Seconds without a record, after which the worker goes home."""
_FIRST: Final = 20.0
"""Seconds to wait for the first record: on a busy machine the ticks may be late."""


def trade(store_directory: str, name: str) -> None:
    """Turn ticks into trades in transactions, until nothing has come for a while.

    The worker says `ready` when it has got its share of the partitions, and `committed COUNT` after each transaction.
    """
    with hw.open(store_directory) as store, store.consumer(TICKS, group=TRADERS) as inbox:
        while len(inbox.assignment()) != PARTITIONS // _WORKERS:
            inbox.poll(timeout=0.01)
        _say("ready")
        last, patience = time.monotonic(), _FIRST
        while time.monotonic() - last < patience:
            with store.transaction(inbox) as block:
                out = block.producer(TRADES)
                ticks = inbox.poll(_BLOCK, timeout=0.1)
                for tick in ticks:
                    out.send(tick.value, key=tick.key, headers={"by": name.encode()})
                    inbox.ack(tick)
            if ticks:
                last, patience = time.monotonic(), _QUIET
                _say(f"committed {len(ticks)}")


# Producers of a price feed.

PRICES: Final = "prices"
SYMBOLS: Final = (("AAPL", 231.0), ("NVDA", 187.0), ("TSLA", 402.0))
"""The symbol of each producer, and the price that it begins with."""
_OPENING: Final = 1_767_605_400_000_000_000
"""5 January 2026, 09:30 in UTC, as nanoseconds."""
_STEP: Final = 100_000_000
"""A tick every tenth of a second, by the feed's own time."""
_BATCH: Final = 100


def feed_prices(store_directory: str, number: str, count: str) -> None:
    """Write so many prices of one symbol; the producer says `acknowledged COUNT` when so many more are durable."""
    symbol, price = SYMBOLS[int(number)]
    chance = random.Random(int(number))
    with hw.open(store_directory) as store, store.producer(PRICES) as out:
        for tick in range(int(count)):
            price = max(price * (1 + chance.gauss(0, 0.0004)), 1.0)
            row = {"symbol": symbol, "number": tick, "price": round(price, 2), "size": chance.randint(1, 9) * 10}
            out.send(row, key=symbol.encode(), timestamp=_OPENING + tick * _STEP)
            if tick % _BATCH == _BATCH - 1:
                out.sync()
                _say(f"acknowledged {_BATCH}")
