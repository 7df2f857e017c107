"""Acknowledgements: which records of a partition are done, in whatever order they got done."""

from __future__ import annotations

from bisect import bisect_right


class AckTracker:
    """The position before which everything is done, and the stretches behind it that are done too."""

    __slots__ = ("_ends", "_starts", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self._starts: list[int] = []
        self._ends: list[int] = []

    def ack(self, first: int, end: int) -> None:
        """Everything from `first` up to, and without, `end` is done."""
        if end <= max(first, self.position):
            return
        if first <= self.position:
            self.position = end
            self._absorb()
            return
        left = bisect_right(self._ends, first - 1) if self._ends else 0
        right = left
        while right < len(self._starts) and self._starts[right] <= end:
            right += 1
        if left < right:
            first = min(first, self._starts[left])
            end = max(end, self._ends[right - 1])
        self._starts[left:right] = [first]
        self._ends[left:right] = [end]

    def _absorb(self) -> None:
        """Stretches that the position has reached belong to it."""
        while self._starts and self._starts[0] <= self.position:
            self.position = max(self.position, self._ends[0])
            del self._starts[0], self._ends[0]

    @property
    def pending(self) -> int:
        """The number of offsets behind the position that are done."""
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True))
