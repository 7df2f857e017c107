"""Changes become a table: a topic says what happened to each customer, a Delta table shows how they are now.

Each batch is merged in one commit: the newest change of a key counts, and a delete marker removes its row. A batch that
is done again after a crash makes the same table of it.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.functions import expr, max_by, struct

import headwater as hw
from examples.spark import workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CUSTOMERS = pa.schema([("name", pa.string()), ("city", pa.string()), ("orders", pa.int64())])
TABLE = pa.schema([("id", pa.string()), *CUSTOMERS])


def fill(store: hw.Store) -> None:
    """Two hundred changes of a dozen customers: they come, move, order, and some want to be forgotten."""
    dice = Random(1)
    orders = dict.fromkeys((f"c{number:02d}" for number in range(12)), 0)
    store.create_topic("customers", partitions=2, schema=CUSTOMERS, compact=True)
    with store.producer("customers") as out:
        for _ in range(200):
            id = dice.choice(list(orders))
            orders[id] += 1
            change = {"name": f"Customer {id}", "city": dice.choice(["Oslo", "Lima", "Kyoto"]), "orders": orders[id]}
            out.send(None if dice.random() < 0.2 else change, key=id.encode())


def run(spark: SparkSession, directory: Path) -> DataFrame:
    """The table, up to the last change."""
    path = str(directory / "customers")
    DeltaTable.create(path, TABLE)
    changes = (
        spark.readStream.format("headwater")
        .option("store", str(directory / "store"))
        .option("topic", "customers")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 80)
        .load()
    )
    query = (
        changes.writeStream.foreachBatch(lambda batch, _: merge(batch, DeltaTable(path)))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.createDataFrame(DeltaTable(path).to_pyarrow_table()).orderBy("id")


def merge(changes: DataFrame, table: DeltaTable) -> None:
    """One batch of changes, in one commit. All changes of a key are in one partition, in order of their offsets."""
    newest = changes.groupBy(expr("string(_key)").alias("id")).agg(
        max_by(struct(*CUSTOMERS.names), "_offset").alias("new")
    )
    merging = table.merge(newest.select("id", "new.*").toArrow(), "old.id = new.id", "new", "old")
    merging = merging.when_matched_delete("new.name IS NULL").when_matched_update_all()
    merging.when_not_matched_insert_all("new.name IS NOT NULL").execute()


def main() -> None:
    """Make changes, and show the table."""
    with workbench() as (spark, directory):
        with hw.open(directory / "store") as store:
            fill(store)
        run(spark, directory).show()


if __name__ == "__main__":
    main()
