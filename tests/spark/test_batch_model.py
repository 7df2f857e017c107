"""Random topics, ranges and splits: Spark gives what a plain reading of the log gives."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headwater as hw

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])
RAW_VALUES = st.none() | st.binary(max_size=20)
TYPED_VALUES = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(max_size=8),
        "list": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3),
    },
)


class Sent(NamedTuple):
    """One record to send: where to, when, and what."""

    partition: int
    key: bytes | None
    value: Any
    timestamp: int


@st.composite
def records(draw: st.DrawFn, partitions: int, values: st.SearchStrategy[Any]) -> list[Sent]:
    sent = st.builds(
        Sent,
        partition=st.integers(0, partitions - 1),
        key=st.binary(min_size=1, max_size=4),  # a delete marker needs one
        value=values,
        timestamp=st.integers(-(10**15), 10**18),
    )
    return draw(st.lists(sent, max_size=60))


def _micros(nanoseconds: int) -> int:
    """As Arrow cuts nanoseconds off: towards 1970."""
    return nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000)


@pytest.fixture(scope="module")
def stores() -> itertools.count[int]:
    return itertools.count()


# Each example is a query, so finding the smallest one that fails would take longer than a test may.
@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_spark_reads_what_the_log_holds(
    spark: SparkSession, tmp_path: Path, stores: itertools.count[int], data: st.DataObject
) -> None:
    partitions = data.draw(st.integers(1, 3), "partitions")
    typed = data.draw(st.booleans(), "typed")
    frame_records = data.draw(st.integers(1, 12), "records in a frame")
    compression = data.draw(st.sampled_from(["none", "zstd", "lz4"]), "compression")
    with hw.open(tmp_path / f"store-{next(stores)}") as store:
        topic = store.create_topic(
            "topic",
            partitions=partitions,
            schema=SCHEMA if typed else None,
            compression=compression,
            compression_threshold=0,
            segment_bytes=4096,
        )
        with store.producer("topic", batch_records=frame_records, linger=60.0) as out:
            for sent in data.draw(records(partitions, TYPED_VALUES if typed else RAW_VALUES), "records"):
                out.send(sent.value, key=sent.key, partition=sent.partition, timestamp=sent.timestamp)
        ends = {number: bounds.end for number, bounds in topic.bounds().items()}
        ranges = {
            number: sorted(data.draw(st.tuples(st.integers(0, end), st.integers(0, end)), f"range of {number}"))
            for number, end in ends.items()
        }
        for number in range(partitions):
            topic.partition(number).delete_before(data.draw(st.integers(0, ranges[number][0]), f"removed of {number}"))
        reader = spark.read.format("headwater").option("store", str(store)).option("topic", "topic")
        for option, side in ("startingOffsets", 0), ("endingOffsets", 1):
            reader = reader.option(option, json.dumps({"topic": {str(n): both[side] for n, both in ranges.items()}}))
        if data.draw(st.booleans(), "split"):
            reader = reader.option("minPartitions", data.draw(st.integers(1, 9), "tasks"))
        prefix = "_" if typed else ""
        names = [
            *(SCHEMA.names if typed else ["value"]),
            *(f"{prefix}{name}" for name in ("key", "partition", "offset")),
        ]
        chosen = data.draw(st.permutations(names), "columns")[: data.draw(st.integers(1, len(names)), "how many")]
        rows = reader.option("columns", json.dumps([*chosen, f"{prefix}timestamp"])).load()
        micros = rows.selectExpr(*(f"`{name}`" for name in chosen), f"unix_micros(`{prefix}timestamp`)").collect()
        expected = []
        for number, (first, last) in ranges.items():
            for record in topic.partition(number).records(first, last):
                payload = (record.value or dict.fromkeys(SCHEMA.names)) if typed else {"value": record.value}
                system = {"key": record.key, "partition": number, "offset": record.offset}
                row = payload | {f"{prefix}{name}": value for name, value in system.items()}
                expected.append((*(row.get(name) for name in chosen), _micros(record.timestamp)))
        assert sorted(map(repr, map(tuple, micros))) == sorted(map(repr, expected))
