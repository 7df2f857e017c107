"""Orders meet their payments: two streams joined, and orders that nobody pays within fifteen minutes are found too.

Watermarks tell Spark how long either side has to wait for the other, so what it remembers stays small. The result is a
topic again, and each order is in it exactly once.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import expr

import headwater as hw
from examples.spark import workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.int64())])
PAYMENTS = pa.schema([("order_id", pa.int64()), ("amount", pa.int64())])
SETTLED = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.int64()), ("paid", pa.int64())])
NOON = 1_767_614_400_000_000_000  # 5 January 2026, 12:00, as nanoseconds
MINUTE = 60_000_000_000


def fill(store: hw.Store) -> None:
    """An hour of orders: most are paid in time, some too late, some never. An hour later there is one more of each."""
    dice = Random(7)
    store.create_topic("orders", partitions=2, schema=ORDERS)
    store.create_topic("payments", partitions=2, schema=PAYMENTS)
    with store.producer("orders") as orders, store.producer("payments") as payments:
        for number in range(60):
            ordered = NOON + number * MINUTE
            price = dice.randint(2, 30)
            item = dice.choice(["tea", "cup", "kettle"])
            orders.send({"id": number, "item": item, "price": price}, key=b"%d" % number, timestamp=ordered)
            if dice.random() < 0.8:
                paid = ordered + dice.randrange(20 * MINUTE)
                payments.send({"order_id": number, "amount": price}, key=b"%d" % number, timestamp=paid)
        last = NOON + 120 * MINUTE
        orders.send({"id": 60, "item": "tea", "price": 3}, timestamp=last)
        payments.send({"order_id": 60, "amount": 3}, timestamp=last)


def run(spark: SparkSession, directory: Path) -> DataFrame:
    """Every order whose time is up, with what was paid for it."""
    address = str(directory / "store")
    with hw.open(address) as store:
        store.create_topic("settled", schema=SETTLED)

    def stream(topic: str) -> DataFrame:
        reader = spark.readStream.format("headwater").option("store", address).option("topic", topic)
        return reader.option("startingOffsets", "earliest").load()

    orders = stream("orders").withWatermark("_timestamp", "1 minute").alias("orders")
    payments = stream("payments").withWatermark("_timestamp", "1 minute").alias("payments")
    in_time = """
        id = order_id AND payments._timestamp >= orders._timestamp
                      AND payments._timestamp < orders._timestamp + INTERVAL 15 MINUTES
    """
    settled = orders.join(payments, expr(in_time), "left").selectExpr("id", "item", "price", "amount AS paid")
    query = (
        settled.writeStream.format("headwater")
        .option("store", address)
        .option("topic", "settled")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    result = spark.read.format("headwater").option("store", address).option("topic", "settled").load()
    return result.select("id", "item", "price", "paid").orderBy("id")


def main() -> None:
    """Make orders and payments, and show what came of them."""
    with workbench() as (spark, directory):
        with hw.open(directory / "store") as store:
            fill(store)
        run(spark, directory).show(10)


if __name__ == "__main__":
    main()
