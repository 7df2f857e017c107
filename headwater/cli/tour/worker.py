"""A worker of the tour, in a process of its own: it reads ticks and writes trades, each block exactly once.

Its arguments are the store and a name. It says `ready` when it has got its share of the partitions, and
`committed COUNT` after each block. It ends when it has found nothing for a while.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Final

import headwater as hw

TICKS: Final = "ticks"
TRADES: Final = "trades"
GROUP: Final = "traders"
PARTITIONS: Final = 4
WORKERS: Final = 2
_BLOCK: Final = 200
_QUIET: Final = 2.0
"""Seconds without a record, after which the worker goes home."""
_FIRST: Final = 20.0
"""So long it waits for the first one: on a busy machine the ticks may be late."""


def main(arguments: Sequence[str]) -> None:
    """Work until there is nothing left to do."""
    place, name = arguments[:2]
    with hw.open(place) as store, store.consumer(TICKS, group=GROUP) as inbox:
        while len(inbox.assignment()) != PARTITIONS // WORKERS:
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


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode() + b"\n")
