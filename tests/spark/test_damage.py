"""Damage is named through Spark, never served: whatever bit is flipped, whatever columns are read."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import headwater as hw
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.spark.datasource import HeadwaterSource

FLIPS = 200
COLUMNS = ["offset", "value", "key,offset", "timestamp", "partition"]


def fill(store: hw.Store) -> Path:
    """A topic of ten compressed frames; the path of its only segment."""
    topic = store.create_topic("orders", compression="zstd", compression_threshold=0)
    with store.producer("orders", batch_records=20, linger=60.0) as out:
        for number in range(200):
            out.send(f"value {number}".encode(), key=f"key {number}".encode())
    topic.partition(0).roll()
    return Path(str(store)) / "orders" / "0" / f"{0:020d}.log"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_task_that_meets_a_flipped_bit_names_it(store: hw.Store, columns: str) -> None:
    path = fill(store)
    where = str(store)
    store.close()
    dice = random.Random(columns)
    source = HeadwaterSource({"store": where, "topic": "orders", "columns": columns})
    reader = source.reader(source.schema())
    [task] = reader.partitions()
    for _ in range(FLIPS // len(COLUMNS)):
        bit = dice.randrange(8 * SEGMENT_HEADER_BYTES, 8 * path.stat().st_size)
        flip(path, bit)
        with pytest.raises(
            hw.RangeUnreadable, match=r"orders/0: offsets 0 to 200 \(exclusive\) cannot be read: .*offset"
        ):
            list(reader.read(task))
        flip(path, bit)
    assert pa.Table.from_batches(reader.read(task)).num_rows == 200


def test_a_query_that_meets_a_flipped_bit_fails_and_names_it(spark: SparkSession, store: hw.Store) -> None:
    path = fill(store)
    flip(path, 8 * (path.stat().st_size - 100))
    frame = spark.read.format("headwater").option("store", str(store)).option("topic", "orders")
    damage = r"orders/0: offsets 0 to 200 \(exclusive\) cannot be read: .*\.log, position \d+, offset 180"
    with pytest.raises(PythonException, match=damage):
        frame.load().collect()
    with pytest.raises(PythonException, match=damage):
        frame.option("columns", "partition").load().count()
    before = frame.option("endingOffsets", '{"orders": {"0": 180}}').load()
    assert before.count() == 180  # what is good before it can be read
