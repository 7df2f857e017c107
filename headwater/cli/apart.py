"""Keeping what others say out of a command's standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def apart() -> Iterator[None]:
    """What is started in the block gets a standard error that leads nowhere; this program keeps its own.

    Java and Spark would begin with a page about their logging. With --debug they may.
    """
    if "--debug" in sys.argv:
        yield
        return
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    before = sys.stderr
    try:
        with os.fdopen(own, "w", closefd=False) as sys.stderr:
            os.dup2(nowhere, 2)
            yield
    finally:
        sys.stderr = before
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)
