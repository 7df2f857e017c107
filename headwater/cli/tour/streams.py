"""The tour's chapter on streams: topics, a group of processes, and transactions that survive a death."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rich.console import RenderableType
from rich.text import Text

import headwater as hw
from headwater.cli.tour.processes import PARTITIONS, TICKS, TRADERS, TRADES, start, trade

_TICKS: Final = 20_000
_SYMBOLS: Final = (b"AAPL", b"MSFT", b"NVDA", b"TSLA", b"AMZN", b"META", b"ORCL", b"INTC")
_PATIENCE: Final = 60.0


class Guide(Protocol):
    """The guide of the tour."""

    def heading(self, text: str) -> None:
        """Begin a step."""

    def say(self, text: Text | str) -> None:
        """Tell something."""

    def show(self, renderable: RenderableType) -> None:
        """Show a table."""

    def promise(self, kept: bool, text: str) -> None:
        """Tell a promise, and whether it was kept."""


@dataclass(frozen=True, slots=True)
class _Result:
    """The work of all workers, as the log has it."""

    missing: int
    doubled: int
    by: Counter[str]
    lag: int


def stream(guide: Guide, directory: Path) -> None:
    """Ticks are turned into trades by two processes; one dies in the middle, and each tick counts once."""
    guide.heading("Two processes share a topic and write another one in transactions; one of them is killed")
    with hw.open(directory) as store:
        store.create_topic(TICKS, partitions=PARTITIONS)
        store.create_topic(TRADES, partitions=2)
        workers = [start(trade, directory, name) for name in ("ann", "bob")]
        try:
            for worker in workers:
                _heard(worker, b"ready\n")
            seconds = _produce(store)
            guide.say(f"{_TICKS:,} ticks sent one by one and synced in {seconds:.2f} s")
            dead = _kill_halfway(workers[0])
            for worker in workers:
                worker.wait(_PATIENCE)
        finally:
            for worker in workers:
                worker.kill()
        result = _look(store)
    guide.promise(dead, "a worker was killed in the middle of its work")
    guide.say(f"trades by worker: {', '.join(f'{name} {count:,}' for name, count in sorted(result.by.items()))}")
    guide.promise(result.lag == 0, "the other took over its partitions and went on to the end")
    once = result.missing == 0 and result.doubled == 0
    guide.promise(once, f"each tick became one trade: {result.missing} missing, {result.doubled} doubled")


def _produce(store: hw.Store) -> float:
    chance = random.Random(7)
    began = time.monotonic()
    with store.producer(TICKS) as out:
        for number in range(_TICKS):
            out.send(b"%d %.2f" % (number, chance.uniform(90, 110)), key=chance.choice(_SYMBOLS))
        out.sync()
    return time.monotonic() - began


def _heard(worker: subprocess.Popen[bytes], line: bytes) -> bool:
    """Return whether the worker's next line begins so."""
    assert worker.stdout is not None, "it is a pipe"
    return worker.stdout.readline().startswith(line)


def _kill_halfway(victim: subprocess.Popen[bytes]) -> bool:
    """Kill it in the middle of its work; whether that was what ended it."""
    working = all(_heard(victim, b"committed") for _ in range(3))
    victim.kill()
    return victim.wait(_PATIENCE) == -signal.SIGKILL and working


def _look(store: hw.Store) -> _Result:
    numbers: Counter[int] = Counter()
    by: Counter[str] = Counter()
    for partition in store.topic(TRADES).partitions():
        for record in partition.records():
            numbers[int(record.value.split()[0])] += 1
            by[record.headers["by"].decode()] += 1
    with store.consumer(TICKS, group=TRADERS) as last:
        lag = sum(last.lag().values())
    return _Result(missing=_TICKS - len(numbers), doubled=sum(count - 1 for count in numbers.values()), by=by, lag=lag)
