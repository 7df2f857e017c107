"""Consumers, scans and looks at the last records with a filter: the same records on every backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater import Store
from headwater.streams.topic import TopicPartition
from tests.support.backends import Handles
from tests.support.patience import wait_until

ON_A_CLUSTER = True

ORDERS = "key like 'orders.%' and header('kind') = 'new'"
_names = itertools.count()

Sent = tuple[bytes | None, bytes | None, dict[str, bytes]]
"""The key, the value and the headers of a record."""


@pytest.fixture
def store(handle: Handles) -> Store:
    return handle()


def send(store: Store, topic: str, frames: list[list[Sent]], partition: int = 0) -> None:
    """Append records, each list of them as one frame."""
    with store.producer(topic) as out:
        for frame in frames:
            for key, value, headers in frame:
                out.send(value, key=key, headers=headers or None, partition=partition)
            out.flush()


def polled(inbox: hw.Consumer, limit: int = 500) -> Iterator[hw.ConsumedRecord]:
    """Everything that matches and is there, acknowledged record by record."""
    while records := inbox.poll(limit):
        for record in records:
            yield record
            inbox.ack(record)


def position(store: Store, group: str, topic: str, partition: int = 0) -> int:
    committed = store.group(group).committed()
    return committed[store.describe_topic(topic).uuid, partition].offset


def mixed(count: int) -> list[Sent]:
    return [
        (b"orders.%d" % n if n % 3 else b"payments.%d" % n, b"%d" % n, {"kind": b"new" if n % 2 else b"old"})
        for n in range(count)
    ]


WANTED = [n for n in range(100) if n % 3 and n % 2]


# Against a model.

FILTERS: list[tuple[str, Callable[[int, Sent], bool]]] = [
    (ORDERS, lambda _, s: (s[0] or b"").startswith(b"orders.") and s[2].get("kind") == b"new"),
    ("key is null", lambda _, s: s[0] is None),
    ("value is null or header('kind') is null", lambda _, s: s[1] is None or "kind" not in s[2]),
    ("value contains 'a' and offset <> 3", lambda n, s: b"a" in (s[1] or b"") and n != 3),
    ("offset in (0, 4, 11)", lambda n, _: n in (0, 4, 11)),
    ("partition = 0", lambda _, __: True),
    ("partition > 0", lambda _, __: False),
    ("length(value) > 2 or key = 'orders.'", lambda _, s: len(s[1] or b"") > 2 or s[0] == b"orders."),
]
KEYS = st.sampled_from([None, b"orders.", b"orders.7", b"payments.1", b"\xff"])
HEADERS = st.sampled_from([{}, {"kind": b"new"}, {"kind": b"old", "more": b"1"}])
RECORDS = st.tuples(KEYS, st.sampled_from([b"", b"a", b"banana", b"xyz"]), HEADERS)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    frames=st.lists(st.lists(RECORDS, min_size=1, max_size=6), max_size=6),
    number=st.integers(0, len(FILTERS) - 1),
    limit=st.integers(1, 5),
    fetch_bytes=st.sampled_from([1, 4 << 20]),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_a_filter_gives_what_a_model_gives(
    store: Store, frames: list[list[Sent]], number: int, limit: int, fetch_bytes: int, compression: str
) -> None:
    where, model = FILTERS[number]
    topic = f"t{next(_names)}"
    store.create_topic(topic, compression=compression, compression_threshold=1)
    send(store, topic, frames)
    stored = [record for frame in frames for record in frame]
    expected = [n for n, record in enumerate(stored) if model(n, record)]
    with store.consumer(topic, group=f"g-{topic}", where=where, fetch_bytes=fetch_bytes) as inbox:
        records = list(polled(inbox, limit))
    assert [record.offset for record in records] == expected
    assert [(record.key, record.value, dict(record.headers)) for record in records] == [stored[n] for n in expected]
    if stored:
        assert position(store, f"g-{topic}", topic) == len(stored)
    with store.consumer(topic, where=where, fetch_bytes=fetch_bytes) as inbox:
        batches: list[hw.ConsumedBatch] = []
        while more := inbox.poll_batches():
            batches += more
    assert [offset for consumed in batches for offset in consumed.batch["offset"].to_pylist()] == expected
    scanned = store.topic(topic).scan(where=where, columns=["value", "offset"]).read_all()
    assert scanned["offset"].to_pylist() == expected
    assert scanned["value"].to_pylist() == [stored[n][1] for n in expected]
    recent = store.topic(topic).recent(3, where=where)
    assert sorted(record.offset for record in recent) == expected[-3:]


# Consumers.


def test_positions_pass_over_what_does_not_match(store: Store) -> None:
    store.create_topic("t")
    send(store, "t", [mixed(100)])
    with store.consumer("t", group="g", where=ORDERS) as inbox:
        records = inbox.poll()
        assert [record.offset for record in records] == WANTED
        for record in records[:-1]:
            inbox.ack(record)
        inbox.commit()
        assert position(store, "g", "t") == WANTED[-1], "the last one is not done"
        inbox.ack(records[-1])
        inbox.commit()
        assert position(store, "g", "t") == 100
        assert sum(inbox.lag().values()) == 0


def test_a_group_of_which_nothing_matches_moves_on(store: Store) -> None:
    store.create_topic("t")
    send(store, "t", [mixed(20), mixed(20)])
    with store.consumer("t", group="g", where="key = 'nobody'") as inbox:
        assert inbox.poll() == []
        inbox.commit()
        assert position(store, "g", "t") == 40
        send(store, "t", [[(b"nobody", b"here", {})]])
        wait_until(lambda: [record.offset for record in inbox.poll(timeout=0.1)] == [40])


def test_what_is_not_acknowledged_comes_again(store: Store) -> None:
    store.create_topic("t")
    send(store, "t", [mixed(100)])
    with store.consumer("t", group="g", where=ORDERS) as inbox:
        first = inbox.poll(3)
        inbox.ack(first[0])
        inbox.ack(first[2])
    with store.consumer("t", group="g", where=ORDERS) as inbox:
        assert [record.offset for record in inbox.poll()] == WANTED[1:]
    with store.consumer("t", group="g") as everything:
        assert everything.poll(1)[0].offset == WANTED[1]


def test_a_consumer_seeks_into_a_frame(store: Store) -> None:
    store.create_topic("t")
    send(store, "t", [mixed(100)])
    with store.consumer("t", where=ORDERS) as inbox:
        for start in (0, 50, 6, 99, 100):
            inbox.seek("t", 0, start)
            assert [record.offset for record in polled(inbox, 4)] == [n for n in WANTED if n >= start]
        inbox.seek("t", 0, 0)
        assert [record.offset for record in inbox.poll(2)] == WANTED[:2]
        assert inbox.poll_batches()[0].batch["offset"].to_pylist() == WANTED[2:]


def test_records_that_come_later_are_filtered_too(store: Store) -> None:
    store.create_topic("t", partitions=2)
    seen: list[tuple[int, bytes]] = []
    with store.consumer("t", where=ORDERS) as inbox:

        def come(count: int) -> bool:
            seen.extend((record.partition, record.value) for record in inbox.poll(timeout=0.1))
            return len(seen) == count

        for turn in range(4):
            headers: list[dict[str, bytes]] = [{"kind": b"old"}, {"kind": b"new"}]
            send(store, "t", [[(b"orders.%d" % turn, b"%d" % turn, kind) for kind in headers]], turn % 2)
            wait_until(partial(come, turn + 1))
    assert seen == [(0, b"0"), (1, b"1"), (0, b"2"), (1, b"3")]


def test_a_filter_names_the_partition(store: Store) -> None:
    store.create_topic("t", partitions=3)
    for number in range(3):
        send(store, "t", [mixed(4)], number)
    with store.consumer("t", where="partition <> 1 and offset < 2") as inbox:
        assert sorted((record.partition, record.offset) for record in polled(inbox)) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    rows = store.topic("t").scan(where="partition = 2", columns=["partition", "offset"]).read_all()
    assert rows.to_pydict() == {"partition": [2] * 4, "offset": [0, 1, 2, 3]}


def test_transactions_commit_over_what_does_not_match(store: Store) -> None:
    store.create_topic("t")
    store.create_topic("out")
    send(store, "t", [mixed(100)])
    with store.consumer("t", group="g", where=ORDERS) as inbox:
        moved = True
        while moved:
            with store.transaction(inbox) as block:
                out = block.producer("out")
                records = inbox.poll(5)
                for record in records:
                    out.send(record.value)
                    inbox.ack(record)
            moved = bool(records)
    assert [int(record.value) for record in store.topic("out").partition(0).records()] == WANTED
    assert position(store, "g", "t") >= WANTED[-1] + 1


# Mistakes.


@pytest.mark.parametrize("where", ["price >", "nowhere = 1", "key = 5", ""])
def test_a_wrong_filter_is_refused_before_anything_is_read(store: Store, where: str) -> None:
    store.create_topic("t")
    for call in (
        lambda: store.consumer("t", where=where),
        lambda: store.topic("t").scan(where=where),
        lambda: store.topic("t").recent(where=where),
    ):
        with pytest.raises(hw.InvalidFilter):
            call()


def test_a_topic_that_comes_later_and_does_not_fit_is_named(store: Store) -> None:
    store.create_topic("a.one", schema=pa.schema([("price", pa.float64())]))
    with store.consumer("a.*", where="price > 1", refresh_interval=0.01) as inbox:
        store.create_topic("a.two")
        with store.producer("a.one") as out:
            out.send({"price": 2.0})
        seen: list[float] = []
        refusals: list[str] = []

        def told() -> bool:
            try:
                seen.extend(record.value["price"] for record in inbox.poll(timeout=0.05))
            except hw.InvalidFilter as error:
                refusals.append(str(error))
            return bool(seen and refusals)

        wait_until(told)
        assert seen == [2.0]
        assert "topic 'a.two'" in refusals[0]
        assert TopicPartition("a.two", 0) in inbox.assignment()
