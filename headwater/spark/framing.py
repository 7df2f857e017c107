"""Framing: the rows of a task become frames for the partitions that they go to, column by column.

Rows go where a producer would send them. Only the checksums of keys are computed one by one, of each key once a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
from pyspark.sql.types import StructType

import headwater.core.compute as pc
from headwater.core.config import ProducerConfig
from headwater.core.errors import HeadwaterError, InvalidRecord, UnknownTopic
from headwater.core.schema import HEADERS, KEY, TIMESTAMP
from headwater.log.format.encode import encode_batch
from headwater.spark.layout import check_layout, prefix
from headwater.streams import Staging, Store, Topic, TopicInfo
from headwater.streams.limits import check_limits
from headwater.streams.typed import pieces

_FRAME_BYTES: Final = ProducerConfig().batch_bytes
_MOST_WAITING: Final = 64 * 1024 * 1024
"""So many bytes of a task's rows wait for their frames to fill, in all partitions together."""
_NAMES: Final = ("_key", "_headers", "_timestamp")


@dataclass(frozen=True, slots=True)
class Pin:
    """A topic as it was when the batch was planned: all tasks send a key to the same partition."""

    id: str
    partitions: int

    @classmethod
    def of(cls, info: TopicInfo) -> Pin:
        """The topic as it is now."""
        return cls(info.uuid.hex(), info.partitions)


