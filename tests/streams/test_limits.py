"""The limits that hold by default, exactly at their edge: names of 255 characters, keys of 1 KiB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.names import MAX_NAME
from tests.support.backends import OpenStore
from tests.support.processes import hw as command

LONGEST = "x" * 255
TOO_LONG = "x" * 256
KEY = b"k" * 1024
OVER = r"a key of 1025 bytes is over the limit of 1024 \(max_key_bytes\)"


def test_the_limits_are_those_of_the_documents() -> None:
    assert len(LONGEST) == MAX_NAME
    assert hw.TopicConfig().max_key_bytes == len(KEY)
    assert hw.TopicConfig().max_value_bytes == 10 * 1024 * 1024


def test_everything_works_under_the_longest_names(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic(LONGEST)
    store.alter_topic(LONGEST, partitions=2)
    with store.transaction(writer=LONGEST, sequence=1) as transaction:
        transaction.producer(LONGEST).send(b"one", key=KEY)
    with store.consumer(LONGEST, group=LONGEST) as inbox:
        (record,) = inbox.poll(timeout=60)
        inbox.ack(record)
        inbox.commit()
    assert (record.topic, record.key) == (LONGEST, KEY)
    assert store.group_names() == [LONGEST]
    typed = store.create_topic("y" * 255, schema=pa.schema([("a", pa.int64())]))
    typed.evolve(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    store.delete_topic(LONGEST)
    assert store.topics() == ["y" * 255]


USES: dict[str, Callable[[hw.Store], Any]] = {
    "topic": lambda store: store.create_topic(TOO_LONG),
    "group": lambda store: store.consumer("orders", group=TOO_LONG),
    "writer": lambda store: store.transaction(writer=TOO_LONG, sequence=1),
}


@pytest.mark.parametrize("kind", USES)
def test_a_longer_name_is_refused(open_store: OpenStore, kind: str) -> None:
    store = open_store()
    store.create_topic("orders")
    with pytest.raises(hw.InvalidName, match=f"{kind} has at most 255 characters, not 256"):
        USES[kind](store)


def test_a_longer_key_is_refused_wherever_it_comes_from(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"kept", key=KEY)
        out.send_batch([b"kept"], keys=[KEY])
        with pytest.raises(hw.InvalidRecord, match=OVER):
            out.send(b"refused", key=KEY + b"k")
        with pytest.raises(hw.InvalidRecord, match=OVER):
            out.send_batch([b"refused"], keys=[KEY + b"k"])
    with store.transaction() as transaction:
        staged = transaction.producer("orders")
        with pytest.raises(hw.InvalidRecord, match=OVER):
            staged.send(b"refused", key=KEY + b"k")
    store.alter_topic("orders", max_key_bytes=2048)
    with store.producer("orders") as out:
        out.send(b"kept", key=KEY + KEY)
    assert [len(record.key or b"") for record in store.topic("orders").partition(0).records()] == [1024, 1024, 2048]


def test_a_store_with_the_longest_names_is_backed_up_and_restored(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic(LONGEST)
        with store.producer(LONGEST) as out:
            out.send(b"one", key=KEY)
        with store.consumer(LONGEST, group=LONGEST) as inbox:
            inbox.ack(inbox.poll(timeout=60)[0])
    for arguments in (
        ("backup", tmp_path / "backup", "--store", tmp_path / "store"),
        ("restore", tmp_path / "backup", tmp_path / "restored"),
        ("check", tmp_path / "restored"),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
    with hw.open(tmp_path / "restored") as store:
        assert (store.topics(), store.group_names()) == ([LONGEST], [LONGEST])
        assert [record.value for record in store.topic(LONGEST).partition(0).records()] == [b"one"]
