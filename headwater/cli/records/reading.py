"""Input of `hw produce`: files and standard input of several formats, as chunks of records.

Whole batches are read wherever that can be: lines by the megabyte, CSV, Parquet and Arrow as they are, JSON for typed
topics by Arrow's own parser. Input from a pipe is passed on as it comes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypeVar, get_args

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headwater.cli.descriptors import readable
from headwater.cli.records.record_json import ReadRecord, bytes_of, key_of, moment_of, read_headers, read_record
from headwater.core.errors import HeadwaterError, InvalidRecord
from headwater.core.schema import RAW, Schema

Format = Literal["lines", "json", "records", "csv", "parquet", "arrow"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
_BY_SUFFIX: Final[dict[str, Format]] = {
    ".txt": "lines",
    ".log": "lines",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSED: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_CHUNK: Final = 1 << 20
_ROWS: Final = 1 << 16
_SYSTEM: Final = ("offset", "partition", "topic", "headers", "key", "timestamp")
_RAW_TYPES: Final = {"key": pa.binary(), "value": pa.binary(), "headers": pa.string()}
"""A raw topic takes CSV as the text that is there: 007 is no number."""

_T = TypeVar("_T")


class Chunk(NamedTuple):
    """Records that are sent together. Where there are headers, `data`, `keys` and `timestamps` are lists."""

    data: Any
    keys: Any = None
    timestamps: Any = None
    headers: list[dict[str, bytes] | None] | None = None

    def __len__(self) -> int:
        return self.data.num_rows if isinstance(self.data, pa.RecordBatch | pa.Table) else len(self.data)


@dataclass(frozen=True, slots=True)
class Reading:
    """Turns input into records of a topic."""

    schema: Schema
    key: str | None = None
    timestamp: str | None = None
    key_separator: bytes | None = None
    delete_empty: bool = False

    def chunks(self, source: IO[bytes], name: str, format: Format) -> Iterator[Chunk]:
        """The records of a file, in its order; raises InvalidRecord, which says where it is wrong."""
        try:
            yield from self._reader(format)(source, name)
        except pa.ArrowException as error:
            raise InvalidRecord(f"{name}: {error}") from error
        except OSError as error:  # of a decompressor too, which does not know the file's name
            raise InvalidRecord(f"{name}: {error.strerror or error}") from error

    def _reader(self, format: Format) -> Callable[[IO[bytes], str], Iterator[Chunk]]:
        if format == "json":
            return self._raw_json if self.schema.raw else self._typed_json
        if format == "lines" and not self.schema.raw:
            raise HeadwaterError("the topic is typed: its records come as json, csv, parquet, arrow or records")
        columnar = {"csv": self._csv, "parquet": self._parquet, "arrow": self._arrow}
        return {"lines": self._lines, "records": self._records}.get(format) or self._columnar(columnar[format])

    # By lines.

    def _lines(self, source: IO[bytes], name: str) -> Iterator[Chunk]:  # noqa: ARG002
        for _, lines in _lines_of(source):
            if self.key_separator is None:
                yield Chunk(lines)
                continue
            parts = [line.partition(self.key_separator) for line in lines]
            keys = [key if separator else None for key, separator, _ in parts]
            values = [value if separator else key for key, separator, value in parts]
            if self.delete_empty:
                values = [value or None for value in values]  # type: ignore[misc]
            yield Chunk(values, keys)

    def _raw_json(self, source: IO[bytes], name: str) -> Iterator[Chunk]:
        def made(where: str, line: bytes) -> tuple[bytes, bytes | None, int | None]:
            document = _loaded(line, where)
            moment = _moment(key_of(document, self.timestamp), where) if self.timestamp else None
            return line, key_of(document, self.key) if self.key else None, moment

        for rows, wrong in _made_of(source, name, made):
            if rows:
                lines, keys, times = map(list, zip(*rows, strict=True))
                yield Chunk(lines, keys if self.key else None, times if self.timestamp else None)
            if wrong is not None:
                raise wrong

    def _typed_json(self, source: IO[bytes], name: str) -> Iterator[Chunk]:
        for first, lines in _lines_of(source):
            kept = [(first + number, line) for number, line in enumerate(lines) if line.strip()]
            if not kept:
                continue
            try:
                table = self._rows([line for _, line in kept])
            except pa.ArrowException as error:
                good = self._good_lines([line for _, line in kept])
                if good:
                    yield self._chunk(self._rows([line for _, line in kept[:good]]))
                told = re.sub(r" in row \d+", "", str(error))
                raise InvalidRecord(f"{name}:{kept[good][0]}: {told}") from error
            yield self._chunk(table)

    def _rows(self, lines: list[bytes]) -> pa.Table:
        """JSON objects by the topic's columns, in one block: an object must not go over the end of one."""
        content = b"\n".join(lines) + b"\n"
        parse = pa.json.ParseOptions(explicit_schema=self.schema.payload, unexpected_field_behavior="error")
        read = pa.json.ReadOptions(block_size=max(len(content), _CHUNK))
        return pa.json.read_json(pa.BufferReader(content), read_options=read, parse_options=parse)

    def _good_lines(self, lines: list[bytes]) -> int:
        """Return the number of lines before the first wrong one, by bisection: a few looks find one of thousands."""
        good, bad = 0, len(lines)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._rows(lines[:middle])
                good = middle
            except pa.ArrowException:
                bad = middle
        return good

    def _records(self, source: IO[bytes], name: str) -> Iterator[Chunk]:
        def made(where: str, line: bytes) -> ReadRecord:
            return read_record(_loaded(line, where), where, self.schema)

        for records, wrong in _made_of(source, name, made):
            if records:
                yield Chunk(
                    [record.value for record in records],
                    [record.key for record in records],
                    [record.timestamp for record in records],
                    [record.headers for record in records],
                )
            if wrong is not None:
                raise wrong

    # By columns.

    def _csv(self, source: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
        types = _RAW_TYPES if self.schema.raw else {field.name: field.type for field in self.schema.payload}
        parse = pa.csv.ParseOptions(delimiter="\t" if Path(name).suffix == ".tsv" else ",", newlines_in_values=True)
        # Null is what is empty and not in quotes. NA is a country, and a symbol.
        convert = pa.csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        return iter(pa.csv.open_csv(source, parse_options=parse, convert_options=convert))

    def _parquet(self, source: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        content = source if source.seekable() else pa.BufferReader(source.read())
        return iter(pa.parquet.ParquetFile(content).iter_batches(_ROWS))

    def _arrow(self, source: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        if source.seekable():
            magic = source.read(6)
            source.seek(0)
            if magic == b"ARROW1":
                opened = pa.ipc.open_file(source)
                return (opened.get_batch(number) for number in range(opened.num_record_batches))
        return iter(pa.ipc.open_stream(source))

    def _columnar(
        self, read: Callable[[IO[bytes], str], Iterator[pa.RecordBatch]]
    ) -> Callable[[IO[bytes], str], Iterator[Chunk]]:
        def chunks(source: IO[bytes], name: str) -> Iterator[Chunk]:
            for batch in read(source, name):
                if batch.num_rows:
                    yield self._chunk(pa.table(batch))

        return chunks

    def _chunk(self, table: pa.Table) -> Chunk:
        """Rows as records of the topic, by its columns. Output of `hw consume` keeps keys, times and headers."""
        own = {name: self.schema.system(name) for name in _SYSTEM if self.schema.system(name) in table.column_names}
        whole = not self.schema.raw or "value" in table.column_names
        keys = self._column(table, self.key or (own.get("key") if whole else None))
        times = self._column(table, self.timestamp or (own.get("timestamp") if whole else None))
        moments = None if times is None else times.cast(pa.timestamp("ns"), safe=False).cast(pa.int64())
        listed = None if keys is None else [bytes_of(key) for key in keys.to_pylist()]
        if not whole:
            rows = [json.dumps(row, default=_json_value).encode() for row in table.to_pylist()]
            return Chunk(rows, listed, moments)
        data: Any = table.drop_columns(list(own.values()))
        if self.schema.raw:
            data = table.column("value").cast(pa.binary()).to_pylist()
        if "headers" not in own or table.column(own["headers"]).null_count == table.num_rows:
            return Chunk(data, listed, moments)
        headers = [read_headers(cell) for cell in table.column(own["headers"]).to_pylist()]
        values = data if self.schema.raw else _values(data)
        listed = listed if listed is not None else [None] * len(values)
        return Chunk(values, listed, [None] * len(values) if moments is None else moments.to_pylist(), headers)

    @staticmethod
    def _column(table: pa.Table, name: str | None) -> pa.ChunkedArray | None:
        if name is None:
            return None
        if name not in table.column_names:
            raise InvalidRecord(f"column {name!r:.60} does not exist; the columns are {', '.join(table.column_names)}")
        return table.column(name)


def _lines_of(source: IO[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Lines without their ends, about a megabyte at a time, and the number of the first of them."""
    number, rest = 1, b""
    while True:
        content = _some(source)
        if not content:
            break
        whole, newline, rest_now = content.rpartition(b"\n")
        if not newline:
            rest += content
            continue
        lines = (rest + whole).split(b"\n")
        rest = rest_now
        yield number, lines
        number += len(lines)
    if rest:
        yield number, [rest]


def _made_of(
    source: IO[bytes], name: str, make: Callable[[str, bytes], _T]
) -> Iterator[tuple[list[_T], InvalidRecord | None]]:
    """Make something of each line, many at a time, up to a wrong line; the error of that line comes last."""
    for first, lines in _lines_of(source):
        results: list[_T] = []
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                results.append(make(f"{name}:{number}", line))
            except InvalidRecord as error:
                yield results, error
                return
        yield results, None


def _some(source: IO[bytes]) -> bytes:
    """Return about a megabyte of a file; of a pipe the bytes that are there, as soon as there are some."""
    if source is not sys.stdin.buffer:
        return source.read(_CHUNK)
    fd = source.fileno()
    content = os.read(fd, _CHUNK)
    if os.isatty(fd):
        return content  # a line; and the end, Ctrl-D, is told only once
    while content and len(content) < _CHUNK and readable(fd):
        more = os.read(fd, _CHUNK)
        if not more:
            break
        content += more
    return content


def _loaded(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{where}: this is not JSON: {error}") from None


def _moment(text: bytes | None, where: str) -> int:
    if text is None:
        raise InvalidRecord(f"{where}: a record has no timestamp")
    try:
        return moment_of(text.decode())
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error}") from None


def _values(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as values for a typed topic. Times of nanoseconds stay numbers: Python's own end at microseconds."""
    columns = [
        (column.cast(pa.int64()) if getattr(column.type, "unit", "") == "ns" else column).to_pylist()
        for column in table.columns
    ]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_value(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# Files.


def format_of(path: Path) -> Format:
    """The format that a file's name says; raises an error when it says none."""
    suffix = path.suffixes[-2] if path.suffix in _COMPRESSED and len(path.suffixes) > 1 else path.suffix
    if suffix.lower() not in _BY_SUFFIX:
        raise HeadwaterError(f"{path}: the name does not tell the format; give --input {'|'.join(FORMATS)}")
    return _BY_SUFFIX[suffix.lower()]


@contextmanager
def open_file(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file for reading, decompressed if its name says that it is compressed; and the file itself."""
    codec = _COMPRESSED.get(path.suffix)
    with path.open("rb") as raw:
        yield raw if codec is None else pa.CompressedInputStream(raw, codec), raw


def schema_of_file(path: Path, format: Format | None = None) -> pa.Schema | None:
    """Return the columns of a file without Headwater's own; None if the file was written from a raw topic."""
    kind = format or format_of(path)
    if kind not in ("csv", "parquet", "arrow"):
        raise HeadwaterError(f"{path}: only CSV, Parquet and Arrow files have columns, not {kind}")
    reading = Reading(Schema(pa.schema([("value", pa.binary())])))
    with open_file(path) as (source, _):
        read = {"csv": reading._csv, "parquet": reading._parquet, "arrow": reading._arrow}[kind]
        try:
            first = next(read(source, str(path)), None)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRecord(f"{path}: {error}") from error
    if first is None:
        raise HeadwaterError(f"{path} is empty, so its columns are unknown")
    return None if {*first.schema.names} == {"partition", *RAW.full.names} else plain_schema(first.schema)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a file without Headwater's own, and without what its writer has noted besides."""
    reserved = {f"_{name}" for name in _SYSTEM}
    return pa.schema(
        [pa.field(field.name, field.type, field.nullable) for field in schema if field.name not in reserved]
    )
