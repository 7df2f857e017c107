"""Ownership of a partition: the block in which one writer, of all processes, may change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.log.files.state import State

if TYPE_CHECKING:
    from headwater.log.write.writer import Writer


class Ownership:
    """Taken and given back by `with`. A class, because a generator would cost two microseconds more."""

    __slots__ = ("_timeout", "_writer")

    def __init__(self, writer: Writer, timeout: float) -> None:
        self._writer = writer
        self._timeout = timeout

    def __enter__(self) -> State:
        return self._writer.acquire(self._timeout)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._writer.release(error)
