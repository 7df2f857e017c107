"""`hw tail`: watch topics live."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import typer

from headwater.cli.descriptors import readable
from headwater.cli.output import Json, printable
from headwater.cli.records.where import Where, bind_where, parse_where
from headwater.cli.records.writing import HELP, RecordWriter, writer_of
from headwater.cli.target import StoreOption, complete_topic, opened
from headwater.core.errors import HeadwaterError
from headwater.core.schema import RAW, Schema
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.pattern import TopicFilter
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.core.filter import Filter
    from headwater.log import Partition
    from headwater.streams import Consumer, Store

app = typer.Typer(add_completion=False)

_WAIT: Final = 0.2
"""Seconds in which a key may go unnoticed."""
_CLEAR: Final = "\r\x1b[2K"
_ENDS: Final = ("q", "\x04")


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw tail orders                      the last 10 records, then new ones\n"
    "  hw tail 'orders.*' payments -n 0    several topics, only new records\n"
    "  hw tail trades --where 'price > 100'\n"
    "  hw tail orders | grep cust-7        lines of JSON",
)
def tail(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC…", help="Names or patterns of topics.", autocompletion=complete_topic, show_default=False
        ),
    ],
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="Begin with the last N records.")
    ] = 10,
    where: Where = None,
    output: Annotated[str | None, typer.Option("--format", "-o", metavar="FORMAT", help=f"{HELP}.")] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Watch topics live, until Ctrl-C or q. The space bar pauses and resumes; no record is skipped."""
    if output in ("arrow", "parquet", "csv"):
        raise HeadwaterError(f"{output} needs an end, and a tail has none: use hw consume --format {output}")
    condition = parse_where(where)
    with opened(store) as opened_store:
        names = [name for name in opened_store.topics() if TopicFilter(topics)(name)]
        missing = [
            pattern
            for pattern in topics
            if not pattern.startswith("__") and not any(map(TopicFilter([pattern]), names))
        ]
        if missing:
            sys.stderr.write(f"hw: topic {printable(', '.join(missing))} does not exist yet: waiting for it\n")
        writer = writer_of(output, RAW.full, chosen=False, as_json=as_json, topics=len(names) != 1)
        TopicTail(opened_store, writer, condition).run(topics, names, lines)


class TopicTail:
    """Writes the records that come to some topics."""

    def __init__(self, store: Store, writer: RecordWriter, where: Filter | None) -> None:
        self._store = store
        self._writer = writer
        self._where = where
        self._schemas: dict[str, Schema] = {}

    def run(self, topics: list[str], names: list[str], lines: int) -> None:
        """Write the last records of these topics, then new ones of them and of others that match the patterns."""
        for name in names:
            bind_where(self._where, self._store.topic(name).schema)
        ends = {
            TopicPartition(name, number): bounds.end
            for name in names
            for number, bounds in self._store.topic(name).bounds().items()
        }
        where = None if self._where is None else self._where.text
        with self._store.consumer(topics, start="latest", where=where, on_loss="skip") as consumer, _keys() as keys:
            for tp in consumer.assignment():
                if tp in ends:
                    consumer.seek(*tp, ends[tp])
            self._last(ends, lines)
            while True:
                for consumed in consumer.poll_batches(timeout=_WAIT):
                    self._write(consumed.topic, consumed.partition, consumed.batch)
                    consumer.ack(consumed)
                if not keys.go_on(consumer):
                    return

    def _last(self, ends: dict[TopicPartition, int], lines: int) -> None:
        """The newest matching records before these ends, over all partitions, in the order of their times."""
        if not lines:
            return
        records: list[tuple[int, TopicPartition, pa.RecordBatch]] = []
        for tp, end in ends.items():
            topic = self._store.topic(tp.topic)
            partition, schema = topic.partition(tp.partition), topic.schema
            condition = bind_where(self._where, schema)
            where = None if condition is None else FrameFilter(condition, tp.partition)
            for batch in _last_batches(partition, end, lines, schema, where):
                times = batch.column(schema.system("timestamp")).view(pa.int64()).to_pylist()
                records += [(moment, tp, batch.slice(row, 1)) for row, moment in enumerate(times)]
        records.sort(key=lambda record: record[:2])
        for _, tp, batch in records[-lines:]:
            self._write(tp.topic, tp.partition, batch)

    def _write(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        if topic not in self._schemas:
            self._schemas[topic] = self._store.topic(topic).schema
        self._writer.write(topic, partition, batch, self._schemas[topic])


def _last_batches(
    partition: Partition, end: int, count: int, schema: Schema, where: FrameFilter | None
) -> list[pa.RecordBatch]:
    """Return batches with the last `count` matching records before an offset, or a few more, or all that there are."""
    start, span, records = partition.bounds().start, count, 0
    batches: list[pa.RecordBatch] = []
    while records < count and start < end:
        first = max(end - span, start)
        earlier = list(partition.scan(first, end, schema=schema, where=where))
        records += sum(batch.num_rows for batch in earlier)
        batches = [*earlier, *batches]
        end, span = first, span * 2
    return batches


class _Keys:
    """The keyboard, if there is one: keys count as they are pressed."""

    def __init__(self) -> None:
        self.fd = sys.stdin.fileno() if sys.stdin.isatty() and sys.stdout.isatty() else None

    def pressed(self, seconds: float) -> str:
        """The key that is pressed within so much time; nothing when none is."""
        if self.fd is None or not readable(self.fd, seconds):
            return ""
        return os.read(self.fd, 1).decode("ascii", "ignore")

    def go_on(self, consumer: Consumer) -> bool:
        """Obey the keys, and return whether to go on. While it pauses, records wait in the log."""
        key = self.pressed(0)
        if key == " ":
            key = ""
            while not key:
                sys.stderr.write(f"{_CLEAR}‖ paused, {sum(consumer.lag().values()):,} more; the space bar resumes")
                sys.stderr.flush()
                key = self.pressed(_WAIT)
            sys.stderr.write(_CLEAR)
        return key not in _ENDS


@contextmanager
def _keys() -> Iterator[_Keys]:
    """The keyboard for the length of a block, with lines as they were afterwards."""
    keys = _Keys()
    if keys.fd is None:
        yield keys
        return
    before = termios.tcgetattr(keys.fd)
    try:
        tty.setcbreak(keys.fd)
        yield keys
    finally:
        termios.tcsetattr(keys.fd, termios.TCSADRAIN, before)
