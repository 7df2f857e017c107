"""Following a leader whose log differs: what is removed here, and what is not removed whatever the leader says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster.replication.catch_up import CatchUp
from headwater.cluster.replication.following import Follower
from headwater.v1 import broker_pb2 as pb
from tests.cluster.held import ME, OTHER, Held, Threads


class Leader:
    """A leader that has one record of the first epoch, and says so as often as it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def to(self, _: object) -> Leader:
        return self

    async def ask(self, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        self.asked += 1
        answer = pb.ReplicaFetched(epoch=question.epoch, end=question.end, high_watermark=1)
        if question.end > 1:
            answer.diverging.epoch, answer.diverging.end = 1, 1
        await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize(
    ("acknowledged", "forced_epoch", "left"),
    [(1, 0, 1), (3, 0, 3), (3, 2, 1)],
    ids=["not acknowledged", "acknowledged", "given up by an operator"],
)
def test_what_was_acknowledged_is_cut_only_if_an_operator_gave_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acknowledged: int, forced_epoch: int, left: int
) -> None:
    monkeypatch.setattr("headwater.cluster.replication.following._FAILED", 0.0)

    async def run() -> None:
        held, leader = Held(tmp_path), Leader()
        held.state(1, ME)
        for _ in range(3):
            await held.append(by_all=False)
        held.follower_has(acknowledged)
        assert held.local.replica.high_watermark == acknowledged
        held.state(2, OTHER, forced_epoch=forced_epoch)
        links: Any = leader
        following = asyncio.create_task(Follower(held.local, links, Threads(), CatchUp(None)).follow(2, lambda: links))
        while leader.asked < 3:
            assert not following.done(), following.result()
            await asyncio.sleep(0.001)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        held.local.log.refresh()
        assert held.local.log.partition.bounds().end == left
        assert held.local.replica.high_watermark == min(acknowledged, left)

    asyncio.run(run())
