"""The directory of an example: a new one that its command line names, or a temporary one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def workplace() -> Iterator[Path]:
    """The directory for the length of a block."""
    if len(sys.argv) > 1:
        directory = Path(sys.argv[1])
        directory.mkdir(parents=True)
        yield directory
        return
    with TemporaryDirectory(prefix="headwater-example-") as temporary:
        yield Path(temporary)
