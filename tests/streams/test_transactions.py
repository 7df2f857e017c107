"""Transactions: writes to several topics, and a consumer's progress, together or not at all. On every kind of store."""

# ruff: noqa: PT012 - it is the end of a block that raises, and a block has several statements

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

import headwater as hw
from headwater import Consumer, Store, TopicPartition
from headwater.embedded.decision import Decision
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.transactions import LedgerCoordinator
from headwater.streams.group import Commit
from headwater.testing import ManualClock
from tests.support.backends import Handles, OpenStore, inside
from tests.support.patience import wait_until

ORDERS = TopicPartition("orders", 0)
ON_A_CLUSTER = True


@pytest.fixture
def store(handle: Handles) -> Store:
    store = handle()
    for name in ("orders", "invoices", "shipments"):
        store.create_topic(name, partitions=2)
    return store


class GiveUp(Exception):
    """Raised in blocks that are to fail."""


def fill(store: Store, count: int, *, partition: int = 0) -> None:
    with store.producer("orders") as out:
        for number in range(count):
            out.send(b"%d" % number, partition=partition)


def values(store: Store, topic: str, partition: int | None = None) -> list[bytes]:
    partitions = store.topic(topic).partitions() if partition is None else [store.topic(topic).partition(partition)]
    return [record.value for partition in partitions for record in partition.records()]


def committed(store: Store, partition: TopicPartition = ORDERS, group: str = "billing") -> int | None:
    position = store.group(group).position((store.describe_topic(partition.topic).uuid, partition.partition))
    return None if position is None else position.offset


def transform(inbox: Consumer, most: int = 100) -> list[bytes]:
    """One block: each record that there is becomes an invoice."""
    with inbox._store.transaction(inbox) as block:
        out = block.producer("invoices")
        records = inbox.poll(most)
        for record in records:
            out.send(record.value, partition=record.partition)
            inbox.ack(record)
    return [record.value for record in records]


def eventually(happened: Callable[[], bool]) -> None:
    """Members look at their group some times in a second."""
    wait_until(happened)


# Writing.


def test_nothing_is_visible_before_the_commit_and_everything_after_it(store: Store) -> None:
    with store.transaction() as block:
        block.producer("invoices").send(b"invoice", partition=1)
        block.producer("shipments").send(b"shipment")
        for producer in block._producers:
            producer.sync()
        assert values(store, "invoices") == values(store, "shipments") == []
    assert values(store, "invoices", 1) == [b"invoice"]
    assert values(store, "shipments") == [b"shipment"]
    assert block.state == "committed"


def test_receipts_tell_their_offsets_after_the_commit(store: Store) -> None:
    with store.producer("invoices") as before:
        before.send(b"before", partition=0)
    with store.transaction() as block:
        out = block.producer("invoices", batch_records=2)
        receipts = [out.send(b"%d" % number, partition=0) for number in range(5)]
        other = out.send(b"other", partition=1)
        out.flush()
        with pytest.raises(hw.StoreError, match="pending"):
            _ = receipts[0].offset
    assert [receipt.offset for receipt in receipts] == [1, 2, 3, 4, 5]
    assert other.offset == 0
    assert values(store, "invoices", 0) == [b"before", b"0", b"1", b"2", b"3", b"4"]


def test_an_error_in_the_block_gives_everything_up(store: Store) -> None:
    with pytest.raises(GiveUp), store.transaction() as block:
        written = block.producer("invoices").send(b"written")
        block._producers[0].flush()
        pending = block.producer("shipments").send(b"pending")
        raise GiveUp
    assert block.state == "aborted"
    assert values(store, "invoices") == values(store, "shipments") == []
    for receipt in (written, pending):
        with pytest.raises(hw.TransactionAborted):
            receipt.wait(60)


def test_abort_gives_everything_up_and_the_block_ends_quietly(store: Store) -> None:
    with store.transaction() as block:
        block.producer("invoices").send(b"no")
        block.abort()
        block.abort()
    assert block.state == "aborted"
    assert values(store, "invoices") == []


