"""A projection: frames of any age as batches of one chosen shape.

Frames leave out what they do not need: a column of keys when no record has one, offsets when they follow one another,
columns that were added to the schema later. A projection puts back what the reader asked for and decodes nothing else:
in a compressed frame only the chosen columns are decompressed.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import FrameDamaged, SchemaError
from headwater.log.frame import CODEC_MASK, EXPLICIT_OFFSETS, StoredFrame, frame_schema
from headwater.schema import Schema


class Projection:
    """Turns frames into batches of `schema` (columns of the reader's schema, in the order asked for).

    Not thread-safe: each scan has its own.
    """

    def __init__(self, reader: Schema, columns: list[str] | None) -> None:
        self.schema: pa.Schema = reader.project(columns)
        self._offset = reader.system("offset")
        self._reader = reader
        self._plans: dict[tuple[int, int], _Plan] = {}

    def batch(self, frame: StoredFrame, start: int = 0, end: int | None = None) -> pa.RecordBatch:
        """The records of `frame` with `start` <= offset < `end`."""
        header = frame.header
        key = (header.schema_id, header.attributes)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _Plan(self._reader, self.schema, frame)
        try:
            found = plan.decode(frame)
        except (pa.ArrowException, OSError) as error:
            raise FrameDamaged(f"a frame is not decodable: {error}", offset=header.base_offset) from error
        offsets = None
        first, last = 0, header.record_count
        if start > header.base_offset or (end is not None and end < header.next_offset):
            offsets = plan.offsets(frame, found)
            numbers = range(header.base_offset, header.next_offset)
            if header.attributes & EXPLICIT_OFFSETS:
                first = pc.sum(pc.less(offsets, start)).as_py() or 0
                last = last if end is None else pc.sum(pc.less(offsets, end)).as_py() or 0
            else:
                first = max(start - numbers.start, 0)
                last = last if end is None else min(end - numbers.start, last)
        columns = []
        for field, position in plan.columns:
            if position >= 0:
                columns.append(found.column(position))
            elif field.name == self._offset:
                columns.append(plan.offsets(frame, found) if offsets is None else offsets)
            else:
                columns.append(pa.nulls(header.record_count, field.type))
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return whole if last - first == header.record_count else whole.slice(first, max(last - first, 0))


class _Plan:
    """How frames of one schema and one set of attributes are decoded for one projection."""

    def __init__(self, reader: Schema, wanted: pa.Schema, frame: StoredFrame) -> None:
        self._stored = frame_schema(frame.schema, frame.header.attributes)
        renamed = {frame.schema.system(name): reader.system(name) for name in ("offset", "timestamp", "key", "headers")}
        names = [renamed.get(name, name) for name in self._stored.names]
        included = [number for number, name in enumerate(names) if name in wanted.names]
        self._explicit = bool(frame.header.attributes & EXPLICIT_OFFSETS)
        if self._explicit and 0 not in included:
            included.insert(0, 0)  # needed to tell where a range begins
        self._stream = None
        if frame.header.attributes & CODEC_MASK and len(included) < len(names) and included:
            self._stream = _Stream(self._stored, included)
            names = [names[number] for number in included]
        self.columns: list[tuple[Any, int]] = []
        for field in wanted:
            position = names.index(field.name) if field.name in names else -1
            if position >= 0:
                stored = self._stored.field(included[position] if self._stream else position).type
                if stored != field.type:
                    raise SchemaError(f"column {field.name!r} is {field.type} here and was stored as {stored}")
            elif not field.nullable and field.name != reader.system("offset"):
                raise SchemaError(f"column {field.name!r} must not be null, and older records do not have it")
            self.columns.append((field, position))

    def decode(self, frame: StoredFrame) -> pa.RecordBatch:
        if self._stream is not None:
            return self._stream.decode(frame)
        return pa.ipc.read_record_batch(frame.message, self._stored)

    def offsets(self, frame: StoredFrame, found: pa.RecordBatch) -> pa.Array:
        return found.column(0) if self._explicit else pa.arange(frame.header.base_offset, frame.header.next_offset)


class _Stream:
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
        """What pyarrow asks for next."""
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
