"""A replica that a broker holds, in an event loop, without a broker: for tests of what it tells whom, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.replica import FollowerRequest
from headwater.log import Appended, DirectoryPartition, encode
from headwater.streams.topic import TopicPartition

ME, OTHER = 0, 1
PLACE = TopicPartition("numbers", 0)


class Held:
    """A replica of two, in an event loop."""

    def __init__(self, path: Path) -> None:
        self.told: list[TopicPartition] = []
        log = DurableLog(DirectoryPartition(path))
        self.local = LocalReplica((bytes(16), 0), PLACE, log, ME, 2, self.told.append)
        self.local.become(10)

    def state(self, epoch: int, leader: int, *, forced_epoch: int = 0) -> None:
        """The cluster has elected; the log takes on its role."""
        in_sync = {ME: 10, OTHER: 20}
        state = PartitionState((ME, OTHER), in_sync, leader, in_sync[leader], epoch, forced_epoch)
        self.local.observe(state, 100 + epoch)
        if leader == ME:
            self.local.log.lead(epoch)
            self.local.led = epoch
            self.local.appended()
        else:
            self.local.log.follow(epoch)

    def append(self, *, by_all: bool = True) -> asyncio.Task[Appended]:
        """One record, and the wait for its acknowledgement."""
        with self.local.log.leading():
            appended = self.local.log.partition.append(encode([b"x"]))
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        done.set_result(appended)
        return asyncio.create_task(self.local.acknowledged(done, self.local.led, by_all=by_all))

    def follower_has(self, end: int) -> None:
        """The other one asks, and has so much."""
        epoch = self.local.replica.epoch
        last = self.local.log.epoch_before(end)
        self.local.fetch(FollowerRequest(OTHER, 20, epoch, end, end, last))


class Threads:
    """The work of a disk, done at once."""

    async def read(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    write = read


async def soon() -> None:
    """Let whoever can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def in_loop(test: Callable[[Held], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test that gets a replica, and runs in an event loop."""

    def run(tmp_path: Path) -> None:
        async def body() -> None:
            async with asyncio.timeout(300):
                await test(Held(tmp_path))

        asyncio.run(body())

    run.__name__ = test.__name__
    return run