def test_commit_may_be_called_by_hand_once(store: Store) -> None:
    block = store.transaction()
    block.producer("invoices").send(b"a")
    block.commit()
    assert values(store, "invoices") == [b"a"]
    for use in (block.commit, lambda: block.producer("invoices")):
        with pytest.raises(hw.StoreError, match="committed"):
            use()
    block.abort()  # too late, and no harm
    assert block.state == "committed"


def test_a_producer_cannot_be_used_after_its_transaction(store: Store) -> None:
    with store.transaction() as block:
        out = block.producer("invoices")
        out.send(b"a")
    with pytest.raises(hw.StoreClosed):
        out.send(b"b")


def test_a_producer_may_be_closed_within_the_block(store: Store) -> None:
    with store.transaction() as block:
        with block.producer("invoices") as out:
            out.send(b"a", partition=0)
        with block.producer("invoices") as out:
            out.send(b"b", partition=0)
    assert values(store, "invoices", 0) == [b"a", b"b"]


def test_an_empty_block_does_nothing(store: Store) -> None:
    with store.transaction() as block:
        block.producer("invoices")
    assert block.state == "committed"
    with store.transaction(writer="nightly", sequence=1) as block:
        pass
    assert block.state == "committed"
    with store.transaction(writer="nightly", sequence=1) as block:
        block.producer("invoices").send(b"a")
    assert (block.state, values(store, "invoices")) == ("committed", [b"a"])  # an empty block takes no number


def test_keys_headers_timestamps_compression_and_large_values_come_through(store: Store) -> None:
    store.create_topic("large", compression="zstd", compression_threshold=0)
    with store.transaction() as block:
        out = block.producer("large")
        out.send(b"x" * 3_000_000, key=b"k", headers={"trace": b"1"}, timestamp=17)
        out.send(None, key=b"k")
    large, marker = store.topic("large").partition(0).records()
    assert (large.value, large.key, dict(large.headers), large.timestamp) == (
        b"x" * 3_000_000,
        b"k",
        {"trace": b"1"},
        17,
    )
    assert (marker.value, marker.key) == (None, b"k")


def test_typed_topics_and_batches(store: Store) -> None:
    store.create_topic("trades", partitions=2, schema=pa.schema([("price", pa.int64())]))
    with store.transaction() as block:
        out = block.producer("trades")
        receipts = out.send_batch(pa.table({"price": list(range(1000))}), keys=[b"%d" % n for n in range(1000)])
        row = out.send({"price": 1000}, partition=0)
        assert store.topic("trades").scan().read_all().num_rows == 0
    prices = store.topic("trades").scan(columns=["price"]).read_all().column("price").to_pylist()
    assert sorted(prices) == list(range(1001))
    assert [receipt.offset for receipt in receipts] == [0, 0]
    assert row.offset == store.topic("trades").bounds()[0].end - 1


def test_more_records_than_a_segment_holds(store: Store) -> None:
    store.create_topic("small", segment_bytes=4096)
    with store.transaction() as block:
        out = block.producer("small", batch_records=10)
        for number in range(500):
            out.send(b"%d" % number)
    assert values(store, "small") == [b"%d" % number for number in range(500)]
    with store.transaction() as block:
        block.producer("small").send(b"next")
    assert values(store, "small")[-1] == b"next"


