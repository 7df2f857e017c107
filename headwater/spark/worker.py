"""Spark's Python workers: processes of its own, each of which does one piece of work after the other."""

from __future__ import annotations

import gc
import sys
from functools import cache


def begin() -> None:
    """Keep the garbage collector away from the modules that PySpark has imported, before as many again are imported.

    Otherwise it goes through them during the imports, for a quarter of the time. In a user's own program this does
    nothing.
    """
    if _is_worker():
        gc.freeze()


@cache
def freeze_garbage() -> None:
    """Keep the garbage collector away from everything that a worker holds after its first piece of work.

    Spark collects garbage after every task. That goes through all imported modules for some 50 ms while the
    next task waits. In a user's own program this does nothing.
    """
    if _is_worker():
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
