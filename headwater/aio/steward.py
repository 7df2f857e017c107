"""The steward in an event loop: passes run in threads, in the background or on demand."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from headwater.aio.threads import Threads
from headwater.core.config import StewardConfig
from headwater.streams.steward import Steward as SyncSteward
from headwater.streams.steward import StewardReport


class Steward:
    """Cleans a store. `async with store.steward():` does so in the background, in a thread of its own."""

    def __init__(self, steward: SyncSteward, threads: Threads) -> None:
        self._steward = steward
        self._threads = threads

    @property
    def config(self) -> StewardConfig:
        """Its configuration."""
        return self._steward.config

    @property
    def last_report(self) -> StewardReport | None:
        """The report of the last pass."""
        return self._steward.last_report

    async def run_once(self, *, dry_run: bool = False) -> StewardReport:
        """One pass over all topics; with `dry_run` it only tells what it would do."""
        return await self._threads.run(lambda: self._steward.run_once(dry_run=dry_run))

    async def start(self) -> Self:
        """Clean in the background, now and then every `interval`, until `stop`."""
        await self._threads.run(self._steward.start, lambda started: self._threads.submit(started.stop))
        return self

    async def stop(self) -> None:
        """Finish the partition at hand, and end. Stopping twice does no harm."""
        if not self._threads.closed:
            await self._threads.run(self._steward.stop)

    async def run_forever(self) -> None:
        """Clean now and then every `interval`, until cancelled; then finish the partition at hand."""
        async with self:
            await self._threads.loop.create_future()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