def test_transactions_of_many_threads_share_the_partitions(store: Store) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            with store.transaction() as block:
                block.producer("invoices").send(b"%d/%d" % (number, turn), partition=0)
                block.producer("shipments").send(b"%d/%d" % (number, turn), partition=1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(b"%d/%d" % (number, turn) for number in range(4) for turn in range(10))
    assert sorted(values(store, "invoices", 0)) == sorted(values(store, "shipments", 1)) == expected


def test_unknown_topics_and_wrong_arguments(store: Store, open_store: OpenStore) -> None:
    with pytest.raises(hw.UnknownTopic), store.transaction() as block:
        block.producer("nowhere")
    assert block.state == "aborted"
    with pytest.raises(hw.InvalidConfiguration, match="both, or neither"):
        store.transaction(writer="nightly")
    with pytest.raises(hw.InvalidConfiguration, match="both, or neither"):
        store.transaction(sequence=1)
    for sequence in (-1, True, 1 << 63):
        with pytest.raises(hw.InvalidConfiguration, match="a sequence is"):
            store.transaction(writer="nightly", sequence=sequence)
    with store.consumer("orders") as alone, pytest.raises(hw.InvalidConfiguration, match="needs a group"):
        store.transaction(alone)
    with store.consumer("orders", group="billing") as inbox:
        with pytest.raises(hw.InvalidConfiguration, match="not both"):
            store.transaction(inbox, writer="nightly", sequence=1)
        other = open_store()
        with pytest.raises(hw.InvalidConfiguration, match="another store"):
            other.transaction(inbox)


def test_a_topic_that_is_deleted_before_the_commit_fails_the_block(store: Store) -> None:
    with pytest.raises(hw.UnknownTopic), store.transaction() as block:
        block.producer("shipments").send(b"a")
        block.producer("invoices", linger=3600.0).send(b"a")
        store.delete_topic("invoices")
    assert values(store, "shipments") == []


def test_what_was_staged_for_a_deleted_topic_is_gone_with_it(store: Store) -> None:
    with store.transaction() as block:
        with block.producer("invoices") as out:
            gone = out.send(b"gone")
        kept = block.producer("shipments").send(b"kept")
        store.delete_topic("invoices")
        store.create_topic("invoices")
    assert values(store, "invoices") == []  # another topic of the same name
    assert values(store, "shipments") == [b"kept"]
    assert kept.offset == 0
    with pytest.raises(hw.StoreError, match="deleted"):
        _ = gone.offset


@pytest.mark.embedded("frames reach a broker some at a time, and its limits are those of then")
def test_limits_that_are_lowered_meanwhile_do_not_stop_what_is_staged(store: Store) -> None:
    with store.transaction() as block:
        with block.producer("invoices") as out:
            out.send(bytes(100_000), partition=0)
        store.alter_topic("invoices", max_frame_bytes=65_536, segment_bytes=4096)
    assert values(store, "invoices", 0) == [bytes(100_000)]


def test_a_block_that_outlives_its_store_is_given_up(store: Store, handle: Handles) -> None:
    block = store.transaction()
    block.producer("invoices").send(b"a")
    store.close()
    with pytest.raises(hw.StoreClosed):
        block.producer("shipments")
    with pytest.raises(hw.StoreClosed):
        block.commit()
    assert block.state == "aborted"
    with pytest.raises(hw.StoreClosed):
        store.transaction()
    if isinstance(store, DirectoryStore):
        assert values(handle(), "invoices") == []


# Named writers.


def test_a_named_block_is_done_once(store: Store, handle: Handles) -> None:
    states, receipts = [], []
    for _ in range(3):
        with handle().transaction(writer="nightly", sequence=17) as block:
            receipts.append(block.producer("invoices").send(b"once"))
        states.append(block.state)
    assert states == ["committed", "repeated", "repeated"]
    assert values(store, "invoices") == [b"once"]
    assert receipts[0].offset == 0
    with pytest.raises(hw.StoreError, match="before"):
        _ = receipts[1].offset


def test_lower_numbers_count_as_done_and_other_names_do_not(store: Store) -> None:
    for writer, sequence in (("nightly", 5), ("nightly", 4), ("nightly", 6), ("hourly", 4)):
        with store.transaction(writer=writer, sequence=sequence) as block:
            block.producer("invoices").send(b"%s %d" % (writer.encode(), sequence), partition=0)
    assert values(store, "invoices", 0) == [b"nightly 5", b"nightly 6", b"hourly 4"]


def test_a_named_block_that_was_given_up_may_be_repeated(store: Store) -> None:
    with pytest.raises(GiveUp), store.transaction(writer="nightly", sequence=1) as block:
        block.producer("invoices").send(b"no")
        raise GiveUp
    with store.transaction(writer="nightly", sequence=1) as block:
        block.producer("invoices").send(b"yes")
    assert (block.state, values(store, "invoices")) == ("committed", [b"yes"])


@pytest.mark.single("in a cluster one coordinator does it, in order")
def test_a_late_helper_does_not_set_the_last_number_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that carries out number 1 may be held up until number 2 is done."""
    coordinator = inside(store).transactions
    assert isinstance(coordinator, LedgerCoordinator)
    ledger = coordinator.ledger
    decisions: list[Decision] = []
    finish = ledger.finish

    def noting(decision: Decision) -> None:
        decisions.append(decision)
        finish(decision)

    monkeypatch.setattr(ledger, "finish", noting)
    for sequence in (1, 2):
        with store.transaction(writer="nightly", sequence=sequence) as block:
            block.producer("invoices").send(b"%d" % sequence, partition=0)
    finish(decisions[0])
    assert ledger.used(decisions[0].writer) == 2
    with store.transaction(writer="nightly", sequence=2) as block:
        block.producer("shipments").send(b"again")
    assert (block.state, values(store, "shipments")) == ("repeated", [])


# With a consumer.


def test_positions_move_with_the_outputs(store: Store) -> None:
    fill(store, 10)
    with store.consumer("orders", group="billing") as inbox:
        with store.transaction(inbox) as block:
            out = block.producer("invoices")
            for record in [*inbox.poll(3), *inbox.poll(2)]:
                out.send(record.value, partition=0)
                inbox.ack(record)
            inbox.commit()  # nothing happens before the block ends
            assert committed(store) == 0
        assert committed(store) == 5
        assert values(store, "invoices", 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert transform(inbox) == [b"5", b"6", b"7", b"8", b"9"]
    assert committed(store) == 10
    assert values(store, "invoices", 0) == [b"%d" % number for number in range(10)]


def test_an_aborted_block_reads_the_same_records_again(store: Store) -> None:
    fill(store, 10)
    with store.consumer("orders", group="billing") as inbox:
        transform(inbox, 2)
        with pytest.raises(GiveUp), store.transaction(inbox):
            for record in [*inbox.poll(3), *inbox.poll(3)]:
                inbox.ack(record)
            raise GiveUp
        assert committed(store) == 2
        assert transform(inbox, 100) == [b"%d" % number for number in range(2, 10)]
    assert values(store, "invoices", 0) == [b"%d" % number for number in range(10)]


def test_what_is_not_acknowledged_is_not_done(store: Store) -> None:
    fill(store, 4)
    with store.consumer("orders", group="billing") as inbox:
        with store.transaction(inbox) as block:
            records = inbox.poll()
            block.producer("invoices").send(records[0].value)
            inbox.ack(records[0])
        assert committed(store) == 1
        with store.transaction(inbox):
            inbox.ack(records[1])  # handed out in the block before
        assert committed(store) == 2


def test_auto_ack_takes_all_that_was_handed_out_as_done(store: Store) -> None:
    fill(store, 6)
    with store.consumer("orders", group="billing", auto_ack=True) as inbox:
        with store.transaction(inbox) as block:
            out = block.producer("invoices")
            for record in [*inbox.poll(2), *inbox.poll(2)]:
                out.send(record.value, partition=0)
        assert committed(store) == 4
        with pytest.raises(GiveUp), store.transaction(inbox):
            inbox.poll()
            raise GiveUp
    assert committed(store) == 4
    assert values(store, "invoices", 0) == [b"0", b"1", b"2", b"3"]


def test_batches_patterns_and_static_members(store: Store) -> None:
    store.create_topic("orders.eu")
    fill(store, 5)
    with store.producer("orders.eu") as out:
        out.send(b"eu")
    with store.consumer("orders*", group="billing", static=(0, 1)) as inbox, store.transaction(inbox) as block:
        appender = block.producer("invoices")
        for batch in inbox.poll_batches():
            appender.send_batch(batch.batch.column("value").to_pylist(), partition=0)
            inbox.ack(batch)
    assert sorted(values(store, "invoices", 0)) == [b"0", b"1", b"2", b"3", b"4", b"eu"]
    assert (committed(store), committed(store, TopicPartition("orders.eu", 0))) == (5, 1)


def test_a_consumer_is_part_of_one_transaction_at_a_time(store: Store) -> None:
    fill(store, 1)
    with store.consumer("orders", group="billing") as inbox:
        with store.transaction(inbox):
            with pytest.raises(hw.StoreError, match="another transaction"):
                store.transaction(inbox)
            for record in inbox.poll():
                inbox.ack(record)
        assert committed(store) == 1
        transform(inbox)


def test_records_that_were_polled_before_the_block_may_be_done_in_it(store: Store) -> None:
    fill(store, 4)
    with store.consumer("orders", group="billing") as inbox:
        records = inbox.poll()
        inbox.ack(records[0])
        with pytest.raises(GiveUp), store.transaction(inbox):
            inbox.ack(records[1])
            raise GiveUp
        assert committed(store) == 1
        assert transform(inbox) == [b"1", b"2", b"3"]


# Partitions change hands.


def test_a_partition_that_another_member_wants_is_handed_over_after_the_block(store: Store, handle: Handles) -> None:
    for partition in (0, 1):
        fill(store, 4, partition=partition)
    inbox = store.consumer("orders", group="billing", refresh_interval=0.001)
    with store.transaction(inbox) as block:
        out = block.producer("invoices")
        for record in inbox.poll():
            out.send(record.value, partition=record.partition)
            inbox.ack(record)
        other = handle().consumer("orders", group="billing", refresh_interval=0.001)
        for _ in range(3):
            time.sleep(0.002)
            assert inbox.poll() == other.poll() == []  # a poll in the block does not let go what the block has read
        assert other.assignment() == frozenset()
    for partition in (0, 1):
        fill(store, 1, partition=partition)
    # A consumer that polls only in transactions lets go of a partition as well.
    assert len(transform(inbox)) == 1
    eventually(lambda: len(transform(other)) == 1)
    assert len(inbox.assignment()) == len(other.assignment()) == 1
    assert committed(store) == committed(store, TopicPartition("orders", 1)) == 5
    assert len(values(store, "invoices")) == 10
    for consumer in (inbox, other):
        consumer.close()


def test_what_a_block_has_not_read_is_handed_over_within_it(store: Store, handle: Handles) -> None:
    fill(store, 4, partition=0)
    inbox = store.consumer("orders", group="billing", refresh_interval=0.001)
    with store.transaction(inbox) as block:
        out = block.producer("invoices")
        for record in inbox.poll():
            out.send(record.value)
            inbox.ack(record)
        wanted = TopicPartition("orders", 1)
        other = handle().consumer("orders", group="billing", refresh_interval=0.001)
        while store.group("billing").describe().target[wanted] == inbox._member.id:  # who gets which is left to chance
            other.close()
            other = handle().consumer("orders", group="billing", refresh_interval=0.001)
        eventually(lambda: inbox.poll() == other.poll() and other.assignment() == {wanted})
        assert inbox.assignment() == {ORDERS}
    assert committed(store) == 4
    for consumer in (inbox, other):
        consumer.close()


def test_what_is_never_acknowledged_does_not_keep_a_partition_for_ever(store: Store, handle: Handles) -> None:
    for partition in (0, 1):
        fill(store, 2, partition=partition)
    inbox = store.consumer("orders", group="billing", refresh_interval=0.001)
    with store.transaction(inbox):
        assert len(inbox.poll()) == 4
    other = handle().consumer("orders", group="billing", refresh_interval=0.001)

    def handed_over() -> bool:
        with contextlib.suppress(hw.StaleMember), store.transaction(inbox):
            inbox.poll()
        return len(other.assignment()) == 1

    eventually(handed_over)
    assert len(transform(other)) == 2
    for consumer in (inbox, other):
        consumer.close()


def test_the_commit_of_a_member_that_was_taken_out_is_refused(
    store: Store, handle: Handles, clock: ManualClock
) -> None:
    fill(store, 4)
    with store.consumer("orders", group="billing", max_poll_interval=10) as inbox:
        with pytest.raises(hw.StaleMember), store.transaction(inbox) as block:
            receipt = block.producer("invoices").send(b"late")
            for record in inbox.poll():
                inbox.ack(record)
            clock.advance(60)
            with handle().consumer("orders", group="billing", max_poll_interval=10) as other:
                assert transform(other, 2) == [b"0", b"1"]
        assert block.state == "aborted"
        with pytest.raises(hw.TransactionAborted):
            _ = receipt.offset
        assert transform(inbox) == [b"2", b"3"]
    assert values(store, "invoices", 0) == [b"0", b"1", b"2", b"3"]


def test_a_member_that_joins_again_within_the_block_has_lost_what_it_read(
    store: Store, handle: Handles, clock: ManualClock
) -> None:
    """Its own poll notices; what it had read is another's, although its partitions may be its own again."""
    fill(store, 4)
    with store.consumer("orders", group="billing", max_poll_interval=10, refresh_interval=0.001) as inbox:
        with pytest.raises(hw.StaleMember), store.transaction(inbox) as block:
            out = block.producer("invoices")
            for record in inbox.poll(2):
                out.send(record.value)
                inbox.ack(record)
            clock.advance(60)
            with handle().consumer("orders", group="billing", max_poll_interval=10) as other:
                other.poll(1)
            inbox.poll(1)
        assert values(store, "invoices") == []
        assert transform(inbox) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("offset", [0, 4])
def test_a_reset_meanwhile_wins(store: Store, offset: int) -> None:
    fill(store, 4)
    with store.consumer("orders", group="billing") as inbox:
        transform(inbox, 2)
        with pytest.raises(hw.StaleMember), store.transaction(inbox) as block:
            block.producer("invoices").send(b"no")
            for record in inbox.poll(1):
                inbox.ack(record)
            key = (store.describe_topic("orders").uuid, 0)
            store.group("billing").reset({ORDERS: Commit(key, offset)})
        assert committed(store) == offset
        assert len(transform(inbox)) == 4 - offset
    assert values(store, "invoices", 0) == [b"0", b"1"] + [b"%d" % number for number in range(offset, 4)]


def test_a_consumer_cannot_be_reset_in_its_transaction(store: Store) -> None:
    fill(store, 1)
    with (
        store.consumer("orders", group="billing") as inbox,
        store.transaction(inbox),
        pytest.raises(hw.StoreError, match="end it first"),
    ):
        inbox.reset("earliest")


def test_a_consumer_that_is_closed_in_the_block_fails_it(store: Store) -> None:
    fill(store, 2)
    inbox = store.consumer("orders", group="billing")
    with pytest.raises(hw.StaleMember), store.transaction(inbox) as block:
        block.producer("invoices").send(b"no")
        for record in inbox.poll():
            inbox.ack(record)
        inbox.close()
    assert values(store, "invoices") == []
    with pytest.raises(hw.StoreClosed):
        store.transaction(inbox)
    with store.consumer("orders", group="billing") as other:
        assert len(transform(other)) == 2


def test_an_input_topic_that_is_deleted_in_the_block_fails_it(store: Store) -> None:
    fill(store, 2)
    inbox = store.consumer("orders", group="billing", refresh_interval=0.001)
    with pytest.raises(hw.StaleMember), store.transaction(inbox) as block:
        block.producer("invoices").send(b"no")
        for record in inbox.poll():
            inbox.ack(record)
        store.delete_topic("orders")
        store.create_topic("orders")
        time.sleep(0.01)
        inbox.poll()  # it is noticed here
    inbox.close()
    assert values(store, "invoices") == []


def test_a_consumer_whose_position_was_refused_goes_on_with_the_next_block(
    store: Store, handle: Handles, clock: ManualClock
) -> None:
    fill(store, 4)
    with store.consumer("orders", group="billing", max_poll_interval=10) as inbox:
        for record in inbox.poll(1):
            inbox.ack(record)
        clock.advance(60)
        with handle().consumer("orders", group="billing", max_poll_interval=10) as other:
            assert len(transform(other)) == 4
        with pytest.raises(hw.StaleMember):
            store.transaction(inbox)
        fill(store, 1)
        assert transform(inbox) == [b"0"]
