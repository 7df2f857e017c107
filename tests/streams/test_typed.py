"""Typed logs: rows of the user's own columns, beside raw ones if need be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater import Record, Schema
from headwater.core.record import NO_HEADERS
from headwater.log import encode, encode_batch
from tests.support.backends import OpenDirectory, OpenPartition

TRADES = Schema(
    pa.schema(
        [
            pa.field("symbol", pa.string(), nullable=False),
            ("price", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("timestamp", pa.timestamp("us", "UTC")),
        ]
    )
)


def trade(symbol: str, price: float | None, tags: list[str] | None = None) -> dict[str, object]:
    return {"symbol": symbol, "price": price, "tags": tags, "timestamp": None}


def batch(*rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=TRADES.payload)


def test_typed_records_have_dicts_for_values(open_partition: OpenPartition) -> None:
    partition = open_partition()
    rows = [trade("HW", 1.5, ["a", "b"]), trade("HX", None)]
    partition.append(encode_batch(batch(*rows), TRADES, keys=[b"HW", None], timestamps=[7, 8]))
    assert list(partition.records()) == [
        Record(0, 7, b"HW", rows[0], NO_HEADERS),
        Record(1, 8, None, rows[1], NO_HEADERS),
    ]


def test_a_users_own_timestamp_column_stays_apart_from_the_logs(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode_batch(batch(trade("HW", 1.0)), TRADES, timestamps=7))
    table = partition.scan(schema=TRADES).read_all()
    assert table.schema.names == ["_offset", "_timestamp", "_key", "_headers", *TRADES.payload.names]
    assert table["_timestamp"].cast(pa.int64()).to_pylist() == [7]
    assert table["timestamp"].to_pylist() == [None]


def test_a_row_of_nulls_is_a_delete_marker(open_partition: OpenPartition) -> None:
    schema = Schema(pa.schema([("x", pa.int64()), ("y", pa.string())]))
    partition = open_partition()
    rows = pa.RecordBatch.from_pylist([{"x": None, "y": None}, {"x": None, "y": ""}], schema=schema.payload)
    partition.append(encode_batch(rows, schema, keys=[b"a", b"b"]))
    assert [record.value for record in partition.records()] == [None, {"x": None, "y": ""}]


def test_values_are_cast_where_nothing_is_lost(open_partition: OpenPartition) -> None:
    schema = Schema(pa.schema([("x", pa.int64())]))
    partition = open_partition()
    partition.append(encode_batch(pa.record_batch({"x": pa.array([1, 2], pa.int8())}), schema))
    assert [record.value for record in partition.records()] == [{"x": 1}, {"x": 2}]


def test_raw_and_typed_records_can_share_a_log(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append([encode([b"raw"]), encode_batch(batch(trade("HW", 1.0)), TRADES)])
    assert [record.value for record in partition.records()] == [b"raw", trade("HW", 1.0)]


def test_a_schema_is_known_after_reopening(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(encode_batch(batch(trade("HW", 1.0)), TRADES))
    again = open_directory()
    assert [record.value for record in again.records()] == [trade("HW", 1.0)]
    assert again.schemas.get(TRADES.id) == TRADES


def test_another_handle_reads_a_schema_that_came_after_it_was_opened(open_directory: OpenDirectory) -> None:
    reader, writer = open_directory(), open_directory()
    writer.append(encode_batch(batch(trade("HW", 1.0)), TRADES))
    assert [record.value for record in reader.records()] == [trade("HW", 1.0)]


def test_typed_records_are_cut_and_truncated_like_raw_ones(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode_batch(batch(*(trade(name, 1.0) for name in "ABCDE")), TRADES))
    partition.truncate(4)
    partition.delete_before(1)
    assert [record.value["symbol"] for record in partition.records()] == ["B", "C", "D"]
    assert partition.scan(2, 3, columns=["symbol"], schema=TRADES).read_all().to_pylist() == [{"symbol": "C"}]


def test_a_schema_whose_file_is_gone_is_named(open_directory: OpenDirectory) -> None:
    from headwater import UnknownSchema

    with open_directory() as partition:
        partition.append(encode_batch(batch(trade("HW", 1.0)), TRADES))
    (partition.path / "schemas" / f"{TRADES.id:016x}.arrow").unlink()
    with pytest.raises(UnknownSchema, match=f"{TRADES.id:016x}") as caught:
        list(open_directory().records())
    assert caught.value.schema_id == TRADES.id
