"""Spark's Python workers: processes of its own, each of which does one piece of work after the other."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def settle() -> None:
    """Take what a worker holds after its first piece of work out of the sight of the garbage collector.

    Spark collects garbage after every task. That goes through all that was ever imported, some 50 ms of it, while the
    next task waits. In a program of the user's nothing is done.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        gc.collect()
        gc.freeze()
