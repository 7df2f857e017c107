"""Automatic commits: after so many records, or after a time, on every kind of store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headwater as hw
from headwater import InvalidConfiguration, Store
from tests.support.backends import Handles
from tests.support.patience import wait_until

NEVER = 3600


@pytest.fixture
def store(handle: Handles) -> Store:
    store = handle()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(100)])
    return store


def position(store: Store) -> int:
    return next((position.offset for position in store.group("g").committed().values()), 0)


def test_positions_are_committed_when_so_many_records_are_done(store: Store) -> None:
    with store.consumer("orders", group="g", auto_ack=True, auto_commit_records=25) as inbox:
        seen: list[int] = []
        for _ in range(10):
            inbox.poll(10, timeout=60)
            seen.append(position(store))
        assert seen == [0, 0, 0, 30, 30, 30, 60, 60, 60, 90]
        inbox.commit()  # what the last poll has handed out is not done yet
        assert position(store) == 90
        inbox.poll()
        assert position(store) == 90
        inbox.commit()
        assert position(store) == 100


def test_closing_commits_all_that_is_done(store: Store) -> None:
    with store.consumer("orders", group="g", auto_ack=True, auto_commit_records=1000) as inbox:
        inbox.poll(10, timeout=60)
        inbox.poll(10, timeout=60)
        assert position(store) == 0
    assert position(store) == 20


def test_a_failing_handler_leaves_what_it_was_given_last(store: Store) -> None:
    def fail() -> None:
        with store.consumer("orders", group="g", auto_ack=True, auto_commit_interval=NEVER) as inbox:
            inbox.poll(10, timeout=60)
            inbox.poll(10, timeout=60)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert position(store) == 10


def test_positions_are_committed_after_a_time(store: Store) -> None:
    with store.consumer("orders", group="g", auto_ack=True, auto_commit_interval=0.2) as inbox:
        inbox.poll(10, timeout=60)

        def is_committed() -> bool:
            inbox.poll(1, timeout=60)
            return position(store) >= 10

        wait_until(is_committed)
    with store.consumer("orders", group="h", auto_ack=True, auto_commit_interval=NEVER) as inbox:
        for _ in range(5):
            inbox.poll(10, timeout=60)
        assert {position.offset for position in store.group("h").committed().values()} == {0}


def test_a_poll_that_waits_commits_when_it_is_time(store: Store) -> None:
    """However long the consumer would otherwise sleep."""
    options: dict[str, Any] = {
        "auto_ack": True,
        "auto_commit_interval": 0.1,
        "auto_commit_records": 1000,
        "refresh_interval": NEVER,
    }
    inbox = store.consumer("orders", group="g", **options)
    inbox.poll(100, timeout=60)
    waiting = threading.Thread(target=lambda: inbox.poll(timeout=NEVER))
    waiting.start()
    try:
        wait_until(lambda: position(store) == 100)
    finally:
        with store.producer("orders") as out:
            out.send(b"last")
        waiting.join()
        inbox.close()


def test_a_partition_leaves_with_all_that_is_done(store: Store, handle: Handles) -> None:
    store.alter_topic("orders", partitions=2)
    with store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(10)], partition=1)
    first = store.consumer("orders", group="g", auto_ack=True, auto_commit_records=1000, refresh_interval=0.01)
    got = 0
    while got < 110:
        got += len(first.poll(200, timeout=60))
    first.poll()
    with handle().consumer("orders", group="g", refresh_interval=0.01) as second:

        def has_one() -> bool:
            first.poll()
            return len(second.assignment()) == 1

        wait_until(has_one)
        assert second.poll() == []
    first.close()


def test_a_transaction_commits_by_itself(store: Store) -> None:
    with store.consumer("orders", group="g", auto_ack=True, auto_commit_records=1) as inbox:
        with store.transaction(inbox):
            inbox.poll(10, timeout=60)
            inbox.poll(10, timeout=60)
            assert position(store) == 0
        assert position(store) == 20


@pytest.mark.parametrize("options", [{"auto_commit_records": 5}, {"auto_commit_interval": 1.0}])
def test_it_needs_automatic_acknowledgement(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match="auto_ack=True"):
        store.consumer("orders", group="g", **options)
    with pytest.raises(InvalidConfiguration, match="auto_ack=True"):
        hw.ConsumerConfig(**options)
    hw.ConsumerConfig(auto_ack=True, **options)
