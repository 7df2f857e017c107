"""Gathered: batches that `send_batch` was given while frames before them were on their way.

They become one frame. Over a network each frame costs a message, a look at it and an answer, however small it is: a
sender that is faster than the answers gets fewer and larger frames thereby, and one that is slower waits for nothing.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.core.config import TopicConfig
from headwater.core.schema import Schema
from headwater.log import Frame, Identity, encode_batch
from headwater.streams.batch import RECORD_BYTES, Batch


class Piece(NamedTuple):
    """Some rows, as `send_batch` was given them."""

    rows: pa.RecordBatch
    keys: list[bytes | None] | None
    timestamps: int | pa.Array

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        keys = sum(len(key) for key in self.keys if key is not None) if self.keys is not None else 0
        rows: int = self.rows.nbytes + RECORD_BYTES * self.rows.num_rows
        return rows + keys

    def frame(self, schema: Schema, config: TopicConfig, identity: Identity | None) -> Frame:
        """The rows as one frame."""
        return encode_batch(
            self.rows,
            schema,
            keys=self.keys,
            timestamps=self.timestamps,
            compression=config.compression,
            threshold=config.compression_threshold,
            identity=identity,
        )


def piece_of(rows: pa.RecordBatch, keys: list[bytes | None] | None, timestamps: int | pa.Array | None) -> Piece:
    """Rows that are stamped now, unless they have timestamps."""
    return Piece(rows, keys, time.time_ns() if timestamps is None else timestamps)


class Gathered(Batch):
    """Pieces for one partition, in their order. `values` are the pieces; single records find no room here."""

    __slots__ = ("_count", "_schema", "_size")

    def __init__(self, partition: int, schema: Schema) -> None:
        super().__init__(partition)
        self._schema = schema
        self._count = 0
        self._size = 0

    def __len__(self) -> int:
        return self._count

    def gather(self, piece: Piece, schema: Schema, most_bytes: int, most_records: int) -> int | None:
        """Take the piece: which record of the frame its first one is. None if it cannot be; the first always can."""
        number, size = self._count, self._size + piece.size
        fits = schema is self._schema and size <= most_bytes and number + piece.rows.num_rows <= most_records
        if self.values and not fits:
            return None
        self.values.append(piece)
        self._count += piece.rows.num_rows
        self._size = size
        return number

    def frame(self, schema: Schema, config: TopicConfig, identity: Identity | None) -> Frame:  # noqa: ARG002
        """All of it as one frame, of the schema that it was checked against."""
        return (self.values[0] if len(self.values) == 1 else self._joined()).frame(self._schema, config, identity)

    def _joined(self) -> Piece:
        pieces: list[Piece] = self.values
        rows = pa.concat_batches([piece.rows for piece in pieces])
        keys: list[bytes | None] | None = None
        if any(piece.keys is not None for piece in pieces):
            keys = []
            for piece in pieces:
                keys += piece.keys if piece.keys is not None else [None] * piece.rows.num_rows
        return Piece(rows, keys, pa.concat_arrays([_times(piece) for piece in pieces]))


def _times(piece: Piece) -> Any:
    if isinstance(piece.timestamps, int):
        return pa.repeat(pa.scalar(piece.timestamps, pa.int64()), piece.rows.num_rows)
    return piece.timestamps.cast(pa.int64())
