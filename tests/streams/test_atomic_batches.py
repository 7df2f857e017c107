"""A batch is visible all at once or not at all: one frame up to a size, and beyond that a transaction, if asked for."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.errors import StoreError
from headwater.core.options import KIB, MIB
from headwater.streams import Topic, transaction
from tests.support.backends import OpenStore
from tests.support.dying_sender import RECORDS, TOPIC
from tests.support.forked import fork
from tests.support.patience import has_ended

ON_A_CLUSTER = True
LARGE = [b"x" * 10_000] * 2_000
"""20 MB."""
VALUES = [b"%05d" % number + b"x" * 1000 for number in range(400)]
KEYS = [b"%d" % number for number in range(400)]


def ends(topic: Topic) -> list[int]:
    return [bounds.end for bounds in topic.bounds().values()]


def values(topic: Topic) -> list[bytes]:
    return [value for batch in topic.scan(columns=["value"]) for value in batch.column("value").to_pylist()]


def test_a_large_batch_appears_at_once(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.update(ends(topic))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        with store.producer("orders") as out:
            [receipt] = out.send_batch(LARGE)
    finally:
        done.set()
        reader.join()
    assert receipt.offset == 0
    assert seen <= {0, len(LARGE)}
    assert topic.statistics().partitions[0].total_frames == 1
    assert topic.scan(columns=["value"]).read_all().num_rows == len(LARGE)


def test_the_rows_of_each_partition_are_one_frame(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2)
    with store.producer("orders", batch_bytes=10_000) as out:
        receipts = out.send_batch(VALUES, keys=KEYS)
    assert [receipt.offset for receipt in receipts] == [0, 0]
    assert [partition.total_frames for partition in topic.statistics().partitions] == [1, 1]
    assert sorted(values(topic)) == VALUES


@pytest.mark.parametrize(("max_frame_bytes", "atomic_bytes"), [(64 * MIB, 100_000), (256 * KIB, 32 * MIB)])
def test_a_batch_over_the_limit_is_several_appends(
    open_store: OpenStore, max_frame_bytes: int, atomic_bytes: int
) -> None:
    store = open_store()
    topic = store.create_topic("orders", max_frame_bytes=max_frame_bytes)
    with store.producer("orders", batch_bytes=50_000, atomic_bytes=atomic_bytes) as out:
        out.send_batch(VALUES)
    assert values(topic) == VALUES
    assert topic.statistics().partitions[0].total_appends > 1


def test_an_atomic_batch_over_the_limit_is_one_append(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", max_frame_bytes=256 * KIB)
    with store.producer("orders", batch_bytes=50_000, linger=60) as out:
        before = out.send(b"before")
        receipts = out.send_batch(VALUES, atomic=True)
        assert before.offset == 0
        out.send(b"after")
    assert values(topic) == [b"before", *VALUES, b"after"]
    assert len(receipts) > 1
    assert [receipt.offset for receipt in receipts] == sorted({receipt.offset for receipt in receipts})
    assert receipts[0].offset == 1
    assert topic.statistics().partitions[0].total_appends == 3


def test_an_atomic_batch_over_partitions_is_in_all_of_them_or_in_none(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=3)
    append = transaction.StageAppender.append
    left = [2]

    def fail_at_last(self: transaction.StageAppender, *arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreError("the disk is full")
        append(self, *arguments)  # type: ignore[arg-type]

    with store.producer("orders") as out:
        with monkeypatch.context() as patch:
            patch.setattr(transaction.StageAppender, "append", fail_at_last)
            with pytest.raises(StoreError, match="full"):
                out.send_batch(VALUES, keys=KEYS, atomic=True)
        assert ends(topic) == [0, 0, 0]
        receipts = out.send_batch(VALUES, keys=KEYS, atomic=True)
        assert sorted(receipt.partition for receipt in receipts) == [0, 1, 2]
        assert [receipt.offset for receipt in receipts] == [0, 0, 0]
    assert sorted(values(topic)) == VALUES


def test_a_small_atomic_batch_takes_no_transaction(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=pa.schema({"price": pa.int64()}))
    monkeypatch.setattr(Topic, "_new_transaction", None)
    with store.producer("trades") as out:
        out.send_batch({"price": [1, 2, 3]}, atomic=True)
        assert out.send_batch({"price": []}, atomic=True) == []
    assert topic.scan(columns=["price"]).read_all()["price"].to_pylist() == [1, 2, 3]


def test_an_atomic_batch_in_a_transaction_is_part_of_it(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2)
    block = store.transaction()
    block.producer("orders").send_batch(VALUES, keys=KEYS, atomic=True)
    assert ends(topic) == [0, 0]
    block.abort()
    with store.transaction() as block:
        block.producer("orders").send_batch(VALUES, keys=KEYS, atomic=True)
    assert sorted(values(topic)) == VALUES


@pytest.mark.parametrize("kind", ["directory", "broker"])
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_death_in_the_middle_leaves_nothing_of_a_batch(tmp_path: Path, kind: str, share: float) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic(TOPIC)
    die(tmp_path, kind, int(share * RECORDS * 1000), "plain")
    with hw.open(tmp_path / "store") as store:
        assert ends(store.topic(TOPIC)) == [0]


@pytest.mark.parametrize("kind", ["directory", "broker"])
def test_a_death_leaves_all_of_an_atomic_batch_or_nothing(tmp_path: Path, kind: str) -> None:
    """The frames are staged first, and then written to their partitions: deaths before the decision and behind it."""
    left = set()
    for share in (0.5, 1.2, 1.5, 1.9):
        path = tmp_path / str(share)
        path.mkdir()
        with hw.open(path / "store") as store:
            store.create_topic(TOPIC, partitions=3)
        die(path, kind, int(share * RECORDS * 1000), "atomic")
        with hw.open(path / "store") as store:
            left.add(sum(ends(store.topic(TOPIC))))
    assert left == {0, RECORDS}


def die(directory: Path, *arguments: object) -> None:
    """Send a batch in a process that is killed meanwhile."""
    kind, *rest = map(str, arguments)
    with (directory / "output").open("wb") as output:
        process = fork(
            "tests.support.dying_sender", [kind, str(directory / "store"), *rest], os.environ, output.fileno()
        )
    assert has_ended(process, 120)
    assert process.wait() == -signal.SIGKILL, (directory / "output").read_text()
