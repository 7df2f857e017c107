"""Topics come and go whole, are changed in place, and are the same for everyone who looks."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater import (
    Damaged,
    InvalidConfiguration,
    InvalidName,
    PartitionDeleted,
    SchemaError,
    TopicExists,
    UnknownTopic,
)
from headwater.core.schema import Schema
from headwater.embedded.directory_catalog import DirectoryCatalog
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import encode
from headwater.streams.catalog import TopicInfo
from headwater.streams.routing import partition_of
from headwater.streams.start import Start
from tests.support.backends import OpenDirectoryStore, OpenStore

SPAWN = multiprocessing.get_context("spawn")
TRADES = pa.schema([pa.field("symbol", pa.string(), nullable=False), pa.field("price", pa.float64())])


def test_a_topic_is_created_listed_and_described(open_store: OpenStore) -> None:
    store = open_store()
    assert store.topics() == []
    store.create_topic("orders", partitions=4, retention_age=3600.0, compression="zstd")
    store.create_topic("a.b-c_1")
    assert store.topics() == ["a.b-c_1", "orders"]
    info = store.describe_topic("orders")
    assert (info.name, info.partitions, len(info.uuid)) == ("orders", 4, 16)
    assert (info.config.retention_age, info.config.compression) == (3600.0, "zstd")
    assert store.topic("orders").info == info
    assert store.topic("orders").schema == hw.RAW


def test_a_typed_topic_has_its_schema(open_store: OpenStore) -> None:
    topic = open_store().create_topic("trades", schema=TRADES)
    assert topic.schema == hw.Schema(TRADES)
    assert topic.info.schemas == (hw.Schema(TRADES).id,)


def test_an_unknown_option_is_named(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(InvalidConfiguration, match=r"unknown options \['retention'\]; there are .*retention_age"):
        store.create_topic("orders", retention=3)
    with pytest.raises(InvalidConfiguration, match="retention_age must be a number of seconds from 0"):
        store.create_topic("orders", retention_age=-1)
    assert store.topics() == []


@pytest.mark.parametrize("partitions", [0, -1, 10_001, True, "4", 1.0])
def test_a_number_of_partitions_that_cannot_be_is_refused(open_store: OpenStore, partitions: int) -> None:
    with pytest.raises(InvalidConfiguration, match="partitions"):
        open_store().create_topic("orders", partitions=partitions)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../a", "/a", "a b", "a\0b", "é", ".hidden", "a" * 256, "__mine", "store.lock", 3, None],
)
def test_a_name_that_a_path_could_be_tricked_with_is_refused(open_store: OpenStore, name: str) -> None:
    with pytest.raises(InvalidName):
        open_store().create_topic(name)


def test_a_name_may_have_255_characters(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("x" * 255)
    with store.producer("x" * 255) as out:
        out.send(b"1")
    assert store.topics() == ["x" * 255]


def test_a_topic_is_created_once(open_store: OpenStore) -> None:
    store = open_store()
    first = store.create_topic("orders", partitions=2).info
    with pytest.raises(TopicExists, match="orders"):
        store.create_topic("orders")
    assert store.create_topic("orders", partitions=9, exist_ok=True).info == first


def test_an_unknown_topic_is_named(open_store: OpenStore) -> None:
    store = open_store()
    for use in (store.topic, store.describe_topic, store.delete_topic, store.producer, store.alter_topic):
        with pytest.raises(hw.UnknownTopic, match="there is no topic 'nothing'") as caught:
            use("nothing")
        assert caught.value.name == "nothing"


def test_partitions_can_be_added_and_not_removed(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders", partitions=2)
    store.alter_topic("orders", partitions=5)
    assert len(store.topic("orders").partitions()) == 5
    for fewer in (4, 0, "6", True):
        with pytest.raises(InvalidConfiguration, match="has 5 partitions"):
            store.alter_topic("orders", partitions=fewer)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="unknown options"):
        store.alter_topic("orders", colour="red")
    assert store.describe_topic("orders").partitions == 5


def test_a_change_reaches_partitions_that_are_open(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    partition = topic.partition(0)
    store.alter_topic("orders", retention_bytes=1, compression="lz4")
    assert topic.partition(0) is partition
    assert partition.config.retention_bytes == 1


def test_a_change_is_seen_through_another_handle(open_directory_store: OpenDirectoryStore) -> None:
    store, other = open_directory_store(), open_directory_store()
    store.create_topic("orders")
    for number in range(2, 40):  # fast enough for an inode and a time stamp to come again
        store.alter_topic("orders", partitions=number, retention_age=float(number))
        assert other.describe_topic("orders").partitions == number
        assert other.describe_topic("orders").config.retention_age == number


def test_a_producer_follows_its_topic(open_directory_store: OpenDirectoryStore) -> None:
    store, other = open_directory_store(), open_directory_store()
    store.create_topic("orders")
    with other.producer("orders") as out:
        out.send(b"before", key=b"key 3")
        out.flush()
        store.alter_topic("orders", partitions=64, max_value_bytes=10)
        out.send(b"the next", key=b"key 3")
        out.flush()
        later = out.send(b"after", key=b"key 3")
        assert later.partition == partition_of(b"key 3", 64) != 0
        with pytest.raises(hw.InvalidRecord, match="limit of 10"):
            out.send(b"x" * 11)


def test_a_deleted_topic_is_gone_and_its_name_free(open_store: OpenStore) -> None:
    store = open_store()
    old = store.create_topic("orders").info
    out = store.producer("orders")
    out.send(b"1")
    out.flush()
    store.delete_topic("orders")
    assert store.topics() == []
    late = out.send(b"2")
    with pytest.raises(hw.UnknownTopic):
        out.flush()
    with pytest.raises(hw.UnknownTopic):
        _ = late.offset
    new = store.create_topic("orders")
    assert new.info.uuid != old.uuid
    out.send(b"3")
    with pytest.raises(PartitionDeleted, match="orders"):
        out.flush()
    out.close()
    assert new.statistics().total_records == 0
    with store.producer("orders") as again:
        assert again.send_batch([b"4"])[0].wait() == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
def test_the_space_of_a_deleted_topic_is_free_at_once(open_directory_store: OpenDirectoryStore) -> None:
    """A file that is mapped or open keeps its place on the disk, and garbage may be collected much later."""
    with open_directory_store() as store:
        topic = store.create_topic("orders")
        with store.producer("orders") as out:
            out.send_batch([bytes(1000)] * 2000)
        assert sum(batch.num_rows for batch in topic.scan()) == 2000
        assert f"{store}/orders/0/" in Path("/proc/self/maps").read_text(), "it is read by being mapped"
        del topic
        gc.disable()
        try:
            store.delete_topic("orders")
            mapped = Path("/proc/self/maps").read_text()
            opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
        finally:
            gc.enable()
        assert not [line for line in (*mapped.splitlines(), *opened) if "(deleted)" in line and str(store) in line]


def test_a_topic_can_be_deleted_before_it_is_synced(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders", sync=3600.0)
    with store.producer("orders") as out:
        out.send(b"1")
    store.delete_topic("orders")
    assert store.topics() == []


def test_a_late_open_leaves_nothing_in_the_place_of_a_deleted_topic(open_directory_store: OpenDirectoryStore) -> None:
    store, other = open_directory_store(), open_directory_store()
    late = store.create_topic("t").info
    other.delete_topic("t")
    with pytest.raises(UnknownTopic):
        store._backend.open_partition(late, 0)
    other.create_topic("t")
    with pytest.raises(PartitionDeleted):
        store._backend.open_partition(late, 0)
    assert other.topic("t").partition(0).bounds().end == 0


def test_a_topic_deleted_while_it_is_opened_is_unknown(
    open_directory_store: OpenDirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_directory_store(), open_directory_store()
    info = store.create_topic("t").info
    make = DirectoryCatalog.make_log_directory

    def make_and_delete(self: DirectoryCatalog, info: TopicInfo, log: str) -> Path:
        path = make(self, info, log)
        other.delete_topic("t")
        return path

    monkeypatch.setattr(DirectoryCatalog, "make_log_directory", make_and_delete)
    with pytest.raises(UnknownTopic):
        store.partition(info, 0)
    monkeypatch.undo()
    other.create_topic("t")
    assert store.topic("t").partition(0).bounds().end == 0


def test_a_topic_deleted_elsewhere_is_noticed(open_directory_store: OpenDirectoryStore) -> None:
    store, other = open_directory_store(), open_directory_store()
    store.create_topic("orders")
    out = other.producer("orders")
    out.send_batch([b"1"])
    partition = other.topic("orders").partition(0)
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(PartitionDeleted):
        out.send_batch([b"2"])
    with pytest.raises(PartitionDeleted):
        partition.append(hw.log.encode([b"3"]))
    assert store.topic("orders").bounds()[0].end == other.topic("orders").bounds()[0].end == 0


def create(path: Path) -> bytes:
    """Create the topic with everyone else, and write one record."""
    with DirectoryStore(path) as store:
        info = store.create_topic("orders", partitions=2, exist_ok=True).info
        with store.producer("orders") as out:
            out.send(b"here", partition=0)
        return info.uuid


def test_processes_that_create_a_topic_at_once_get_one(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    with SPAWN.Pool(4) as pool:
        identities = pool.map(create, [store.path] * 8, chunksize=1)
    assert set(identities) == {store.describe_topic("orders").uuid}
    assert store.topic("orders").statistics().records == 8
    assert not [path for path in store.path.iterdir() if path.name.startswith(".")]


def test_what_a_dead_creator_left_is_ignored_and_swept(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    shutil.copytree(store.path / "orders", store.path / ".new-0123")
    shutil.copytree(store.path / "orders", store.path / ".deleted-4567")
    assert store.topics() == ["orders"]
    with store._files.catalog._held(1):  # someone is creating a topic just now
        assert open_directory_store().topics() == ["orders"]
        assert (store.path / ".new-0123").exists()
        assert not (store.path / ".deleted-4567").exists()
    assert open_directory_store().topics() == ["orders"]
    assert not (store.path / ".new-0123").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"3", b"\xff\xfe", b'{"format": 9}', b"null"],
    ids=["empty", "list", "object", "number", "binary", "newer", "null"],
)
def test_a_damaged_description_is_named(open_directory_store: OpenDirectoryStore, content: bytes) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    store.create_topic("fine")
    file = store.path / "orders" / "topic.json"
    file.write_bytes(content)
    other = open_directory_store()
    with pytest.raises(Damaged, match=r"orders/topic\.json") as caught:
        other.topic("orders")
    assert caught.value.file == file
    assert other.topics() == ["fine", "orders"]
    assert other.topic("fine").bounds()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"partitions": 1', '"partitions": 0'), ('"name": "orders"', '"name": "other"'), ('"uuid": "', '"uuid": "00')],
)
def test_a_description_that_cannot_be_true_is_damage(
    open_directory_store: OpenDirectoryStore, old: str, new: str
) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    file = store.path / "orders" / "topic.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(Damaged, match=r"topic\.json"):
        open_directory_store().topic("orders")


def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    store.close()
    store.close()
    for use in (store.topics, store.statistics, topic.bounds, lambda: store.create_topic("more")):
        with pytest.raises(hw.StoreClosed):
            use()


def test_a_store_is_not_opened_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(hw.OpenFailed, match="file"):
        hw.open(tmp_path / "file")


def test_a_schema_grows_by_nullable_columns(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=TRADES)
    out = store.producer("trades")
    out.send({"symbol": "A", "price": 1.0})
    out.flush()
    venue = TRADES.append(pa.field("venue", pa.string()))
    topic.evolve(venue)
    topic.evolve(venue)
    with store.producer("trades") as new:
        new.send({"symbol": "B", "price": 2.0, "venue": "X"})
    out.send({"symbol": "C"})
    out.close()
    assert topic.info.schemas == (hw.Schema(TRADES).id, hw.Schema(venue).id)
    rows = topic.scan(columns=["symbol", "price", "venue"]).read_all().to_pylist()
    assert rows == [
        {"symbol": "A", "price": 1.0, "venue": None},
        {"symbol": "B", "price": 2.0, "venue": "X"},
        {"symbol": "C", "price": None, "venue": None},
    ]


def test_a_schema_changes_in_no_other_way(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=TRADES)
    with pytest.raises(SchemaError, match="'price'"):
        topic.evolve(pa.schema([TRADES.field(0)]))
    with pytest.raises(SchemaError, match="'price'"):
        topic.evolve(pa.schema([TRADES.field(0), pa.field("price", pa.int64())]))
    with pytest.raises(SchemaError, match="'symbol'"):
        topic.evolve(pa.schema([TRADES.field(1), TRADES.field(0)]))
    with pytest.raises(SchemaError, match="'venue' must be nullable"):
        topic.evolve(TRADES.append(pa.field("venue", pa.string(), nullable=False)))
    with pytest.raises(SchemaError, match="raw"):
        store.create_topic("raw").evolve(TRADES)
    assert len(topic.info.schemas) == 1


def test_a_position_means_an_offset_in_each_partition(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2)
    with store.producer("orders") as out:
        for number in range(5):
            out.send(b"v", partition=1, timestamp=number * 1000)
    positions: list[Start] = ["earliest", "latest", 3, -2, hw.Time(1500)]
    assert [topic.offset_of(position, 1) for position in positions] == [0, 5, 3, 3, 2]
    assert topic.offset_of("latest", 0) == 0
    with pytest.raises(hw.OffsetOutOfRange):
        topic.offset_of(6, 1)


def test_a_topic_can_be_as_it_is_described_elsewhere(tmp_path: Path) -> None:
    """With its uuid, its schemas and its options, also when those change; one of another uuid takes its place."""
    columns = pa.schema([("price", pa.int64())])
    more = pa.schema([("price", pa.int64()), ("note", pa.string())])
    with hw.open(tmp_path / "there") as described, DirectoryStore(tmp_path / "here") as adopting:

        def adopted() -> TopicInfo:
            info = described.describe_topic("trades")
            adopting.adopt_topic(info, [described.schema_by_id(info, schema) for schema in info.schemas])
            assert adopting.describe_topic("trades") == info
            assert adopting.schema_of(info) == described.schema_of(info)
            return info

        described.create_topic("trades", 2, columns)
        first = adopted()
        adopting.partition(first, 0).append(encode([b"x"]))
        assert adopted() == first
        described.alter_topic("trades", partitions=3)
        described.evolve_topic("trades", Schema(more))
        adopted()
        assert adopting.partition(first, 0).bounds().end == 1, "its records stay"
        described.delete_topic("trades")
        described.create_topic("trades")
        assert adopting.partition(adopted(), 0).bounds().end == 0


def test_a_store_outside_of_a_cluster_promises_one_copy_and_no_more(open_store: OpenStore) -> None:
    store = open_store()
    for wanted in ({"replication": 2}, {"min_insync": 2}, {"replication": 3, "min_insync": 2}):
        with pytest.raises(InvalidConfiguration, match="this store keeps one copy of each topic"):
            store.create_topic("orders", **wanted)  # type: ignore[arg-type]
    for odd in ({"replication": 0}, {"min_insync": True}, {"replication": "2"}, {"replication": 101}):
        with pytest.raises(InvalidConfiguration, match="must be a whole number from 1 to 100"):
            store.create_topic("orders", **odd)
    with pytest.raises(InvalidConfiguration, match="min_insync must be from 1 to 1"):
        store.create_topic("orders", replication=1, min_insync=2)
    assert store.topics() == []
    info = store.create_topic("orders", replication=1, min_insync=1).info
    assert (info.replication, info.min_insync) == (None, None)
    with pytest.raises(InvalidConfiguration, match="this store keeps one copy of each topic"):
        store.alter_topic("orders", replication=2, retention_segments=3)
    assert store.alter_topic("orders", replication=1) == info
