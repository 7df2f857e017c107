"""`hw produce`: write lines, JSON, CSV, Parquet or Arrow to a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final, NamedTuple, cast

import typer

from headwater.cli.output import Json, done, wants_json, write_json
from headwater.cli.progress import progress
from headwater.cli.records.reading import FORMATS, Chunk, Format, Reading, format_of, open_file, schema_of_file
from headwater.cli.target import StoreOption, TopicName, opened
from headwater.core.errors import HeadwaterError, InvalidRecord, UnknownTopic
from headwater.streams import Producer, Store, Topic

app = typer.Typer(add_completion=False)

_STDIN = Path("-")
_JOINING: Final = 30.0
"""Seconds that a new topic waits for brokers that are still joining their cluster."""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  echo 'two teas' | hw produce orders\n"
    "  hw produce orders --key customer < orders.ndjson      a field of each JSON object is the key\n"
    "  hw produce trades trades.parquet --create             a typed topic, by the file's columns\n"
    "  hw produce users --key-separator : users.txt\n"
    "  hw produce orders day.ndjson --atomic                 all of the file, or nothing\n"
    "  hw consume orders | hw produce orders2 --input records",
)
def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE…]", help="Files to read; without any, or with -, standard input."),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="FORMAT", help=f"{', '.join(FORMATS)}; without it, by the files' names."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="FIELD", help="The field or column that is the key.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field or column that is the record's time.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="For lines: the text before this separator is the key."
        ),
    ] = None,
    delete_empty: Annotated[
        bool, typer.Option("--delete-empty", help="For lines with keys: an empty value is a tombstone.")
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Write to this partition, regardless of keys."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, metavar="N", help="With --create: how many partitions.")
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", min=1, metavar="N", help="With --create, in a cluster: how many replicas."),
    ] = None,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Write all of the input or nothing: readers see it when it is complete.")
    ] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Write to a topic: each line, or each row of input with columns, is a record. It returns when all is durable.

    A typed topic takes JSON objects, CSV, Parquet and Arrow by its columns. A raw topic takes lines. From input with
    columns it takes `value`, `key`, `timestamp` and `headers`, or each row as a JSON object.
    """
    if input_format is not None and input_format not in FORMATS:
        raise typer.BadParameter(f"unknown format {input_format!r:.60}; the formats are {', '.join(FORMATS)}")
    if not create and (partitions is not None or replication is not None):
        raise typer.BadParameter("--partitions and --replication are for a new topic: give --create too")
    chosen = cast("Format | None", input_format)
    sources = files or [_STDIN]
    headers = dict(map(_header, header or []))
    began = time.monotonic()
    with opened(store, make=create) as opened_store:
        where = _topic(
            opened_store, topic, sources[0], chosen, _NewTopic(partitions or 1, replication) if create else None
        )
        reading = Reading(where.schema, key, timestamp, _separator(key_separator), delete_empty)
        total = None if _STDIN in sources else sum(path.stat().st_size for path in sources)
        with progress(f"to {topic}", total, "bytes") as advance:
            chunks = _chunks(reading, sources, chosen, advance)
            if atomic:
                with opened_store.transaction() as block:
                    sending = ChunkSender(block.producer(topic), headers, partition)
                    sending.send_together(chunks)
            else:
                with opened_store.producer(topic) as out:
                    sending = ChunkSender(out, headers, partition)
                    sending.send_all(chunks)
    seconds = time.monotonic() - began
    if wants_json(as_json):
        write_json({"topic": topic, "records": sending.count, "seconds": round(seconds, 3)})
    else:
        done(f"{sending.count:,} records are in {topic}, durable ({sending.count / max(seconds, 1e-3):,.0f}/s)")


