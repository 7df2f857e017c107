"""A scan in an event loop: Arrow batches one after the other, each read in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Self

import pyarrow as pa

from headwater.aio.threads import Threads, Turns


class Scan:
    """Batches, by `async for`; or all of them as a table; or a reader, for those who read in threads of their own.

    Being cancelled loses no batch: the next one asked for is the one that was not handed out.
    """

    def __init__(self, opens: Callable[[], pa.RecordBatchReader], threads: Threads) -> None:
        self._opens = opens
        self._turns = Turns(threads)
        self._reader: pa.RecordBatchReader | None = None
        self._unseen: deque[pa.RecordBatch] = deque()

    async def reader(self) -> pa.RecordBatchReader:
        """The reader itself: DuckDB, Polars and pandas take it. Reading from it blocks, so do it in a thread."""
        return await self._turns.run(self._open)

    async def read_all(self) -> pa.Table:
        """All batches that were not handed out yet, as one table."""
        return await self._turns.run(self._read_all)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await self._turns.run(self._next, self._put_back)
        if batch is None:
            raise StopAsyncIteration
        return batch

    # In threads.

    def _open(self) -> pa.RecordBatchReader:
        if self._reader is None:
            self._reader = self._opens()
        return self._reader

    def _next(self) -> pa.RecordBatch | None:
        if self._unseen:
            return self._unseen.popleft()
        try:
            return self._open().read_next_batch()
        except StopIteration:
            return None

    def _put_back(self, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            self._unseen.appendleft(batch)

    def _read_all(self) -> pa.Table:
        reader = self._open()
        batches = [*self._unseen, *reader]
        self._unseen.clear()
        return pa.Table.from_batches(batches, reader.schema)
