"""`hw topic copy`: the records of a topic in another one, here or in another store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import typer

from headwater.cli.output import Json, done, wants_json, write_json
from headwater.cli.progress import progress
from headwater.cli.records.span import From, To, nearest, parse_span
from headwater.cli.target import StoreOption, TopicName, connect, opened
from headwater.core.errors import HeadwaterError, TopicExists
from headwater.log.format.encode import encode_batch
from headwater.streams.routing import partition_of

if TYPE_CHECKING:
    from headwater.core.schema import Schema
    from headwater.streams import Store, Topic

_FRAME_BYTES: Final = 1024 * 1024
"""About so much is gathered into one frame."""


def copy(
    source: TopicName,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="The name of the copy; without it, the same name.", show_default=False),
    ] = None,
    to_store: Annotated[
        str | None, typer.Option("--to-store", metavar="STORE", help="Another store: a directory, hw://…, or @name.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="Spread the records by key over N partitions."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append to a topic that exists.")] = False,
    start: From = None,
    end: To = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Copy a topic: its columns, its configuration and its records, with keys, headers and timestamps.

    Records keep their order, and their partitions unless --partitions spreads them anew. Offsets are new.
    """
    span = parse_span(start, end)
    began = time.monotonic()
    with opened(store) as opened_store:
        topic = opened_store.topic(source)
        name = target or source
        other = opened_store if to_store is None else connect(to_store, make=True)
        try:
            parts = topic.partitions()
            several = len(parts) > 1
            ranges = [
                (
                    partition,
                    nearest(partition, span.start, several=several),
                    nearest(partition, span.end, several=several),
                )
                for partition in parts
            ]
            copied = _target(topic, other, name, partitions, append)
            count = 0
            spread = copied.info.partitions != topic.info.partitions
            with progress("copying", sum(max(last - first, 0) for _, first, last in ranges), "records") as advance:
                for number, (partition, first, last) in enumerate(ranges):
                    if first >= last:
                        continue
                    batches = partition.scan(first, last, schema=topic.schema)
                    for records in _copy(batches, copied, number, spread):
                        count += records
                        advance(records)
            where = str(other)
        finally:
            if other is not opened_store:
                other.close()
    seconds = time.monotonic() - began
    if wants_json(as_json):
        write_json({"topic": name, "store": where, "records": count, "seconds": round(seconds, 3)})
    else:
        done(f"{count:,} records copied to {name} in {where} ({count / max(seconds, 1e-3):,.0f}/s)")


def _target(topic: Topic, store: Store, name: str, partitions: int | None, append: bool) -> Topic:
    """The topic to copy to, made if need be."""
    info, schema = topic.info, topic.schema
    try:
        config = asdict(info.config)
        return store.create_topic(name, partitions or info.partitions, None if schema.raw else schema.payload, **config)
    except TopicExists:
        if not append:
            raise HeadwaterError(f"topic {name!r} exists in {store}: --append appends to it") from None
    existing = store.topic(name)
    if existing.schema != schema:
        raise HeadwaterError(f"topic {name!r} in {store} has other columns than {topic.name!r}: copy to a new topic")
    if partitions is not None and partitions != existing.info.partitions:
        raise HeadwaterError(
            f"topic {name!r} in {store} has {existing.info.partitions} partitions: leave --partitions out"
        )
    return existing


def _copy(batches: Iterable[pa.RecordBatch], topic: Topic, number: int, spread: bool) -> Iterator[int]:
    """Append the records of a partition to a topic, each time telling how many more were read."""
    info, schema = topic.info, topic.schema
    limit = min(_FRAME_BYTES, info.config.max_frame_bytes // 4)
    pending: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for target, part in _routed(batch, schema.system("key"), number, info.partitions, spread):
            gathered = pending.setdefault(target, [])
            gathered.append(part)
            if sum(gathered_part.nbytes for gathered_part in gathered) >= limit:
                _append(topic, schema, target, pending.pop(target))
        yield batch.num_rows
    for target, gathered in pending.items():
        _append(topic, schema, target, gathered)


def _routed(
    batch: pa.RecordBatch, key: str, number: int, partitions: int, spread: bool
) -> list[tuple[int, pa.RecordBatch]]:
    """The batch by the partitions that its records go to: their own, or by key."""
    if not spread:
        return [(number, batch)]
    rows: dict[int, list[int]] = {}
    for row, record_key in enumerate(batch.column(key).to_pylist()):
        target = number % partitions if record_key is None else partition_of(record_key, partitions)
        rows.setdefault(target, []).append(row)
    return [(target, batch.take(chosen)) for target, chosen in rows.items()]


def _append(topic: Topic, schema: Schema, number: int, batches: list[pa.RecordBatch]) -> None:
    config = topic.info.config
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    keys, headers = batch.column(schema.system("key")), batch.column(schema.system("headers"))
    frame = encode_batch(
        batch.select(schema.payload.names),
        schema,
        keys=keys if keys.null_count < len(keys) else None,
        headers=headers if headers.null_count < len(headers) else None,
        timestamps=batch.column(schema.system("timestamp")).view(pa.int64()),
        compression=config.compression,
        threshold=config.compression_threshold,
    )
    topic.partition(number).append(frame)
