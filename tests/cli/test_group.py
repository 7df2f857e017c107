"""`hw group` and `hw lag`, on stores in directories and behind brokers."""

from __future__ import annotations

import pytest

from headwater.cli.groups.lag import sparkline
from tests.support.command import Command, hw, local_hw

__all__ = ["hw", "local_hw"]


@pytest.fixture
def filled(hw: Command) -> Command:
    """A topic with 10 records in each of two partitions, and a group that has read 4 and 0 of them."""
    with hw.open() as store:
        store.create_topic("orders", 2)
        with store.producer("orders") as out:
            for partition in range(2):
                out.send_batch([b"x"] * 10, partition=partition)
        with store.consumer("orders", group="billing", static=(0, 1)) as inbox:
            left = 4
            while left:
                for record in inbox.poll(20, timeout=300):
                    if record.partition == 0 and record.offset < 4:
                        inbox.ack(record)
                        left -= 1
    return hw


def positions(hw: Command, group: str) -> list[int]:
    return [partition["position"] for partition in hw.json("group", "describe", group)["partitions"]]


def test_groups_are_listed_and_described(filled: Command) -> None:
    (listed,) = filled.json("group", "list")["groups"]
    assert (listed["name"], listed["lag"], listed["topics"], listed["members"]) == ("billing", 16, ["orders"], 0)
    described = filled.json("group", "describe", "billing")
    assert [(partition["position"], partition["end"], partition["lag"]) for partition in described["partitions"]] == [
        (4, 10, 6),
        (0, 10, 10),
    ]
    filled.refused("group", "describe", "bling", text="group 'bling' does not exist")
    assert len(filled.json("group", "list")["groups"]) == 1, "asking does not make one"


def test_a_reset_shows_the_difference_and_then_does_it(filled: Command) -> None:
    reset = ["group", "reset", "billing"]
    changes = filled.json(*reset, "--to", "-3", "--dry-run")["changes"]
    assert [(change["from"], change["to"]) for change in changes] == [(4, 7), (0, 7)]
    assert positions(filled, "billing") == [4, 0]
    filled.refused(*reset, "--to", "-3", text="Give --yes")
    assert positions(filled, "billing") == [4, 0]
    filled(*reset, "--to", "-3", "--yes", "--partition", 1)
    assert positions(filled, "billing") == [4, 7]
    filled(*reset, "--to", "start", "--yes")
    assert positions(filled, "billing") == [0, 0]
    filled("group", "reset", "newcomer", "--to", "end", "--topic", "orders", "--yes")
    assert positions(filled, "newcomer") == [10, 10]
    filled.refused(*reset, "--to", "99", text="is not there yet")
    filled.refused("group", "reset", "nobody", "--to", "end", text="name a --topic")


def test_a_reset_moves_a_member_that_runs(filled: Command) -> None:
    with filled.open() as store, store.consumer("orders", group="live") as inbox:
        while sum(inbox.lag().values()):
            for record in inbox.poll(timeout=300):
                inbox.ack(record)
        inbox.commit()
        filled("group", "reset", "live", "--to", "8", "--yes")
        again: list[tuple[int, int]] = []
        while len(again) < 4:
            again += [(record.partition, record.offset) for record in inbox.poll(timeout=300)]
    assert sorted(again) == [(0, 8), (0, 9), (1, 8), (1, 9)]


def test_lag_is_told_by_group_and_by_its_exit_code(filled: Command) -> None:
    groups = filled.json("lag")["groups"]
    assert {name: group["lag"] for name, group in groups.items()} == {"billing": 16}
    assert filled.json("lag", "billing", "--max", 16)
    filled.verdict("lag", "--max", 15)


def test_a_group_is_forgotten_where_it_is_kept(filled: Command) -> None:
    filled.refused("group", "delete", "billing", text="Give --yes")
    with filled.open() as store, store.consumer("orders", group="live"):
        filled.refused("group", "delete", "live", "--yes", text="has living members")
    filled("group", "delete", "billing", "--yes")
    assert [group["name"] for group in filled.json("group", "list")["groups"]] == []


def test_a_sparkline_shows_how_it_was() -> None:
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert sparkline([1, 1_000_000]) == "▂█"


def test_to_look_at_a_group_does_not_make_it_one(filled: Command) -> None:
    filled.refused("lag", "bling", text="group 'bling' does not exist")
    filled.refused("lag", "bling", "--max", "5", text="group 'bling' does not exist")
    assert "bling" not in [group["name"] for group in filled.json("group", "list")["groups"]]
    filled.refused("group", "describe", "bling", text="group 'bling' does not exist")
