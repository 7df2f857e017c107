"""Downloads: records as a file, one JSON object a line or as Parquet, chosen as the list of messages is.

Damaged records are left out and named: in a line of their own, or in the metadata of the Parquet file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.console.decoding import plain
from headwater.console.messages import cursor_at, partitions_from_text, start_from_text
from headwater.console.page_request import PageRequest
from headwater.console.selection import Row, Selection
from headwater.core.errors import InvalidConfiguration
from headwater.log import Damage
from headwater.streams.topic import PARTITION

MOST_RECORDS: Final = 1_000_000
FORMATS: Final = {"ndjson": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}


class Download:
    """Records of a topic, from a position on, oldest first in each partition, at most so many of them."""

    def __init__(self, request: PageRequest) -> None:
        """Raises InvalidConfiguration for a wrong request, before anything is sent."""
        self._topic = request.store.topic(request.path["topic"])
        self.format = request.text("format", "ndjson")
        if self.format not in FORMATS:
            raise InvalidConfiguration(f"the format of a download is {' or '.join(FORMATS)}, not {self.format!r:.40}")
        self._limit = request.number("limit", 100_000, 1, MOST_RECORDS)
        self._schema = self._topic.schema
        self._selection = Selection(
            self._schema, key=request.text("key"), text=request.text("text"), where=request.text("where")
        )
        numbers = partitions_from_text(request.text("partition"))
        self._from = cursor_at(self._topic, numbers, start_from_text(request.text("from", "earliest")))
        self.filename = f"{self._topic.name}.{self.format}"
        self._damaged: list[dict[str, Any]] = []

    def _note(self, partition: int, damage: Damage) -> None:
        stretch = {"offset": damage.offset, "next_offset": damage.next_offset, "reason": damage.reason}
        self._damaged.append({"partition": partition, "damaged": stretch})

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        left = self._limit
        for number, start in self._from.items():
            partition = self._topic.partition(number)
            end = partition.bounds().end
            if start >= end:
                continue
            for batch in partition.scan(start, end, schema=self._schema, on_damage=partial(self._note, number)):
                chosen = self._selection.of(batch, number).slice(0, left)
                if chosen.num_rows:
                    yield number, chosen
                left -= chosen.num_rows
                if not left:
                    return

    def lines(self) -> Iterator[bytes]:
        """One JSON object a line; after the records, one for each stretch of damage that was met."""
        for number, batch in self._batches():
            rows = self._selection.rows(batch, number)
            yield "".join(json.dumps(_document(row)) + "\n" for row in rows).encode()
        for damaged in self._damaged:
            yield f"{json.dumps(damaged)}\n".encode()

    def parquet(self) -> Path:
        """Return a temporary file with all of it. The caller removes it."""
        column = self._schema.system("partition")
        fields = [pa.field(column, PARTITION, nullable=False), *self._schema.full]
        fd, name = tempfile.mkstemp(suffix=".parquet", prefix="headwater-console-")
        os.close(fd)
        path = Path(name)
        try:
            with pq.ParquetWriter(path, pa.schema(fields), compression="zstd") as writer:
                for number, batch in self._batches():
                    numbers = pa.repeat(pa.scalar(number, PARTITION), batch.num_rows)
                    writer.write_batch(pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=pa.schema(fields)))
                if self._damaged:
                    writer.add_key_value_metadata({"headwater.damaged": json.dumps(self._damaged)})
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        return path


def _document(row: Row) -> dict[str, Any]:
    return {
        "partition": row.partition,
        "offset": row.offset,
        "timestamp": row.timestamp,
        "key": plain(row.key),
        "value": plain(row.value),
        "headers": {name: plain(value) for name, value in row.headers},
    }
