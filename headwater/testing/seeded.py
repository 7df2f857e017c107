"""Chance from a seed: what Headwater draws at random is then the same in every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from headwater.log import entropy


@contextmanager
def seeded(seed: int | str | bytes) -> Iterator[None]:
    """Within the block, uuids, chain values and names of temporary files come from `seed`.

    With a `ManualClock` too, the same calls write the same files, to the byte. It holds for the whole process and all
    of its threads. A forked child would draw what its parent draws: give each child a seed of its own.
    """
    before, entropy.source = entropy.source, Random(seed).randbytes
    try:
        yield
    finally:
        entropy.source = before
