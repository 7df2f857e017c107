"""Commits that a consumer does not wait for: one at a time, the newest next, and no error is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from headwater.client.commits import Commits
from headwater.core.errors import StoreError
from headwater.embedded.memory_group import MemoryGroup
from headwater.log.clock import REAL_CLOCK
from headwater.streams.group import Commit, TopicKey
from headwater.streams.topic import TopicPartition

ORDERS = TopicPartition("orders", 0)
KEY = (b"0" * 16, 0)
PATIENCE = 300.0


class Gated(MemoryGroup):
    """A group whose commits wait at a gate, and fail when they are told to."""

    def __init__(self) -> None:
        super().__init__("g", REAL_CLOCK)
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.error: StoreError | None = None
        self.offsets: list[int] = []

    def commit(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> frozenset[TopicPartition]:
        self.waiting.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.offsets.append(commits[ORDERS].offset)
        return super().commit(member_id, commits, known=known)


def send(commits: Commits, group: Gated, offset: int) -> dict[TopicPartition, Commit]:
    """Send one more commit, and return the commits that are known to be set by then."""
    done, refused = commits.send(group, None, {ORDERS: Commit(KEY, offset)}, {KEY: 0})
    assert not refused
    return done


def test_one_is_on_its_way_and_the_newest_goes_next() -> None:
    commits, group = Commits(), Gated()
    assert send(commits, group, 1) == {}
    assert group.waiting.wait(PATIENCE)
    for offset in (2, 3, 4):
        assert send(commits, group, offset) == {}
    group.gate.set()
    while len(group.offsets) < 2:
        time.sleep(0.001)
    commits.finish()
    assert group.offsets == [1, 4]
    send(commits, group, 5)
    while not (done := send(commits, group, 5)):
        time.sleep(0.001)
    assert done == {ORDERS: Commit(KEY, 5)}
    assert group.offsets == [1, 4, 5]


def test_finishing_waits_for_what_is_on_its_way_and_forgets_what_is_not() -> None:
    commits, group = Commits(), Gated()
    send(commits, group, 1)
    assert group.waiting.wait(PATIENCE)
    send(commits, group, 2)
    finished = threading.Thread(target=commits.finish)
    finished.start()
    finished.join(0.1)
    assert finished.is_alive()
    group.gate.set()
    finished.join(PATIENCE)
    assert not finished.is_alive()
    time.sleep(0.05)
    assert group.offsets == [1]


def test_what_went_wrong_is_raised_once_and_tried_again() -> None:
    commits, group = Commits(), Gated()
    group.error = StoreError("out of order")
    group.gate.set()

    def send_until_told() -> None:
        while True:
            send(commits, group, 1)
            time.sleep(0.001)

    with pytest.raises(StoreError, match="out of order"):
        send_until_told()
    group.error = None
    commits.finish()
    send(commits, group, 1)
    while not send(commits, group, 1):
        time.sleep(0.001)
    assert group.offsets == [1]
