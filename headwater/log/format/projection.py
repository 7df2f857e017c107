"""A projection: frames of any age as batches of one chosen shape.

Frames leave out what they do not need: a column of keys when no record has one, offsets when they follow one another,
columns that were added to the schema later. A projection puts back what the reader asked for and decodes nothing else:
in a compressed frame only the chosen columns are decompressed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import FrameDamaged, SchemaError
from headwater.core.schema import Schema
from headwater.log.format.frame import (
    ATTRIBUTES,
    BASE_OFFSET,
    CODEC_MASK,
    CONTROL,
    EXPLICIT_OFFSETS,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LENGTH,
    SCHEMA_ID,
    Fields,
    SchemaOf,
    StoredFrame,
    Take,
    frame_schema,
    stored_frame,
)

_OFFSETS: Final = object()
_NULLS_KEPT: Final = 64


class Projection:
    """Turns frames into batches of `schema` (columns of the reader's schema, in the order asked for).

    Not thread-safe: each scan has its own.
    """

    def __init__(self, reader: Schema, columns: list[str] | None) -> None:
        self.schema: pa.Schema = reader.project(columns)
        self._reader = reader
        self._plans: dict[tuple[int, int], _Plan] = {}

    @cached_property
    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def batch(self, frame: StoredFrame, start: int = 0, end: int | None = None) -> pa.RecordBatch:
        """The records of `frame` with `start` <= offset < `end`."""
        header = frame.header
        if header.attributes & CONTROL:
            return self._empty
        plan = self._plan(frame)
        try:
            decoded = plan.decode(frame)
        except (pa.ArrowException, OSError) as error:
            raise FrameDamaged(f"a frame is not decodable: {error}", offset=header.base_offset) from error
        batch = plan.shape(frame, decoded)
        if start > header.base_offset or (end is not None and end < header.next_offset):
            first, last = _within(plan.offsets(frame, decoded), start, end)
            batch = batch.slice(first, last - first)
        return batch

    def taking(self, schema_of: SchemaOf, start: int, end: int) -> Take[pa.RecordBatch]:
        """Makes batches of the frames that a reader meets: of the records with `start` <= offset < `end`.

        Frames that are wanted whole and as they are stored, which is most of a scan, are decoded with the fewest calls.
        Control frames hold no records.
        """
        read = pa.ipc.read_record_batch
        schema_id = attributes = -1
        stored: pa.Schema | None = None

        def take(fields: Fields, buffer: pa.Buffer, position: int) -> pa.RecordBatch | None:
            nonlocal schema_id, attributes, stored
            if fields[ATTRIBUTES] != attributes or fields[SCHEMA_ID] != schema_id:
                if fields[ATTRIBUTES] & CONTROL:
                    return None
                attributes, schema_id = fields[ATTRIBUTES], fields[SCHEMA_ID]
                stored = self._plan(stored_frame(fields, buffer, position, schema_of)).stored_as_wanted
            base: int = fields[BASE_OFFSET]
            if stored is None or base < start or base + fields[LAST_OFFSET_DELTA] >= end:
                return self.batch(stored_frame(fields, buffer, position, schema_of), start, end)
            try:
                return read(buffer.slice(position + HEADER_BYTES, fields[LENGTH] - HEADER_BYTES), stored)
            except (pa.ArrowException, OSError) as error:
                raise FrameDamaged(f"a frame is not decodable: {error}", offset=base) from error

        return take

    def _plan(self, frame: StoredFrame) -> _Plan:
        key = (frame.header.schema_id, frame.header.attributes)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _Plan(self._reader, self.schema, frame)
        return plan


def _within(offsets: pa.Array, start: int, end: int | None) -> tuple[int, int]:
    """Return the part of the rising offsets that lies in [start, end): the first index, and the one after the last."""
    first: int = pc.sum(pc.less(offsets, start)).as_py()
    last: int = len(offsets) if end is None else pc.sum(pc.less(offsets, end)).as_py()
    return first, max(first, last)


class _Plan:
    """The steps that decode frames of one schema and one set of attributes for one projection."""

    def __init__(self, reader: Schema, wanted: pa.Schema, frame: StoredFrame) -> None:
        self._stored = frame_schema(frame.schema, frame.header.attributes)
        if not set(frame.schema.payload.names) & set(reader.payload.names):
            raise SchemaError(f"the records are {frame.schema}, and are read as {reader}: pass the schema to read with")
        renamed = {frame.schema.system(name): reader.system(name) for name in ("offset", "timestamp", "key", "headers")}
        names = [renamed.get(name, name) for name in self._stored.names]
        included = [number for number, name in enumerate(names) if name in wanted.names]
        self._explicit = bool(frame.header.attributes & EXPLICIT_OFFSETS)
        if self._explicit and 0 not in included:
            included.insert(0, 0)  # needed to tell where a range begins
        self._stream = None
        if frame.header.attributes & CODEC_MASK and len(included) < len(names) and included:
            self._stream = _MessageStream(self._stored, included)
            names = [names[number] for number in included]
        self._wanted = wanted
        self._sources = [self._source(field, names, included, reader) for field in wanted]
        # Where nothing stored is left out, moved or renamed, the rest is added to the decoded batch as it is. That
        # takes half the time of making a new one.
        decoded = [self._stored.field(number) for number in (included if self._stream else range(len(names)))]
        kept = [field for field, source in zip(wanted, self._sources, strict=True) if isinstance(source, int)]
        self._adds = kept == decoded
        whole = self._adds and len(kept) == len(wanted) and self._stream is None
        self.stored_as_wanted = wanted if whole else None
        """The schema to decode with, when that alone gives what is wanted: the reader's own, not one that is equal to
        it. Arrow compares the schema of each batch with the reader's, and sees at once that it is the same."""
        self._fields = list(wanted)
        self._additions = [(n, source) for n, source in enumerate(self._sources) if not isinstance(source, int)]
        self._nulls: dict[tuple[int, int], pa.Array] = {}

    def _source(self, field: Any, names: list[str], included: list[int], reader: Schema) -> int | Any:
        """Return the source of a wanted column: a position in the decoded batch, the offsets, or nulls of a type."""
        if field.name in names:
            position = names.index(field.name)
            stored = self._stored.field(included[position] if self._stream else position).type
            if stored != field.type:
                raise SchemaError(f"column {field.name!r} is {field.type} here and was stored as {stored}")
            return position
        if field.name == reader.system("offset"):
            return _OFFSETS
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} must not be null, and older records do not have it")
        return field.type

    def shape(self, frame: StoredFrame, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """The decoded batch with the wanted columns, in order."""
        if not self._adds:
            return pa.RecordBatch.from_arrays(self._columns(frame, decoded), schema=self._wanted)
        for number, source in self._additions:
            if source is _OFFSETS:
                column = self.offsets(frame, decoded)
            else:
                column = self._null_column(number, source, frame.header.record_count)
            decoded = decoded.add_column(number, self._fields[number], column)
        return decoded

    def _columns(self, frame: StoredFrame, decoded: pa.RecordBatch) -> list[pa.Array]:
        """The wanted columns, in order."""
        columns = []
        for number, source in enumerate(self._sources):
            if source is _OFFSETS:
                columns.append(self.offsets(frame, decoded))
            elif isinstance(source, int):
                columns.append(decoded.column(source))
            else:
                columns.append(self._null_column(number, source, frame.header.record_count))
        return columns

    def _null_column(self, number: int, kind: Any, count: int) -> pa.Array:
        """Frames are often alike: the nulls of one serve the next, views of the same memory."""
        column = self._nulls.get((number, count))
        if column is None:
            if len(self._nulls) >= _NULLS_KEPT:
                self._nulls.clear()
            column = self._nulls[number, count] = pa.nulls(count, kind)
        return column

    def decode(self, frame: StoredFrame) -> pa.RecordBatch:
        if self._stream is not None:
            return self._stream.decode(frame)
        return pa.ipc.read_record_batch(frame.message, self._stored)

    def offsets(self, frame: StoredFrame, decoded: pa.RecordBatch) -> pa.Array:
        return decoded.column(0) if self._explicit else pa.arange(frame.header.base_offset, frame.header.next_offset)


class _MessageStream:
    """An Arrow stream that is fed one frame at a time.

    Only streams can leave columns undecoded in pyarrow, so the frames are made to look like one, without copying.
    """

    closed = False

    def __init__(self, schema: pa.Schema, included: list[int]) -> None:
        self._feed(schema.serialize())
        options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        self._reader = pa.ipc.open_stream(pa.PythonFile(self, mode="r"), options=options)

    def _feed(self, message: pa.Buffer) -> None:
        self._view = memoryview(message)
        self._position = 0

    def decode(self, frame: StoredFrame) -> pa.RecordBatch:
        self._feed(frame.message)
        return self._reader.read_next_batch()

    def read(self, size: int = -1) -> memoryview:
        """Return the bytes that pyarrow asks for next."""
        start = self._position
        self._position = start + size
        return self._view[start : self._position]

    def readable(self) -> bool:
        """pyarrow asks."""
        return True

    def seekable(self) -> bool:
        """pyarrow asks."""
        return False

    def close(self) -> None:
        """Nothing to give back."""
