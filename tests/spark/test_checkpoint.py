"""Checkpoints whose driver died while it wrote its first offsets: Spark refuses them until they are cleaned."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headwater as hw
from headwater.core.errors import InvalidConfiguration
from tests.spark.pipelines import Pipelines, send, values

UNFINISHED = ".0.0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f.tmp"


def leave(checkpoint: Path, *names: str, log: str = "offsets") -> list[Path]:
    """Files as a driver leaves them."""
    (checkpoint / log).mkdir(parents=True, exist_ok=True)
    files = [checkpoint / log / name for name in names]
    for file in files:
        file.write_bytes(b"v1\n{")
    return files


def test_what_an_unfinished_first_batch_left_is_removed_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = [
        *leave(tmp_path, UNFINISHED, f".{UNFINISHED}.crc", ".1.ffffffff-ffff-ffff-ffff-ffffffffffff.tmp"),
        *leave(tmp_path, UNFINISHED, log="commits"),
    ]
    kept = [
        *leave(tmp_path, "mine.tmp", ".0.crc", ".hidden", ".0.text.tmp", f"x{UNFINISHED}"),
        *leave(tmp_path, UNFINISHED, log="state"),
    ]
    (tmp_path / "metadata").write_text('{"id": "x"}')
    with caplog.at_level(logging.WARNING):
        removed = hw.spark.clean_checkpoint(tmp_path)
    assert set(removed) == set(left)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in kept)
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path) in line
    assert f"offsets/{UNFINISHED}" in line
    assert hw.spark.clean_checkpoint(str(tmp_path)) == []


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_nothing_is_removed_once_a_batch_has_begun(tmp_path: Path, log: str) -> None:
    files = [*leave(tmp_path, UNFINISHED), *leave(tmp_path, "0", log=log)]
    assert hw.spark.clean_checkpoint(tmp_path) == []
    assert all(file.exists() for file in files)


def test_a_checkpoint_is_named_by_a_path_or_an_address_of_this_machine(tmp_path: Path) -> None:
    for location in (f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b"):
        (left,) = leave(tmp_path / "a b", UNFINISHED)
        assert hw.spark.clean_checkpoint(location) == [left]
    assert hw.spark.clean_checkpoint(tmp_path / "nothing") == []
    with pytest.raises(InvalidConfiguration, match="by hand"):
        hw.spark.clean_checkpoint("s3a://bucket/checkpoint")


def test_a_folder_that_cannot_be_read_is_an_error_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("")
    with pytest.raises(hw.OpenFailed, match="offsets"):
        hw.spark.clean_checkpoint(tmp_path)


def test_a_plain_query_starts_again_once_its_checkpoint_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders")
        store.create_topic("copies")
        send(store, "orders", 0, 5)

    def start() -> StreamingQuery:
        options = {"store": str(tmp_path / "store"), "topic": "orders", "startingOffsets": "earliest"}
        frame = spark.readStream.format("headwater").options(**options).load().selectExpr("key", "value")
        writer = (
            frame.writeStream.format("headwater").option("store", str(tmp_path / "store")).option("topic", "copies")
        )
        return writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()

    leave(tmp_path / "state", UNFINISHED)
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_LOCATION_NOT_EMPTY"):
        start().awaitTermination()
    assert len(hw.spark.clean_checkpoint(tmp_path / "state")) == 1
    start().awaitTermination()
    start().awaitTermination()  # and goes on: nothing is left to do
    with hw.open(tmp_path / "store") as store:
        assert values(store, "copies") == ["0", "1", "2", "3", "4"]


def test_a_pipeline_cleans_the_checkpoints_of_its_queries(
    pipelines: Pipelines, store: hw.Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("numbers")
    send(store, "numbers", 0, 5)
    pipeline = pipelines.load(
        """
sources: {numbers: {topic: numbers}}
sinks: {copies: {from: numbers, topic: copies, partitions: 1}}
"""
    )
    left = leave(pipeline.declaration().checkpoint / "queries" / "copies", UNFINISHED, f".{UNFINISHED}.crc")
    with caplog.at_level(logging.WARNING):
        pipelines.run(pipeline)
    assert not any(file.exists() for file in left)
    assert values(store, "copies") == ["0", "1", "2", "3", "4"]
    assert any(UNFINISHED in record.getMessage() for record in caplog.records)
