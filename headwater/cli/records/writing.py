"""Output of `hw consume`: records as text, JSON, CSV, Arrow or Parquet.

On a terminal, data is spelled out: control characters and markup in it are shown, never obeyed. In a pipe, bytes are
written as they are.
"""

from __future__ import annotations

import io
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import IO, Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet

from headwater.cli.arguments import Mistake
from headwater.cli.output import console, printable, shown, write_bytes
from headwater.cli.records.record_json import plain, write_record, written_moment
from headwater.core.errors import HeadwaterError
from headwater.core.schema import Schema

HELP: Final = (
    "json, csv, arrow, parquet, or a text with %p partition, %o offset, %t time, %k key, %v value, %h headers, "
    "%n topic, %s size, %{column}"
)
_ROW_GROUP: Final = 1 << 16
_FIELD: Final = re.compile(r"%(?:\{([^}]+)\}|(.))|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_QUOTED: Final = re.compile(r'[",\r\n]')
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "e": b"\x1b"}


class RecordRow(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: dict[str, bytes]


class RecordWriter(ABC):
    """Writes batches of records to standard output."""

    whole = False
    """True if the writer needs every column of a record, not only those that are written."""

    @abstractmethod
    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:
        """Write a batch; when it returns, the records have left this process, but for Parquet."""

    def close(self) -> None:  # noqa: B027 - most need none
        """Write the end, in formats that have one."""


def rows_of(topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> list[RecordRow]:
    """A batch with all columns as records."""
    if schema.raw:
        values = batch.column("value").to_pylist()
    else:
        columns = [values_of(batch.column(name)) for name in schema.payload.names]
        values = [dict(zip(schema.payload.names, row, strict=True)) for row in zip(*columns, strict=True)]
        values = [None if all(cell is None for cell in row.values()) else row for row in values]
    headers = batch.column(schema.system("headers")).to_pylist()
    return [
        RecordRow(topic, partition, offset, moment, key, value, dict(own or ()))
        for offset, moment, key, value, own in zip(
            batch.column(schema.system("offset")).to_pylist(),
            batch.column(schema.system("timestamp")).view(pa.int64()).to_pylist(),
            batch.column(schema.system("key")).to_pylist(),
            values,
            headers,
            strict=True,
        )
    ]


def values_of(column: pa.Array) -> list[Any]:
    """A column as Python values; times to the nanosecond, which Python has not, as text."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        zone = 0 if kind.tz else 1
        moments = column.view(pa.int64()).to_pylist()
        return [None if moment is None else written_moment(moment)[: -zone or None] for moment in moments]
    if (pa.types.is_time64(kind) or pa.types.is_duration(kind)) and kind.unit == "ns":
        return cast(list[Any], column.view(pa.int64()).to_pylist())
    return cast(list[Any], column.to_pylist())


class JsonWriter(RecordWriter):
    """A line of JSON for each record."""

    whole = True

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:
        write_bytes(b"".join(map(write_record, rows_of(topic, partition, batch, schema))))


class JsonColumns(RecordWriter):
    """A line of JSON with the chosen columns for each record."""

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:  # noqa: ARG002
        names = batch.schema.names
        lines = [
            json.dumps(dict(zip(names, map(plain, row), strict=True))).encode() + b"\n"
            for row in zip(*map(values_of, batch.columns), strict=True)
        ]
        write_bytes(b"".join(lines))


class CsvWriter(RecordWriter):
    """A line of columns for each record, below a line with their names."""

    def __init__(self, output: pa.Schema) -> None:
        self._head = [output.names]
        self._safe = printable if sys.stdout.isatty() else str

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:  # noqa: ARG002
        self._write_rows(zip(*map(values_of, batch.columns), strict=True))

    def close(self) -> None:
        self._write_rows(())  # where there are no records, there are still columns

    def _write_rows(self, rows: Iterable[Iterable[Any]]) -> None:
        lines = [",".join(map(self._cell, row)) for row in chain(self._head, rows)]
        self._head = []
        write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))

    def _cell(self, value: Any) -> str:
        """One value. Null is nothing, and text that is empty is in quotes, so that both are read as they were."""
        if value is None:
            return ""
        if isinstance(value, bool | int | float):
            return str(value)
        plain_value = plain(value)
        text = self._safe(plain_value if isinstance(plain_value, str) else json.dumps(plain_value))
        return '"{}"'.format(text.replace('"', '""')) if not text or _QUOTED.search(text) else text


class PrettyWriter(RecordWriter):
    """A line for people for each record."""

    whole = True

    def __init__(self, *, topics: bool = False) -> None:
        self._people = console()
        self._topics = topics

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:
        from rich.text import Text

        for row in rows_of(topic, partition, batch, schema):
            line = Text.assemble(
                (f"{printable(topic)}/" if self._topics else "", "dim"),
                (f"{row.partition}:{row.offset:<8}", "cyan"),
                (f" {written_moment(row.timestamp)[:23].replace('T', ' ')}  ", "dim"),
            )
            if row.key is not None:
                line.append_text(shown(row.key, "bold"))
                line.append("  ")
            line.append_text(_shown_value(row.value))
            for name, value in row.headers.items():
                line.append_text(shown(f"  {name}=", "dim"))
                line.append_text(shown(value, "dim"))
            self._people.print(line, soft_wrap=True)


def _shown_value(value: Any) -> Any:
    if value is None:
        return shown("deleted", "italic red")
    if isinstance(value, bytes):
        return shown(value)
    return shown(json.dumps(plain(value), ensure_ascii=False))


class FormatWriter(RecordWriter):
    """Writes a text with fields, filled in for each record, and a newline, unless the text ends with `\\c`."""

    whole = True

    def __init__(self, text: str) -> None:
        self._parts = _parsed(text)
        self._exactly = not sys.stdout.isatty()

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:
        own = () if schema.raw else schema.payload.names
        for part in self._parts:
            if isinstance(part, _Field) and part.name.startswith("{") and part.name[1:] not in own:
                raise Mistake(_unknown_column(part.name[1:], own))
        lines = []
        for row in rows_of(topic, partition, batch, schema):
            lines += [part if isinstance(part, bytes) else self._field(part.name, row) for part in self._parts]
        write_bytes(b"".join(lines))

    def _field(self, name: str, row: RecordRow) -> bytes:
        content = _field(name, row)
        return content if self._exactly else printable(content).encode()


class _Field(NamedTuple):
    name: str


def _unknown_column(name: str, columns: Collection[str]) -> str:
    if not columns:
        return "--format: %{column} is for typed topics; a raw one has %v"
    return f"--format: column {name!r:.60} does not exist; the columns are {', '.join(columns)}"


def _parsed(text: str) -> list[bytes | _Field]:
    parts: list[bytes | _Field] = []
    at = 0
    for match in _FIELD.finditer(text):
        parts.append(text[at : match.start()].encode())
        at = match.end()
        column, field, escape = match.groups()
        if escape == "c" and at == len(text):
            return parts
        if escape is not None:
            if escape not in _ESCAPES and len(escape) == 1:
                raise Mistake(f"--format: unknown escape \\{escape}; use \\n \\t \\r \\0 \\xNN")
            parts.append(_ESCAPES[escape] if escape in _ESCAPES else bytes.fromhex(escape[1:]))
        elif field == "%":
            parts.append(b"%")
        elif column is not None or field in _FIELDS:
            parts.append(_Field(f"{{{column}" if column is not None else field))
        else:
            raise Mistake(f"--format: unknown field %{field}; the fields are {HELP.partition('with ')[2]}")
    if not _FIELD.search(text):
        raise Mistake(f"--format: unknown format {text!r:.60}; the formats are {HELP}")
    return [*parts, text[at:].encode(), b"\n"]


def _value(row: RecordRow) -> bytes:
    if row.value is None or isinstance(row.value, bytes):
        return row.value or b""
    return json.dumps(plain(row.value), ensure_ascii=False).encode()


_FIELDS: Final[dict[str, Callable[[RecordRow], bytes]]] = {
    "p": lambda row: b"%d" % row.partition,
    "o": lambda row: b"%d" % row.offset,
    "t": lambda row: written_moment(row.timestamp).encode(),
    "k": lambda row: row.key or b"",
    "v": _value,
    "h": lambda row: b",".join(name.encode() + b"=" + value for name, value in row.headers.items()),
    "n": lambda row: row.topic.encode(),
    "s": lambda row: b"%d" % len(_value(row)),
}


def _field(name: str, row: RecordRow) -> bytes:
    if not name.startswith("{"):
        return _FIELDS[name](row)
    value = plain((row.value or {}).get(name[1:]))
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


# Arrow and Parquet.


class _Output(io.RawIOBase):
    """Standard output as a file that Arrow writes to."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        write_bytes(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        return self._position


class ArrowWriter(RecordWriter):
    """An Arrow stream, or a Parquet file of row groups that are worth their name."""

    def __init__(self, output: pa.Schema, *, parquet: bool) -> None:
        sink = cast(IO[bytes], _Output())
        self._output = output
        self._parquet = parquet
        self._made = pa.parquet.ParquetWriter(sink, output) if parquet else pa.ipc.new_stream(sink, output)
        self._pending: list[pa.RecordBatch] = []

    def write(self, topic: str, partition: int, batch: pa.RecordBatch, schema: Schema) -> None:  # noqa: ARG002
        if not self._parquet:
            self._made.write_batch(batch)
            return
        self._pending.append(batch)
        if sum(pending.num_rows for pending in self._pending) >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._made.write_table(pa.Table.from_batches(self._pending, self._output))
            self._pending = []

    def close(self) -> None:
        if self._parquet:
            self._flush()
        self._made.close()


def writer_of(
    format: str | None, output: pa.Schema, chosen: bool, *, as_json: bool, topics: bool = False
) -> RecordWriter:
    """The writer for a format; by default lines for people on a terminal, and JSON in a pipe."""
    terminal = sys.stdout.isatty()
    if format in ("arrow", "parquet"):
        if terminal:
            raise HeadwaterError(f"{format} is not for terminals: redirect it to a file, such as > records.{format}")
        return ArrowWriter(output, parquet=format == "parquet")
    if format == "csv":
        return CsvWriter(output)
    if format == "json" or (format is None and (as_json or not terminal)):
        return JsonColumns() if chosen else JsonWriter()
    if format is not None:
        written = FormatWriter(format)
        if chosen:
            raise Mistake(
                "--columns is for json, csv, arrow and parquet: a text format names columns itself, such as %{column}"
            )
        return written
    return CsvWriter(output) if chosen else PrettyWriter(topics=topics)
