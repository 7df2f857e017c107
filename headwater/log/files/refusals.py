"""Refusals of the operating system, told as errors of our own: what happened, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.core.errors import HeadwaterError, OpenFailed, WriteFailed


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Raise OpenFailed for what the system refuses in the block, but for a name that is not there."""
    try:
        yield
    except (HeadwaterError, FileNotFoundError):
        raise
    except OSError as error:
        raise OpenFailed(path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise WriteFailed for what the system refuses in the block, but for a name that is not there."""
    try:
        yield
    except (HeadwaterError, FileNotFoundError):
        raise
    except OSError as error:
        raise WriteFailed(path, error) from error
