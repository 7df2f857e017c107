"""A busy sender writes at a pace that depends on how long writing takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

import headwater as hw
from headwater.embedded.appender import PartitionAppender
from headwater.streams import producer as producing
from headwater.streams.producer import IDLE

MILLISECOND = 1_000_000


@dataclass
class Pace:
    """A clock that a send moves by a tenth of a millisecond and a write by `write_ns`."""

    write_ns: int
    now_ns: int = 1_700_000_000 * 10**9
    writes: int = 0

    def tick(self) -> int:
        self.now_ns += MILLISECOND // 10
        return self.now_ns

    def append(self, *given: Any) -> None:
        PartitionAppender.append(PartitionAppender(), *given)
        self.writes += 1
        self.now_ns += self.write_ns


def test_a_clock_that_is_set_back_holds_up_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    with hw.open("memory:") as store:
        store.create_topic("orders")
        with store.producer("orders", linger=0.01) as out:
            with monkeypatch.context() as patch:
                patch.setattr(producing, "time_ns", lambda: time.time_ns() + 86_400 * 10**9)
                receipt = out.send(b"1")
            assert receipt.wait(300) == 0


@pytest.mark.parametrize(
    ("write_ms", "linger_ms", "cycle_ms"),
    [(0, 5, 5), (1, 5, 6), (3, 5, 15), (100, 5, 150), (3, 0, 3.1)],
    ids=["free", "quick", "slow", "slower than ten lingers", "no linger"],
)
def test_a_slow_disk_gets_larger_batches(
    monkeypatch: pytest.MonkeyPatch, write_ms: int, linger_ms: int, cycle_ms: float
) -> None:
    pace = Pace(write_ms * MILLISECOND)
    monkeypatch.setattr(producing, "time_ns", pace.tick)
    monkeypatch.setattr(IDLE, "call", lambda *_: None)
    with hw.open("memory:") as store:
        store.create_topic("orders")
        with store.producer("orders", linger=linger_ms / 1e3) as out:
            monkeypatch.setattr(out._appender, "append", pace.append)
            begun = pace.now_ns
            for _ in range(6_000):
                out.send(b"1")
            elapsed = (pace.now_ns - begun) / MILLISECOND
    assert elapsed / pace.writes == pytest.approx(cycle_ms, rel=0.15)
