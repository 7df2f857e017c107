"""Scanning: the same records as columns, only those asked for, in the order asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import RAW, PartitionConfig, Schema, SchemaError
from headwater.core.config import Compression
from headwater.log import Partition, encode, encode_batch
from headwater.log.format.projection import Projection
from tests.support import strategies
from tests.support.backends import OpenPartition
from tests.support.strategies import stored


@pytest.fixture
def partition(open_partition: OpenPartition) -> Partition:
    """Frames with and without keys and headers, compressed and not, in two segments, and one that is compacted."""
    partition = open_partition(PartitionConfig(index_interval=128))
    partition.append(encode([b"a", b"b", b"c"], keys=[b"1", b"2", b"1"], timestamps=[3, 2, 1]))
    partition.append(encode([b"d" * 1000, b"e"], compression="zstd", timestamps=4))
    partition.roll()
    partition.compact()
    partition.append(encode([b"f", None], headers=[{"x": b"y"}, None], timestamps=5))
    partition.append(encode([b"g" * 1000], keys=[b"3"], compression="lz4", timestamps=6))
    return partition


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    """Rows with timestamps as numbers and headers as sorted pairs."""
    columns = []
    for name in table.schema.names:
        column = table[name]
        columns.append(column.cast(pa.int64()).to_pylist() if name == "timestamp" else column.to_pylist())
    return list(zip(*columns, strict=True))


def test_a_scan_gives_the_records_as_columns(partition: Partition) -> None:
    table = partition.scan().read_all()
    assert table.schema == RAW.full
    assert table.schema.names == ["offset", "timestamp", "key", "headers", "value"]
    expected = [
        (record.offset, record.timestamp, record.key, list(record.headers.items()) or None, record.value)
        for record in partition.records()
    ]
    assert rows(table) == expected


def test_a_scan_of_any_range_gives_the_records_of_that_range(partition: Partition) -> None:
    end = partition.bounds().end
    for start in range(end + 1):
        for stop in range(start, end + 1):
            table = partition.scan(start, stop, columns=["offset", "value"]).read_all()
            assert rows(table) == [(record.offset, record.value) for record in partition.records(start, stop)]


@given(columns=st.permutations(RAW.full.names).flatmap(lambda n: st.integers(1, 5).map(lambda count: n[:count])))
def test_chosen_columns_are_those_of_the_whole(columns: list[str]) -> None:
    from headwater.log import MemoryPartition

    with MemoryPartition() as partition:
        partition.append(encode([b"a" * 600, b"b"], keys=[b"1", None], compression="zstd"))
        partition.append(encode([b"c"]))
        table = partition.scan(columns=columns).read_all()
        assert table.schema.names == columns
        assert table.equals(partition.scan().read_all().select(columns))


@given(st.data(), strategies.compressions)
def test_a_projection_of_any_frame_is_part_of_the_whole(data: st.DataObject, compression: Compression) -> None:
    schema = data.draw(strategies.schemas())
    batch = data.draw(strategies.batches(schema))
    keys = data.draw(st.none() | st.just([b"k"] * batch.num_rows))
    frame = stored(encode_batch(batch, schema, keys=keys, compression=compression, threshold=0), 100)
    whole = Projection(schema, None).batch(frame)
    names = data.draw(st.permutations(schema.full.names))[: data.draw(st.integers(1, len(schema.full.names)))]
    part = Projection(schema, names).batch(frame)
    assert part.equals(whole.select(names))
    start, end = data.draw(st.integers(95, 110)), data.draw(st.integers(95, 110))
    few = Projection(schema, names).batch(frame, start, end)
    first = max(start - 100, 0)
    assert few.equals(whole.select(names).slice(first, max(min(end - 100, batch.num_rows) - first, 0)))


@given(st.data(), strategies.compressions)
def test_a_projection_with_explicit_offsets_finds_its_range(data: st.DataObject, compression: Compression) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(100, 130), min_size=1, max_size=8)))
    batch = pa.record_batch([pa.array([b"%d" % offset for offset in offsets], pa.binary())], names=["value"])
    frame = encode_batch(batch, RAW, offsets=pa.array(offsets), compression=compression, threshold=0)
    start, end = data.draw(st.integers(95, 135)), data.draw(st.integers(95, 135))
    kept = stored(frame, offsets[0])
    wanted = [offset for offset in offsets if start <= offset < end]
    assert Projection(RAW, ["value"]).batch(kept, start, end)["value"].to_pylist() == [b"%d" % o for o in wanted]
    assert [record.offset for record in kept.records(start, end)] == wanted


@pytest.mark.parametrize("columns", [["nothing"], [], ["value", "value"], ["_offset"]])
def test_columns_that_are_not_there_are_refused(partition: Partition, columns: list[str]) -> None:
    with pytest.raises(SchemaError, match="there are offset, timestamp, key, headers, value"):
        partition.scan(columns=columns)


def test_a_scan_is_a_stream_of_batches(partition: Partition) -> None:
    reader = partition.scan()
    assert isinstance(reader, pa.RecordBatchReader)
    assert sum(batch.num_rows for batch in reader) == sum(1 for _ in partition.records())


def test_columns_that_were_added_later_are_null_in_older_records(open_partition: OpenPartition) -> None:
    partition = open_partition()
    old = Schema(pa.schema([("x", pa.int64())]))
    new = Schema(pa.schema([("y", pa.string()), ("x", pa.int64())]))
    partition.append(encode_batch(pa.record_batch({"x": [1]}), old))
    partition.append(encode_batch(pa.record_batch({"y": ["a"], "x": [2]}), new))
    assert partition.scan(columns=["x", "y"], schema=new).read_all().to_pylist() == [
        {"x": 1, "y": None},
        {"x": 2, "y": "a"},
    ]
    assert partition.scan(columns=["x"], schema=old).read_all().to_pylist() == [{"x": 1}, {"x": 2}]


def test_a_required_column_that_older_records_lack_is_an_error(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode_batch(pa.record_batch({"x": [1]}), Schema(pa.schema([("x", pa.int64())]))))
    strict = Schema(pa.schema([("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)]))
    with pytest.raises(SchemaError, match="'y' must not be null"):
        partition.scan(schema=strict).read_all()


def test_a_column_that_has_another_type_is_an_error(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode_batch(pa.record_batch({"x": [1]}), Schema(pa.schema([("x", pa.int64())]))))
    with pytest.raises(SchemaError, match="'x' is string here and was stored as int64"):
        partition.scan(schema=Schema(pa.schema([("x", pa.string())]))).read_all()
