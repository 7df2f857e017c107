"""Heartbeats: members stay members for as long as their program lives, and not much longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import headwater as hw
from headwater.client.group import RemoteGroup
from headwater.client.heartbeats import Heartbeats
from headwater.core.errors import BrokerUnavailable
from tests.support.patience import PACES, wait_until
from tests.support.served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served"), session=60.0) as served:
        served.store.create_topic("orders")
        yield served


def members(served: Served, group: str) -> int:
    return len(served.store.group(group).describe().members)


def test_a_dead_member_is_noticed_after_ten_seconds() -> None:
    assert hw.BrokerConfig().session_timeout == 10
    assert hw.BrokerConfig().heartbeat_interval * 3 < 10
    assert hw.ClientConfig().heartbeat * 3 < 10


def test_a_client_asks_for_the_time_that_it_may_be_silent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    store = served.connect(hw.ClientConfig(session_timeout=0.3, timeout=300))
    monkeypatch.setattr(RemoteGroup, "heartbeat", lambda _: None)
    with store.consumer("orders", group="silent") as inbox:
        assert len(inbox.assignment()) == 1
        wait_until(lambda: not members(served, "silent"))


def test_heartbeats_are_as_frequent_as_the_broker_asks_for(tmp_path: Path) -> None:
    def stays(pace: int) -> bool:
        with Served(tmp_path / str(pace), session=1.0 * pace) as served:
            served.store.create_topic("orders")
            store = served.connect(hw.ClientConfig(heartbeat=3600, timeout=300))
            with store.consumer("orders", group="g") as inbox:
                inbox.assignment()
                before = served.store.group("g").describe().members
                threading.Event().wait(3.0 * pace)
                return served.store.group("g").describe().members == before

    assert any(stays(pace) for pace in PACES)


class Groups:
    """Groups, one of whose coordinators does not answer."""

    def __init__(self) -> None:
        self.heard = dict.fromkeys(("silent", "lively"), 0)
        self.answer = threading.Event()
        self.groups = [cast(Any, Group(self, name)) for name in self.heard]

    def opened(self) -> list[RemoteGroup]:
        return self.groups


class Group:
    def __init__(self, groups: Groups, name: str) -> None:
        self._groups = groups
        self.name = name

    def heartbeat(self) -> None:
        self._groups.heard[self.name] += 1
        if self.name == "silent":
            self._groups.answer.wait()
            raise BrokerUnavailable("hw://b", "Heartbeat", 5.0, "no answer")


def test_a_coordinator_that_does_not_answer_costs_no_other_group_its_members() -> None:
    groups = Groups()
    heartbeats = Heartbeats(groups.opened, 3600)
    heartbeats.begin()
    heartbeats.hurry(0.01)
    try:
        wait_until(lambda: groups.heard["lively"] >= 5)
        assert groups.heard["silent"] == 1
        groups.answer.set()
        wait_until(lambda: groups.heard["silent"] >= 5)
    finally:
        groups.answer.set()
        heartbeats.close()