class ChunkSender:
    """Sends chunks, and counts."""

    def __init__(self, out: Producer, headers: dict[str, bytes], partition: int | None) -> None:
        self._out = out
        self._headers = headers
        self._partition = partition
        self.count = 0

    def send_all(self, chunks: Iterator[Chunk]) -> None:
        """Send everything and make it durable. An error on the way says how many records are in the topic."""
        try:
            for chunk in chunks:
                self._send(chunk)
            self._out.sync()
        except KeyboardInterrupt:
            self._out.sync()
            sys.stderr.write(f"hw: interrupted; {self.count:,} records are in {self._out.topic.name}\n")
            raise
        except InvalidRecord as error:
            self._out.sync()
            raise InvalidRecord(f"{error}; the {self.count:,} records before are in {self._out.topic.name}") from error

    def send_together(self, chunks: Iterator[Chunk]) -> None:
        """Send everything as part of a transaction. An error on the way says that nothing is in the topic."""
        try:
            for chunk in chunks:
                self._send(chunk)
            self._out.flush()
        except KeyboardInterrupt:
            sys.stderr.write(f"hw: interrupted; nothing was written to {self._out.topic.name}\n")
            raise
        except InvalidRecord as error:
            raise InvalidRecord(f"{error}; nothing was written to {self._out.topic.name}") from error

    def _send(self, chunk: Chunk) -> None:
        if chunk.headers is None and not self._headers:
            self._out.send_batch(chunk.data, keys=chunk.keys, partition=self._partition, timestamps=chunk.timestamps)
            self.count += len(chunk)
            return
        rows = _listed(chunk.data)
        nothing: list[Any] = [None] * len(rows)
        extra = chunk.headers or nothing
        keys, times = chunk.keys or nothing, nothing if chunk.timestamps is None else list(chunk.timestamps)
        for value, key, moment, headers in zip(rows, keys, times, extra, strict=True):
            self._out.send(
                value,
                key,
                {**self._headers, **(headers or {})} or None,
                partition=self._partition,
                timestamp=moment if moment is None or isinstance(moment, int) else moment.as_py(),
            )
            self.count += 1


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else data.to_pylist()


class _NewTopic(NamedTuple):
    """A topic that is created if it does not exist."""

    partitions: int
    replication: int | None


def _topic(store: Store, name: str, first: Path, chosen: Format | None, new: _NewTopic | None) -> Topic:
    """The topic to write to; one that is made takes its columns from the first file, where that has any."""
    try:
        return store.topic(name)
    except UnknownTopic:
        if new is None:
            raise HeadwaterError(
                f"topic {name!r} does not exist in {store}: run hw topic create {name}, or give --create"
            ) from None
    kind = chosen or (None if first == _STDIN else format_of(first))
    columnar = kind in ("csv", "parquet", "arrow") and first != _STDIN
    schema = schema_of_file(first, kind) if columnar else None
    return store.ensure_topic(name, new.partitions, schema, replication=new.replication, timeout=_JOINING)


def _chunks(
    reading: Reading, sources: list[Path], chosen: Format | None, advance: Callable[[int], None]
) -> Iterator[Chunk]:
    for path in sources:
        if path == _STDIN:
            kind: Format = chosen or ("lines" if reading.schema.raw else "json")
            yield from reading.chunks(sys.stdin.buffer, "standard input", kind)
            continue
        size = path.stat().st_size
        before = 0
        with open_file(path) as (source, raw):
            for chunk in reading.chunks(source, str(path), chosen or format_of(path)):
                yield chunk
                before = _told(raw, size, before, advance)
        advance(size - before)


def _told(raw: IO[bytes], size: int, before: int, advance: Callable[[int], None]) -> int:
    """Move the bar on to where the file is read."""
    now = min(raw.tell(), size)
    advance(now - before)
    return now


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"a header is NAME=VALUE, not {text!r:.60}", param_hint="--header")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"a header's name is text, not {name!r:.60}", param_hint="--header") from None
    return name, os.fsencode(value)


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    if not text:
        raise typer.BadParameter("the separator needs at least one character", param_hint="--key-separator")
    try:
        return os.fsencode(text).decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise typer.BadParameter(
            f"{text!r:.60} has an invalid escape: use \\t, \\xNN, \\\\", param_hint="--key-separator"
        ) from None