class Framing:
    """Takes Arrow batches as Spark gives them to a task, and stages frames. For one thread.

    Rows go to `topic`, or to the one that they name in `column`. `first` spreads rows without a key: they begin there.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        rows: StructType,
        *,
        topic: str | None,
        column: str,
        pins: Mapping[str, Pin],
        first: int,
    ) -> None:
        self._store = store
        self._rows = rows
        self._topic = topic
        self._column = column
        self._pins = pins
        self._first = first
        self._staging = staging
        self._topics: dict[str, _TopicFraming] = {}

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Stage all of the rows."""
        for batch in batches:
            if batch.num_rows:
                for name, part in self._by_topic(batch):
                    self._framing(name).add(part)
                if sum(framing.waiting for framing in self._topics.values()) > _MOST_WAITING:
                    self._flush()
        self._flush()

    def _flush(self) -> None:
        for framing in self._topics.values():
            framing.flush()

    def _by_topic(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            return [(self._topic, batch)]
        topics = batch.column(self._column)
        if topics.null_count:
            raise InvalidRecord(
                f"column {self._column!r} is null in {topics.null_count} rows: every row must name its topic"
            )
        names = pc.unique(topics).to_pylist()
        if len(names) == 1:
            return [(names[0], batch)]
        return [(name, batch.filter(pc.equal(topics, name))) for name in names]

    def _framing(self, name: str) -> _TopicFraming:
        framing = self._topics.get(name)
        if framing is None:
            pin = self._pins.get(name)
            if pin is None:
                raise UnknownTopic(name, str(self._store))
            topic = self._store.topic(name)
            if Pin.of(topic.info).id != pin.id:
                raise UnknownTopic(name, f"{self._store} any more (it was made again)")
            check_layout(self._rows, topic.schema, name)
            framing = self._topics[name] = _TopicFraming(topic, pin.partitions, self._first, self._staging)
        return framing


class _TopicFraming:
    """The frames of one topic."""

    def __init__(self, topic: Topic, partitions: int, first: int, staging: Staging) -> None:
        self._info = topic.info
        self._limits = topic.info.config
        self._schema = topic.schema
        self._prefix = prefix(topic.schema)
        self._count = partitions
        self._sticky = first % partitions
        self._staging = staging
        self._bytes = min(_FRAME_BYTES, self._limits.max_frame_bytes // 4)
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._sizes: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """The number of bytes that wait for their frames to fill."""
        return sum(self._sizes.values())

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of this topic."""
        batch = self._converted(rows)
        keys = batch.column("_key") if "_key" in batch.schema.names else None
        chosen = rows.column(f"{self._prefix}partition") if f"{self._prefix}partition" in rows.schema.names else None
        routes = self._routes(keys, chosen)
        if isinstance(routes, int):
            self._gather(routes, batch)
            return
        order = pc.array_sort_indices(routes)
        start = 0
        for counted in sorted(pc.value_counts(routes).to_pylist(), key=itemgetter("values")):
            # Each partition gets a copy of its own: a view, while it waits, would keep the rows of all others.
            self._gather(counted["values"], batch.take(order.slice(start, counted["counts"])))
            start += counted["counts"]

    # Columns.

    def _converted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the log has them: the payload, and what else there is, under names that no payload has."""
        columns: dict[str, pa.Array] = {}
        for field in self._schema.payload:
            if field.name not in rows.schema.names:
                columns[field.name] = pa.nulls(rows.num_rows, field.type)
            else:
                columns[field.name] = self._cast(field.name, rows.column(field.name), field.type)
        for name, convert in _CONVERSIONS.items():
            column = f"{self._prefix}{name}"
            if column in rows.schema.names:
                columns[f"_{name}"] = self._told(column, convert, rows.column(column))
        if "_timestamp" not in columns:
            columns["_timestamp"] = pa.repeat(_now(), rows.num_rows)
        return pa.RecordBatch.from_pydict(columns)

    def _cast(self, name: str, column: pa.Array, kind: Any) -> pa.Array:
        return column if column.type == kind else self._told(name, lambda array: array.cast(kind), column)

    def _told(self, name: str, convert: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
        try:
            return convert(column)
        except (pa.ArrowException, InvalidRecord) as error:
            raise InvalidRecord(
                f"topic {self._info.name!r}: column {name!r} has a value that does not fit: {error}"
            ) from error

    # Routing.

    def _routes(self, keys: pa.Array | None, chosen: pa.Array | None) -> pa.Array | int:
        """The partition of each row; one number if it is the same for all."""
        if chosen is not None and chosen.null_count == len(chosen):
            chosen = None
        if chosen is not None:
            bounds = pc.min_max(chosen).as_py()
            for number in bounds.values():
                if not 0 <= number < self._count:
                    raise InvalidRecord(
                        f"a row names partition {number} of topic {self._info.name!r}, which has 0 to {self._count - 1}"
                    )
            if not chosen.null_count:
                return chosen
        keyed = keys is not None and keys.null_count < len(keys)
        hashed = self._hashed(keys) if keyed and self._count > 1 else None
        if chosen is not None:
            return pc.coalesce(chosen, pa.scalar(self._sticky, pa.int32()) if hashed is None else hashed)
        return self._sticky if hashed is None else hashed

    def _hashed(self, keys: Any) -> pa.Array:
        """As `routing.partition_of` has it, written out: a call for each key would take as long as its checksum.

        Rows without a key go where the sticky partition is. Keys come again and again: each one is looked at once.
        """
        encoded = keys.dictionary_encode()
        count = self._count
        routes = pa.array([crc32(key) % count for key in encoded.dictionary.to_pylist()], pa.int32())
        return routes.take(encoded.indices).fill_null(self._sticky)

    # Frames.

    def _gather(self, partition: int, batch: pa.RecordBatch) -> None:
        self._check(partition, batch)
        self._gathered.setdefault(partition, []).append(batch)
        self._sizes[partition] = self._sizes.get(partition, 0) + batch.nbytes
        if self._sizes[partition] >= self._bytes:
            self._write(partition)

    def flush(self) -> None:
        """Write what waits."""
        for partition in list(self._gathered):
            self._write(partition)

    def _write(self, partition: int) -> None:
        gathered = self._gathered.pop(partition)
        del self._sizes[partition]
        batch = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        extras = [batch.column(name) if name in batch.schema.names else None for name in _NAMES]
        payload = batch.select(self._schema.payload.names)
        for start, count in pieces(batch, self._bytes):
            keys, headers, timestamps = (None if column is None else column.slice(start, count) for column in extras)
            try:
                frame = encode_batch(
                    payload.slice(start, count),
                    self._schema,
                    keys=keys,
                    headers=headers,
                    timestamps=timestamps,
                    compression=self._limits.compression,
                    threshold=self._limits.compression_threshold,
                )
            except HeadwaterError as error:
                raise InvalidRecord(f"{self._info.name}/{partition}: {error}") from error
            self._staging.append(self._info, partition, frame)
        if partition == self._sticky:
            self._sticky = (partition + 1) % self._count

    def _check(self, partition: int, batch: pa.RecordBatch) -> None:
        """Raise InvalidRecord for what a producer would not take."""
        names = batch.schema.names
        keys = batch.column("_key") if "_key" in names else None
        headers = batch.column("_headers") if "_headers" in names else None
        try:
            check_limits(batch.select(self._schema.payload.names), keys, headers, self._schema, self._limits)
        except InvalidRecord as error:
            raise InvalidRecord(f"{self._info.name}/{partition}: {error}") from error


def _now() -> Any:
    return pa.scalar(time.time_ns(), pa.int64()).cast(TIMESTAMP)


def _binary(column: pa.Array) -> pa.Array:
    """Text becomes its UTF-8, which it is already: nothing is copied."""
    return column.cast(KEY)


def _timestamps(column: pa.Array) -> pa.Array:
    timestamps = column.cast(TIMESTAMP)
    return timestamps.fill_null(_now()) if timestamps.null_count else timestamps


def _headers(column: pa.Array) -> pa.Array:
    """Kafka's list of names and values as a map."""
    if column.offset:
        column = pa.concat_arrays([column, column.slice(0, 0)])  # a copy that begins at 0: a mask needs that
    names, values = column.values.flatten()
    if names.null_count:
        raise InvalidRecord("the key of a header must not be null")
    headers = pa.MapArray.from_arrays(
        column.offsets, names, values, mask=column.is_null() if column.null_count else None
    )
    return headers.cast(HEADERS)


_CONVERSIONS: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "key": _binary,
    "headers": _headers,
    "timestamp": _timestamps,
}
