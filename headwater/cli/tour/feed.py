"""A producer of the tour's price feed, in a process of its own.

Its arguments are the store, a number, and how many ticks to write. It says `acknowledged COUNT` whenever so many more
ticks are durable.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from typing import Final

import headwater as hw

PRICES: Final = "prices"
SYMBOLS: Final = (("AAPL", 231.0), ("NVDA", 187.0), ("TSLA", 402.0))
"""What each producer writes: a symbol, and the price that it begins with."""
OPENING: Final = 1_767_605_400_000_000_000
"""5 January 2026, 09:30 in UTC, as nanoseconds."""
STEP: Final = 100_000_000
"""A tick every tenth of a second, by the feed's own time."""
_BATCH: Final = 100


def main(arguments: Sequence[str]) -> None:
    """Write ticks, a batch at a time."""
    place, number, count = arguments[0], int(arguments[1]), int(arguments[2])
    symbol, price = SYMBOLS[number]
    chance = random.Random(number)
    with hw.open(place) as store, store.producer(PRICES) as out:
        for tick in range(count):
            price = max(price * (1 + chance.gauss(0, 0.0004)), 1.0)
            row = {"symbol": symbol, "number": tick, "price": round(price, 2), "size": chance.randint(1, 9) * 10}
            out.send(row, key=symbol.encode(), timestamp=OPENING + tick * STEP)
            if tick % _BATCH == _BATCH - 1:
                out.sync()
                os.write(sys.stdout.fileno(), b"acknowledged %d\n" % _BATCH)
