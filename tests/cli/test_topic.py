"""`hw topic` and `hw context`, on stores in directories and behind brokers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

import headwater
from tests.support.command import Command, hw, local_hw, served

__all__ = ["hw", "local_hw"]


def test_topics_are_made_listed_described_changed_and_deleted(hw: Command) -> None:
    made = hw.json("topic", "create", "orders", "-p", 3, "--set", "retention_age=7d")
    assert (made["partitions"], made["config"]["retention_age"], made["columns"]) == (3, "7d", [])
    hw("topic", "create", "trades", "-c", "symbol:string!", "-c", "price:float64,at:timestamp[us, UTC]")
    listed = hw.json("topic", "list")["topics"]
    assert [topic["name"] for topic in listed] == ["orders", "trades"]
    assert listed[1]["columns"] == [
        {"name": "symbol", "type": "string", "nullable": False},
        {"name": "price", "type": "double", "nullable": True},
        {"name": "at", "type": "timestamp[us, tz=UTC]", "nullable": True},
    ]
    hw("topic", "alter", "orders", "--partitions", 4, "--set", "compression=zstd")
    hw("topic", "alter", "trades", "-c", "venue:string")
    described = hw.json("topic", "describe", "orders")
    assert (len(described["parts"]), described["config"]["compression"]) == (4, "zstd")
    assert [column["name"] for column in hw.json("topic", "describe", "trades")["columns"]][-1] == "venue"
    hw.refused("topic", "delete", "orders", text="Give --yes")
    hw("topic", "delete", "orders", "trades", "--yes")
    assert hw.json("topic", "list")["topics"] == []


def test_a_topic_takes_its_columns_from_a_file(hw: Command, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "f.parquet")
    made = hw.json("topic", "create", "t", "--like", tmp_path / "f.parquet")
    assert [(column["name"], column["type"]) for column in made["columns"]] == [("a", "int64"), ("b", "string")]


MISTAKEN = [
    (["create", "t", "--set", "bogus=1"], "--set takes name=value"),
    (["create", "t", "--set", "sync=soon"], "--set 'sync=soon': must be"),
    (["create", "t", "-c", "a:bogus"], "unknown type 'bogus'"),
    (["create", "t", "-c", "a"], "a column is written name:type"),
    (["create", "t", "-p", "0"], "'--partitions' / '-p'"),
    (["alter", "nope"], "nothing to change"),
    (["copy", "orders", "t", "--from", "bogus"], "'bogus' is not a position"),
]
REFUSED = [
    (["create", "../t"], "name"),
    (["create", "orders"], "already: choose another name or give --exist-ok"),
    (["describe", "nope"], "hw topic list shows the topics"),
    (["copy", "nope"], "there is no topic 'nope'"),
    (["copy", "orders", "t", "--from", "7"], "is not there yet"),
]


def test_what_cannot_be_is_refused_in_one_line(local_hw: Command) -> None:
    local_hw("topic", "create", "orders")
    for arguments, says in MISTAKEN:
        local_hw.refused("topic", *arguments, code=2, text=says)
    for arguments, says in REFUSED:
        local_hw.refused("topic", *arguments, text=says)
    assert [topic["name"] for topic in local_hw.json("topic", "list")["topics"]] == ["orders"], (
        "nothing is left of them"
    )


def test_a_mistyped_path_does_not_become_a_store(local_hw: Command, tmp_path: Path) -> None:
    local_hw.refused("topic", "list", text="does not exist: hw topic create creates it")
    local_hw.refused("topic", "list", "--store", tmp_path, text="is not a store")
    assert not (tmp_path / "events").exists()


def hw_bounds(hw: Command, topic: str) -> list[headwater.log.Bounds]:
    with hw.open() as store:
        return list(store.topic(topic).bounds().values())


def test_a_copy_has_the_same_records(hw: Command, tmp_path: Path) -> None:
    with hw.open() as store:
        store.create_topic("orders", 2, compression="zstd")
        with store.producer("orders") as out:
            for number in range(500):
                out.send(b"v%d" % number, b"k%d" % (number % 7), {"h": b"%d" % number}, timestamp=number)
            out.send(None, b"gone", partition=0, timestamp=500)
    assert hw.json("topic", "copy", "orders", "same")["records"] == 501
    assert hw.json("topic", "copy", "orders", "wide", "--partitions", 5)["records"] == 501
    assert hw.json("topic", "copy", "orders", "part", "--from", "10:20")["records"] == 20
    last = min(bounds.end for bounds in hw_bounds(hw, "orders"))
    assert hw.json("topic", "copy", "orders", "rest", "--from", last)["records"] == 501 - 2 * last, (
        "where there are any"
    )
    with served(tmp_path / "elsewhere") as address:
        assert hw.json("topic", "copy", "orders", "--to-store", address)["records"] == 501
        with headwater.open(address) as other, hw.open() as store:
            original = [list(partition.records()) for partition in store.topic("orders").partitions()]
            assert [list(partition.records()) for partition in store.topic("same").partitions()] == original
            assert [list(partition.records()) for partition in other.topic("orders").partitions()] == original
            spread = [record for partition in store.topic("wide").partitions() for record in partition.records()]
            everything = sorted(
                (record.timestamp, record.key, record.value) for part in original for record in part if record.value
            )
            assert (
                sorted((record.timestamp, record.key, record.value) for record in spread if record.value) == everything
            )
            assert store.topic("same").info.config.compression == "zstd"
    hw.refused("topic", "copy", "orders", "same", text="--append appends to it")
    hw("topic", "copy", "orders", "same", "--append")


def test_contexts_name_stores(local_hw: Command, tmp_path: Path) -> None:
    hw = local_hw
    hw("topic", "create", "orders")
    path, hw.store = hw.store, ""
    hw.refused("topic", "list", text="no store is given")
    hw.refused("topic", "list", "--store", "@dev", text="context 'dev' does not exist")
    hw("context", "add", "dev", path)
    hw("context", "add", "prod", "hw://broker.example:6174", "--tls-ca", "ca.pem", "--token-file", "token")
    hw.refused("context", "add", "a b", path, text="name")
    hw.refused("context", "add", "x", "hw://a b", text="address")
    assert [topic["name"] for topic in hw.json("topic", "list")["topics"]] == ["orders"], "the first one is used"
    listed = hw.json("context", "list")
    assert (listed["current"], sorted(listed["contexts"])) == ("dev", ["dev", "prod"])
    file = Path(listed["file"])
    assert (file.is_relative_to(tmp_path), file.stat().st_mode & 0o777) == (True, 0o600)
    hw("context", "use", "prod")
    hw.refused("topic", "list", text="token")  # the file with the token is read, and is not there
    assert hw.json("topic", "list", "--store", "@dev")["topics"]
    hw.store = "@dev"
    assert hw.json("topic", "list")["topics"]
    hw("context", "remove", "prod")
    assert hw.json("context", "list")["current"] is None
    file.write_text("{]")
    hw.refused("topic", "list", text="contexts.json:1: this is not a file of contexts")
