"""A budget of bytes: callers that want more than is left wait, in the order in which they came. For one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable


class Budget:
    """So many bytes that can be lent. A wish for more than all of them is cut to all of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return len(self._waiting)

    async def take(self, size: int) -> int:
        """Wait until `size` bytes are there, and take them; how many were taken."""
        size = min(size, self._limit)
        if self._waiting or self.used + size > self._limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give(size)  # it was this one's turn just now
                else:
                    self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
                    self._lend()
                raise
        else:
            self.used += size
        return size

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.used -= size
        self._lend()

    def _lend(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self._limit:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class Hold:
    """Bytes that were taken from several budgets, until they are given back."""

    def __init__(self) -> None:
        self._taken: list[tuple[Budget, int]] = []

    async def take(self, budgets: Iterable[Budget], size: int) -> None:
        """Wait until so many bytes are there in each of them."""
        try:
            for budget in budgets:
                taken = await budget.take(size)
                self._taken.append((budget, taken))
        except BaseException:
            self.give_back()
            raise

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes."""
        for budget, taken in self._taken:
            budget.give(max(taken - size, 0))
        self._taken = [(budget, min(taken, size)) for budget, taken in self._taken]

    def give_back(self) -> None:
        """Give everything back; twice does no harm."""
        while self._taken:
            budget, size = self._taken.pop()
            budget.give(size)
