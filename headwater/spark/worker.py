"""Spark's Python workers: processes of its own, each of which does one piece of work after the other."""

from __future__ import annotations

import gc
import sys
from functools import cache


def begin() -> None:
    """Have the garbage collector pass over what PySpark has imported, before as much again is imported.

    It would go through it in the midst of that, for a quarter of the time. In a program of the user's nothing is done.
    """
    if _is_worker():
        gc.freeze()


@cache
def settle() -> None:
    """Take what a worker holds after its first piece of work out of the sight of the garbage collector.

    Spark collects garbage after every task. That goes through all that was ever imported, some 50 ms of it, while the
    next task waits. In a program of the user's nothing is done.
    """
    if _is_worker():
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
