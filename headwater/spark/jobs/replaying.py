"""Replaying: records of a topic, of a range of offsets or time, go to another topic once, changed on the way or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Observation, functions

from headwater.core.errors import InvalidConfiguration
from headwater.core.names import check_name
from headwater.embedded.directory_ledger import DirectoryLedger
from headwater.embedded.directory_store import TRANSACTIONS
from headwater.log.files.disk import REAL_DISK
from headwater.spark.address import open_existing
from headwater.spark.jobs.tasks import OnProgress, watched
from headwater.streams.named_writer import named_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW: Final = "source"
"""The name of the topic in the statement."""


class Replayed(NamedTuple):
    """The result of a replay. A replay that was done before, under the same name, writes nothing."""

    writer: str
    rows: int
    repeated: bool


def replay(
    spark: SparkSession,
    store: str,
    source: str,
    target: str,
    *,
    to_store: str | None = None,
    options: Mapping[str, str] | None = None,
    sql: str | None = None,
    name: str | None = None,
    on_progress: OnProgress | None = None,
) -> Replayed:
    """Write what `source` holds to `target`: all of it in one transaction that counts once under `name`.

    `options` are those of the source, for a range or an archive. `sql` selects from `source`. Without a name it is made
    of all that is asked for: the same replay, asked for again, is done once.
    """
    to_store = store if to_store is None else to_store
    with open_existing(store) as opened, open_existing(to_store) as other:
        infos = opened.topic(source).info, other.topic(target).info
        prefix = "" if opened.topic(source).schema.raw else "_"
    if infos[0].uuid == infos[1].uuid:
        raise InvalidConfiguration(f"topic {source!r} cannot be replayed to itself: make another one for it")
    chosen = dict(options or {})
    asked = json.dumps([*(info.uuid.hex() for info in infos), sql, sorted(chosen.items())]).encode()
    writer = name if name is not None else f"replay-{hashlib.blake2b(asked, digest_size=8).hexdigest()}"
    check_name("writer", writer)
    if _done(to_store, writer):
        return Replayed(writer, 0, True)
    reader = spark.read.format("headwater").option("store", store).option("topic", source)
    rows = reader.option("includeHeaders", "true").options(**chosen).load()
    if infos[0].partitions != infos[1].partitions:
        rows = rows.drop(f"{prefix}partition")  # it is for the keys to say
    if sql is not None:
        rows.createOrReplaceTempView(VIEW)
        rows = spark.sql(sql)
    counted = Observation()
    rows = rows.observe(counted, functions.count(functions.lit(1)).alias("rows"))
    with watched(spark, on_progress):
        (
            rows.write.format("headwater")
            .mode("append")
            .option("store", to_store)
            .option("topic", target)
            .option("txnId", writer)
            .option("txnVersion", 0)
            .save()
        )
    return Replayed(writer, counted.get["rows"], False)


def _done(store: str, writer: str) -> bool:
    """Return whether this writer has committed. Opening the store has completed decided transactions."""
    return DirectoryLedger(Path(store) / TRANSACTIONS, REAL_DISK).used(named_writer(writer)) >= 0
