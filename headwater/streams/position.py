"""Positions: how far a group is in a partition."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """The position of a group in one partition: everything before `offset` is done."""

    topic: bytes
    partition: int
    sequence: int
    offset: int
    committed_ns: int
    generation: int

    @property
    def commits(self) -> int:
        """The number of times that it was set: by acknowledgements and, seldom, by resets. 0 with an older broker."""
        return self.sequence
