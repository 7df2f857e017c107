"""Consumers: what they read, from where, and what counts as done. On every kind of store."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import Consumer, Store, TopicPartition
from headwater.streams.start import Start
from headwater.testing import ManualClock
from tests.support.backends import Handles
from tests.support.patience import wait_until

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def store(handle: Handles) -> Store:
    return handle()


def fill(store: Store, topic: str, count: int, *, partition: int = 0, first: int = 0) -> None:
    """Append records whose values are their numbers, as one frame."""
    with store.producer(topic) as out:
        out.send_batch([str(number).encode() for number in range(first, first + count)], partition=partition)


def take(inbox: hw.Consumer, count: int) -> list[int]:
    """The next so many values: they may come some at a time."""
    numbers: list[int] = []
    while len(numbers) < count:
        numbers += values(inbox.poll(timeout=300))
    return numbers


def values(records: list[hw.ConsumedRecord]) -> list[int]:
    return [int(record.value) for record in records]


def drain(consumer: Consumer, *, ack: bool = True) -> list[int]:
    """All that is there now."""
    numbers: list[int] = []
    while records := consumer.poll():
        for record in records:
            numbers.append(int(record.value))
            if ack:
                consumer.ack(record)
    consumer.commit()
    return numbers


def committed(store: Store, group: str, partition: TopicPartition = ORDERS) -> int | None:
    position = store.group(group).position((store.describe_topic(partition.topic).uuid, partition.partition))
    return None if position is None else position.offset


# Reading, and its start.


def test_one_topic_is_read_in_order(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 1000)
    with store.consumer("orders") as inbox:
        assert drain(inbox) == list(range(1000))
        assert inbox.poll() == []
        assert inbox.poll(timeout=0.02) == []
        fill(store, "orders", 2, first=1000)
        assert take(inbox, 2) == [1000, 1001]
        assert inbox.statistics().delivered_records == 1002


def test_several_topics_and_patterns(store: Store) -> None:
    for number, name in enumerate(["orders.eu", "orders.us", "returns", "__orders.hidden"]):
        if not name.startswith("__"):
            store.create_topic(name, partitions=2)
            fill(store, name, 1, first=number)
    with store.consumer(["orders.eu", "returns"]) as inbox:
        assert sorted(drain(inbox)) == [0, 2]
    with store.consumer("orders.*") as inbox:
        assert sorted(drain(inbox)) == [0, 1]
        assert {partition.topic for partition in inbox.assignment()} == {"orders.eu", "orders.us"}


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", 0), ("latest", 10), (3, 3), (10, 10), (-2, 8), (-99, 0)],
)
def test_where_it_starts(store: Store, start: Start, expected: int) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", start=start) as inbox:
        assert drain(inbox) == list(range(expected, 10))
        fill(store, "orders", 1, first=10)
        assert values(inbox.poll(timeout=300)) == [10]


def test_it_starts_at_a_time(store: Store) -> None:
    store.create_topic("orders")
    with store.producer("orders") as out:
        for number in range(10):
            out.send(str(number).encode(), timestamp=number * 1000)
    with store.consumer("orders", start=hw.time(4500)) as inbox:
        assert drain(inbox) == [5, 6, 7, 8, 9]
    with store.consumer("orders", start=hw.time(99_999)) as inbox:
        assert drain(inbox) == []


def test_a_group_goes_on_from_its_position_wherever_others_would_start(handle: Handles) -> None:
    store = handle()
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="billing") as inbox:
        for record in inbox.poll(4):
            inbox.ack(record)
    for start in ("latest", "earliest", 0):
        with handle().consumer("orders", group="billing", start=start) as inbox:
            assert values(inbox.poll(2)) == [4, 5]


def test_an_offset_that_is_not_there_is_an_error_each_time(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 3)
    with store.consumer("orders", group="g", start=7) as inbox:
        for _ in range(3):
            with pytest.raises(hw.OffsetOutOfRange):
                inbox.poll()


def test_latest_is_where_the_group_first_began_even_if_nothing_was_done(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 5)
    with store.consumer("orders", group="g", start="latest") as inbox:
        assert inbox.poll() == []
        fill(store, "orders", 3, first=5)
        assert take(inbox, 3) == [5, 6, 7]  # and it fails before it has done any
    with store.consumer("orders", group="g", start="latest") as inbox:
        assert values(inbox.poll()) == [5, 6, 7]


def test_a_topic_may_come_later(handle: Handles) -> None:
    store = handle()
    with handle().consumer("orders", start="latest", group="g", refresh_interval=0.01) as inbox:
        assert inbox.poll(timeout=0.02) == []
        store.create_topic("orders")
        fill(store, "orders", 3)
        assert take(inbox, 3) == [0, 1, 2]


def test_new_partitions_are_read_from_their_beginning(handle: Handles) -> None:
    store = handle()
    store.create_topic("orders")
    with handle().consumer("orders", start="latest", group="g", refresh_interval=0.01) as inbox:
        assert inbox.poll() == []
        store.alter_topic("orders", partitions=3)
        fill(store, "orders", 5, partition=2)
        assert take(inbox, 5) == [0, 1, 2, 3, 4]
        assert len(inbox.assignment()) == 3


def test_a_topic_made_anew_is_another_one(handle: Handles) -> None:
    store = handle()
    store.create_topic("orders")
    fill(store, "orders", 5)
    with handle().consumer("orders", group="g", refresh_interval=0.01) as inbox:
        assert drain(inbox) == [0, 1, 2, 3, 4]
        store.delete_topic("orders")
        time.sleep(0.02)
        assert inbox.poll(timeout=0.02) == []
        store.create_topic("orders")
        fill(store, "orders", 2)
        assert take(inbox, 2) == [0, 1]


def test_batches(store: Store) -> None:
    store.create_topic("trades", schema=pa.schema([("price", pa.float64())]))
    with store.producer("trades") as out:
        out.send_batch(pa.table({"price": [1.0, 2.0]}))
        out.send_batch(pa.table({"price": [3.0]}))
    with store.consumer("trades", group="g") as inbox:
        batches = inbox.poll_batches(timeout=300)
        assert [price for read in batches for price in read.batch.column("price").to_pylist()] == [1.0, 2.0, 3.0]
        assert [(read.start, read.end) for read in batches][-1][1] == 3
        for consumed in batches:
            inbox.ack(consumed)
        assert inbox.statistics().delivered_records == 3
        assert inbox.poll_batches() == []
        assert committed(store, "g", TopicPartition("trades", 0)) == 3


def test_what_is_left_of_a_poll_comes_as_batches(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders") as inbox:
        assert values(inbox.poll(3)) == [0, 1, 2]
        assert [(read.start, read.end, read.batch.num_rows) for read in inbox.poll_batches()] == [(3, 10, 7)]


def test_iterating_waits_until_the_consumer_is_closed(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    seen = []
    with store.consumer("orders") as inbox:
        for record in inbox:
            seen.append(int(record.value))
            if record.offset == 4:
                inbox.close()
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_poll_takes_at_least_one(store: Store, limit: int) -> None:
    with store.consumer("orders") as inbox, pytest.raises(hw.InvalidConfiguration):
        inbox.poll(limit)


def test_no_partition_starves(store: Store) -> None:
    store.create_topic("orders", partitions=3)
    for number in range(3):
        fill(store, "orders", 1000, partition=number)
    with store.consumer("orders") as inbox:
        assert {record.partition for _ in range(3) for record in inbox.poll(10)} == {0, 1, 2}


# Acknowledgements.


def test_what_is_acknowledged_out_of_order_counts_when_the_gap_is_closed(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g") as inbox:
        records = inbox.poll()
        for number in (1, 2, 5):
            inbox.ack(records[number])
        inbox.commit()
        assert committed(store, "g") == 0
        assert inbox.lag() == {ORDERS: 7}
        inbox.ack(records[0])
        inbox.commit()
        assert committed(store, "g") == 3
        inbox.ack_range("orders", 0, 3, 10)
        inbox.commit()
        assert committed(store, "g") == 10
        assert inbox.lag() == {ORDERS: 0}


def test_a_commit_is_seen_by_other_handles_at_once(handle: Handles) -> None:
    store, other = handle(), handle()
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g") as inbox:
        for record in inbox.poll():
            inbox.ack(record)
            inbox.commit()
            assert committed(other, "g") == record.offset + 1


def test_nothing_is_done_before_it_was_handed_out(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g") as inbox:
        inbox.poll(3)
        inbox.ack_range("orders", 0, 0, 1000)
        inbox.ack_range("orders", 0, 8, 9)
        inbox.commit()
        assert committed(store, "g") == 3
        assert values(inbox.poll()) == list(range(3, 10))


def test_with_auto_ack_a_record_is_done_when_the_next_poll_comes(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g", auto_ack=True) as inbox:
        inbox.poll(4)
        assert committed(store, "g") == 0
        inbox.poll(4)
        assert committed(store, "g") == 4
    assert committed(store, "g") == 8


def test_with_auto_ack_records_that_an_iteration_did_not_reach_are_not_done(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g", auto_ack=True) as inbox:
        for record in inbox:
            if record.offset == 2:
                break
        assert values(inbox.poll(2)) == [3, 4]
    assert committed(store, "g") == 5


def test_with_auto_ack_what_a_failing_handler_was_given_is_not_done(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)

    def work() -> None:
        with store.consumer("orders", group="g", auto_ack=True) as inbox:
            for record in inbox:
                int("x") if record.offset == 3 else inbox.ack(record)

    with pytest.raises(ValueError, match="invalid literal"):
        work()
    assert committed(store, "g") == 3


def test_gaps_of_a_compaction_do_not_hold_the_position(store: Store) -> None:
    store.create_topic("orders", compact=True)
    with store.producer("orders", batch_records=4) as out:
        for number in range(40):
            out.send(str(number).encode(), key=str(number % 3).encode())
    partition = store.topic("orders").partition(0)
    partition.roll()
    partition.compact()
    with store.consumer("orders", group="g") as inbox:
        assert drain(inbox) == [37, 38, 39]
        inbox.commit()
        assert committed(store, "g") == 40
        assert inbox.lag() == {ORDERS: 0}


def test_an_end_that_a_compaction_has_emptied_is_done(store: Store, clock: ManualClock) -> None:
    store.create_topic("orders", compact=True, delete_grace=10)
    with store.producer("orders") as out:
        out.send(b"1", key=b"a")
        out.send(None, key=b"a")
    partition = store.topic("orders").partition(0)
    partition.roll()
    for _ in range(2):
        clock.advance(11)
        partition.compact()
    assert list(partition.records()) == []
    with store.consumer("orders", group="g") as inbox:
        assert inbox.poll(timeout=0.02) == []
        inbox.commit()
        assert (committed(store, "g"), inbox.lag()) == (2, {ORDERS: 0})
        with store.producer("orders") as out:
            out.send(b"2", key=b"a")
        assert values(inbox.poll(timeout=300)) == [2]


def overtake(store: Store, inbox: hw.Consumer) -> None:
    """Acknowledge the first ten records of a consumer, and remove the next ten before it can read them."""
    for record in inbox.poll(10):
        inbox.ack(record)
    inbox.pause()
    assert inbox.poll() == []  # from now on nothing is fetched ahead either
    fill(store, "orders", 10, first=10)
    store.topic("orders").partition(0).roll()
    fill(store, "orders", 5, first=20)
    store.topic("orders").partition(0).delete_before(20)
    inbox.resume()


def test_retention_moves_a_slow_consumer_on_and_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g", fetch_bytes=1, on_loss="skip") as inbox:
        overtake(store, inbox)
        with caplog.at_level(logging.WARNING):
            assert drain(inbox) == [20, 21, 22, 23, 24]
        assert "orders/0: offsets 10 to 20 (exclusive) are gone before they were read" in caplog.text
    assert committed(store, "g") == 25


def lost_after(inbox: hw.Consumer, timeout: float, seen: list[int]) -> hw.DataLost:
    """Poll until records turn out to be lost; what comes before that is seen."""
    losses: list[hw.DataLost] = []

    def lost() -> bool:
        try:
            seen.extend(values(inbox.poll(timeout=timeout)))
        except hw.DataLost as error:
            losses.append(error)
        return bool(losses)

    wait_until(lost)
    return losses[0]


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_retention_that_overtakes_a_consumer_raises_until_it_seeks(store: Store, timeout: float) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders", 10)
    seen: list[int] = []
    with store.consumer("orders", group="g", fetch_bytes=1) as inbox:
        overtake(store, inbox)
        fill(store, "orders", 3, partition=1, first=100)
        for _ in range(3):
            lost = lost_after(inbox, timeout, seen)
            assert (lost.topic, lost.partition, lost.start, lost.end) == ("orders", 0, 10, 20)
            assert "on_loss='skip'" in str(lost)
        assert seen == [100, 101, 102], "the other partition is not held up"
        inbox.commit()
        assert committed(store, "g") == 10, "nothing is passed over"
    with store.consumer("orders", group="g") as inbox:
        assert lost_after(inbox, timeout, seen).start == 10, "whoever takes over is told too"
        inbox.seek("orders", 0, 20)
        assert [number for number in drain(inbox) if number < 100] == [20, 21, 22, 23, 24]
    assert committed(store, "g") == 25


def test_batches_that_were_removed_raise_too(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", fetch_bytes=1, where="value <> '21'") as inbox:
        overtake(store, inbox)
        with pytest.raises(hw.DataLost, match="offsets 10 to 20"):
            inbox.poll_batches()
        inbox.seek("orders", 0, "earliest")
        assert inbox.poll_batches()[0].batch["offset"].to_pylist() == [20, 22, 23, 24]


def test_what_to_do_about_losses_is_one_of_two(store: Store) -> None:
    with pytest.raises(hw.InvalidConfiguration, match="on_loss"):
        store.consumer("orders", on_loss="ignore")


def test_damage_holds_up_its_own_partition_and_passes_nothing_over(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=2)
        for first in range(0, 30, 10):
            fill(store, "orders", 10, first=first)
        fill(store, "orders", 5, partition=1, first=100)
    log = next((tmp_path / "store" / "orders" / "0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    with hw.open(tmp_path / "store") as store, store.consumer("orders", group="g") as inbox:
        records = inbox.poll()
        assert sorted(values(records)) == [*range(10), *range(100, 105)]
        for record in records:
            inbox.ack(record)
        for _ in range(3):
            with pytest.raises(hw.Damaged):
                inbox.poll()
        assert committed(store, "g") == 10
        inbox.seek("orders", 0, 20)
        assert drain(inbox) == list(range(20, 30))


# Moving about.


def test_seek_reads_elsewhere_and_moves_the_group_only_forwards(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g") as inbox:
        for record in inbox.poll(5):
            inbox.ack(record)
        inbox.commit()
        inbox.seek("orders", 0, 1)
        for record in inbox.poll(2):
            inbox.ack(record)
        inbox.commit()
        assert committed(store, "g") == 5
        inbox.seek("orders", 0, -2)
        inbox.commit()
        assert committed(store, "g") == 5
        assert drain(inbox) == [8, 9]
        assert committed(store, "g") == 10


@pytest.mark.parametrize(("position", "expected"), [(-3, 7), (2, 2), ("latest", 10), (hw.time(0), 0)])
def test_reset_moves_the_group(store: Store, position: Start, expected: int) -> None:
    store.create_topic("orders")
    fill(store, "orders", 10)
    with store.consumer("orders", group="g") as inbox:
        drain(inbox)
        inbox.reset(position)
        assert committed(store, "g") == expected
        assert drain(inbox) == list(range(expected, 10))
    assert committed(store, "g") == 10


def test_pause_and_resume(store: Store) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders", 1, first=1)
    fill(store, "orders", 1, partition=1, first=2)
    with store.consumer("orders") as inbox:
        inbox.assignment()
        inbox.pause(ORDERS)
        assert values(inbox.poll()) == [2]
        inbox.resume(ORDERS)
        assert values(inbox.poll()) == [1]
        inbox.pause()
        fill(store, "orders", 1, first=3)
        assert inbox.poll(timeout=0.02) == []
        inbox.resume()
        assert values(inbox.poll()) == [3]


# The handle.


@pytest.mark.parametrize("name", ["", "a/b", "..", "__mine", "x" * 256, "ü"])
def test_a_group_needs_a_name_that_can_be_one(store: Store, name: str) -> None:
    with pytest.raises(hw.InvalidName):
        store.consumer("orders", group=name)


@pytest.mark.parametrize("static", [(2, 2), (-1, 2), (0, 0), (0, 10_001), (0,), (0.0, 2), (False, 2), 1])
def test_a_fixed_share_must_be_one(store: Store, static: Any) -> None:
    with pytest.raises(hw.InvalidConfiguration, match="static must be"):
        store.consumer("orders", static=static)


def test_fixed_shares_make_a_whole(store: Store) -> None:
    store.create_topic("orders", partitions=5)
    for number in range(5):
        fill(store, "orders", 1, partition=number, first=number)
    numbers: list[int] = []
    for number in range(3):
        with store.consumer("orders", group="g", static=(number, 3)) as inbox:
            numbers += drain(inbox)
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    with store.consumer("orders", group="g") as inbox:
        assert drain(inbox) == []


def test_fixed_shares_stay_when_topics_and_partitions_come(store: Store) -> None:
    store.create_topic("sb", partitions=5)
    shares = [store.consumer("s*", group="g", static=(number, 2), refresh_interval=0.001) for number in range(2)]
    before = [share.assignment() for share in shares]
    assert sorted(map(len, before)) == [2, 3]
    store.create_topic("sa", partitions=3)
    store.alter_topic("sb", partitions=9)
    wait_until(lambda: sum(len(share.assignment()) for share in shares) == 12)
    after = [share.assignment() for share in shares]
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert sorted(sum(partition.topic == "sb" for partition in share) for share in after) == [4, 5]
    store.delete_topic("sa")
    wait_until(lambda: sum(len(share.assignment()) for share in shares) == 9)
    assert all(share.assignment() <= old for share, old in zip(shares, after, strict=True))


def test_a_closed_consumer_says_so(store: Store) -> None:
    store.create_topic("orders")
    inbox = store.consumer("orders", group="g")
    inbox.close()
    inbox.close()
    for call in (inbox.poll, inbox.poll_batches, inbox.commit, inbox.lag, inbox.assignment, lambda: inbox.reset(0)):
        with pytest.raises(hw.StoreClosed):
            call()


def test_a_consumer_may_be_closed_after_its_store(store: Store) -> None:
    store.create_topic("orders")
    inbox = store.consumer("orders", group="g")
    inbox.poll()
    store.close()
    inbox.close()


def test_many_groups_on_one_topic(handle: Handles) -> None:
    store = handle()
    store.create_topic("orders")
    fill(store, "orders", 600)
    for number in range(600):
        with store.consumer("orders", group=f"group-{number}", auto_ack=True) as inbox:
            assert len(inbox.poll(number + 1)) == number + 1
    again = handle()
    assert [committed(again, f"group-{number}") for number in range(600)] == list(range(1, 601))


def test_a_copy_in_a_forked_process_is_not_a_member(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders")
        fill(store, "orders", 3)
        with store.consumer("orders", group="g") as inbox:
            inbox.poll()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    inbox.poll()
                except hw.PartitionForked:
                    inbox.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            inbox.ack_range("orders", 0, 0, 3)
            inbox.commit()
            assert committed(store, "g") == 3
            assert len(store.group("g").describe().members) == 1


def test_a_compacted_topic_is_filtered(store: Store) -> None:
    store.create_topic("t", compact=True, segment_bytes=4096)
    with store.producer("t") as out:
        for number in range(30):
            out.send(b"%d" % number, key=b"orders.%d" % (number % 7))
            out.flush()
    partition = store.topic("t").partition(0)
    partition.roll()
    partition.compact()
    kept = [record for record in partition.records() if record.key in (b"orders.3", b"orders.5")]
    with store.consumer("t", group="g", where="key in ('orders.3', 'orders.5')") as inbox:
        assert [record.offset for record in inbox.poll()] == [record.offset for record in kept]
        for record in kept:
            inbox.ack_range("t", 0, record.offset, record.offset + 1)
        assert inbox.statistics().positions == {TopicPartition("t", 0): 30}
    assert store.topic("t").recent(1, where="key = 'orders.3'")[0].value == b"24"


def test_typed_columns_and_columns_that_came_later(store: Store) -> None:
    store.create_topic("trades", schema=pa.schema([("symbol", pa.string()), ("price", pa.float64())]))
    with store.producer("trades") as out:
        out.send_batch(pa.record_batch({"symbol": ["HW", "WH", "HW"], "price": [1.0, 20.0, 30.0]}))
    store.topic("trades").evolve(pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("venue", pa.string())]))
    with store.producer("trades") as out:
        out.send({"symbol": "HW", "price": 40.0, "venue": "X"})
    with store.consumer("trades", where="symbol = 'HW' and price > 10") as inbox:
        assert [record.value["price"] for record in inbox.poll()] == [30.0, 40.0]
    with store.consumer("trades", where="venue is null") as inbox:
        assert [record.offset for record in inbox.poll()] == [0, 1, 2]
    scanned = store.topic("trades").scan(where="price > 10", columns=["_partition", "venue"]).read_all()
    assert scanned.to_pydict() == {"_partition": [0, 0, 0], "venue": [None, None, "X"]}
