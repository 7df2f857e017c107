"""The log refuses input that it cannot store, with an error that says why, before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater import InvalidRecord, PartitionConfig, Schema, SchemaError
from headwater.log import Identity, encode, encode_batch
from tests.support.backends import OpenPartition

anything: Any = encode
"""`encode`, for arguments of types that it does not allow."""
any_batch: Any = encode_batch
TYPED = Schema(pa.schema([("x", pa.int64())]))

RECORDS: dict[str, tuple[Callable[[], object], str]] = {
    "no records": (lambda: encode([]), "at least one record"),
    "values of another type": (lambda: anything([1]), "values must be binary"),
    "one value instead of several": (lambda: anything(b"abc"), "values must be binary"),
    "no sequence": (lambda: anything(5), "values must be binary"),
    "an array of another type": (lambda: encode(pa.array([1])), "values must be binary"),
    "too few keys": (lambda: encode([b"a", b"b"], keys=[b"k"]), "different lengths: 1 and 2"),
    "too many headers": (lambda: encode([b"a"], headers=[{"a": b""}] * 2), "different lengths: 2 and 1"),
    "too few timestamps": (lambda: encode([b"a", b"b"], timestamps=[1]), "different lengths: 1 and 2"),
    "keys of another type": (lambda: anything([b"a"], keys=[1]), "keys must be binary"),
    "headers that are none": (lambda: anything([b"a"], headers=5), "headers must be"),
    "headers that are no mapping": (lambda: anything([b"a"], headers=[5]), "headers must be"),
    "a header's value of another type": (lambda: anything([b"a"], headers=[{"h": 1}]), "headers must be"),
    "a header's name of another type": (lambda: anything([b"a"], headers=[{1: b"h"}]), "headers must be"),
    "a header's name that is not Unicode": (lambda: encode([b"a"], headers=[{"\ud800": b""}]), "headers must be"),
    "a timestamp too large": (lambda: encode([b"a"], timestamps=1 << 63), "64-bit nanoseconds"),
    "a timestamp among others too small": (lambda: encode([b"a"], timestamps=[-(1 << 63) - 1]), "64-bit nanoseconds"),
    "a fraction of a nanosecond": (lambda: anything([b"a"], timestamps=1.5), "64-bit nanoseconds"),
    "a timestamp that is text": (lambda: encode([b"a"], timestamps=pa.array(["noon"])), "timestamps must be"),
    "a timestamp out of range": (
        lambda: encode([b"a"], timestamps=pa.array([1 << 62], pa.timestamp("s"))),
        "timestamps must be",
    ),
    "no timestamp for one": (lambda: encode([b"a"], timestamps=pa.array([None], pa.int64())), "must not be null"),
    "a short producer id": (lambda: encode([b"a"], identity=Identity(b"short", 0, 0)), "identity"),
    "a producer id of zeros": (lambda: encode([b"a"], identity=Identity(bytes(16), 0, 0)), "identity"),
    "a producer id that is text": (lambda: anything([b"a"], identity=Identity("x" * 16, 0, 0)), "identity"),  # type: ignore[arg-type]
    "a negative sequence": (lambda: encode([b"a"], identity=Identity(b"x" * 16, 0, -1)), "identity"),
    "a sequence too large": (lambda: encode([b"a"], identity=Identity(b"x" * 16, 0, 1 << 63)), "identity"),
    "an epoch too large": (lambda: encode([b"a"], identity=Identity(b"x" * 16, 1 << 32, 0)), "identity"),
    "an unknown compression": (lambda: anything([b"a" * 1000], compression="gzip"), "compression"),
    "an unknown compression of little": (lambda: anything([b"a"], compression="gzip"), "compression"),
    "a missing column": (lambda: encode_batch(pa.record_batch({"y": [1]}), TYPED), r"missing \['x'\].*unknown \['y'\]"),
    "columns in another order": (
        lambda: encode_batch(
            pa.record_batch({"b": [1], "a": [1]}), Schema(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
        ),
        "in another order",
    ),
    "text for a number": (lambda: encode_batch(pa.record_batch({"x": ["a"]}), TYPED), "column 'x' is string, not"),
    "a fraction for a number": (lambda: encode_batch(pa.record_batch({"x": [1.5]}), TYPED), "column 'x' is double"),
    "a table": (lambda: any_batch(pa.table({"x": [1]}), TYPED), "RecordBatch"),
    "a dict": (lambda: any_batch({"x": [1]}, TYPED), "RecordBatch"),
    "an empty batch": (lambda: encode_batch(pa.record_batch({"x": pa.array([], pa.int64())}), TYPED), "at least one"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_cannot_be_stored_are_refused(name: str) -> None:
    attempt, message = RECORDS[name]
    with pytest.raises(InvalidRecord, match=message):
        attempt()


@pytest.mark.parametrize("payload", [None, {"x": pa.int64()}, [("x", pa.int64())]])
def test_what_is_no_schema_is_refused(payload: Any) -> None:
    with pytest.raises(SchemaError, match=r"pyarrow\.Schema"):
        Schema(payload)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 100])
def test_bytes_that_hold_no_schema_are_refused(content: bytes) -> None:
    with pytest.raises(SchemaError, match="not an Arrow schema"):
        Schema.deserialize(content)


@pytest.mark.parametrize("frames", [[], (), 5, b"x", None, [b"x"], "frame", [None]], ids=repr)
def test_only_frames_are_appended(open_partition: OpenPartition, frames: Any) -> None:
    partition = open_partition()
    with pytest.raises(InvalidRecord):
        partition.append(frames)
    assert partition.bounds().end == 0
    assert partition.statistics().total_appends == 0


def test_a_frame_over_the_limit_is_refused(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(max_frame_bytes=4096))
    small, large = encode([b"x"]), encode([b"x" * 4096])
    with pytest.raises(InvalidRecord, match=f"frame of {large.length} bytes is over the limit of 4096"):
        partition.append(large)
    with pytest.raises(InvalidRecord):
        partition.append([small, large])
    assert partition.bounds().end == 0
    partition.append(small)
    assert [record.value for record in partition.records()] == [b"x"]


def test_a_frame_with_its_own_offsets_is_not_appended(open_partition: OpenPartition) -> None:
    partition = open_partition()
    frame = encode_batch(pa.record_batch({"x": [1, 2]}), TYPED, offsets=pa.array([5, 9]))
    with pytest.raises(InvalidRecord, match="only plain frames"):
        partition.append(frame)
    assert partition.bounds().end == 0


def test_an_error_of_one_appender_is_not_anothers(open_partition: OpenPartition) -> None:
    partition = open_partition()
    with pytest.raises(InvalidRecord):
        partition.append([])
    assert partition.append(encode([b"x"])).base_offset == 0
