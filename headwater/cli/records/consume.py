"""`hw consume`: read a topic, as text, JSON, CSV, Arrow or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import typer

from headwater.cli.arguments import Mistake
from headwater.cli.output import Json
from headwater.cli.records.span import From, PositionRange, To, nearest, parse_span
from headwater.cli.records.where import Where, bind_where, parse_where
from headwater.cli.records.writing import HELP, RecordWriter, writer_of
from headwater.cli.target import StoreOption, TopicName, complete_group, opened
from headwater.core.config import OnLoss
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.start import Start
from headwater.streams.topic import PARTITION, TopicPartition

if TYPE_CHECKING:
    from headwater.core.filter import BoundFilter, Filter
    from headwater.core.schema import Schema
    from headwater.log import Partition
    from headwater.streams import ConsumedBatch, Consumer, Store, Topic

app = typer.Typer(add_completion=False)

_WAIT: Final = 1.0


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw consume orders                                  all there is, and then the end\n"
    "  hw consume orders --from -10 --follow              the last 10 of each partition, and new ones\n"
    "  hw consume orders --from @-1h --where \"key = 'cust-7'\"\n"
    "  hw consume orders --from 100:200 --partition 0 --format '%o %k %v'\n"
    "  hw consume trades --columns symbol,price --format parquet > trades.parquet\n"
    "  hw consume orders --group billing --limit 100      acknowledged when written",
)
def consume(
    topic: TopicName,
    start: From = None,
    end: To = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition; repeat it for several."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="End after N records.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, from its position; written records are acknowledged.",
            autocompletion=complete_group,
        ),
    ] = None,
    where: Where = None,
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", metavar="A,B,…", help="Only these columns, in this order.")
    ] = None,
    output: Annotated[str | None, typer.Option("--format", "-o", metavar="FORMAT", help=f"{HELP}.")] = None,
    on_loss: Annotated[
        OnLoss | None,
        typer.Option(
            "--on-loss", help="If records were removed before they were read: end with an error, or skip them."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Read a topic: its present records, a range of them, or new ones too.

    With --group it reads as a member of that group, which keeps its positions. Partitions are read one after the other;
    new records are shown as they come. In a pipe records are lines of JSON.
    """
    span, condition = parse_span(start, end), parse_where(where)
    if span.ends and (follow or group):
        raise Mistake("--to or a range ends the reading: leave out --follow and --group")
    if group and output == "parquet":
        raise Mistake(
            "--group acknowledges records when they are written, and Parquet is written at the end: use --format arrow"
        )
    with opened(store) as opened_store:
        selection = ConsumeSelection.of(opened_store.topic(topic), partition, condition, columns)
        writer = writer_of(output, selection.output, selection.chosen is not None, as_json=as_json)
        comes = group is not None or follow
        batches = _following(opened_store, selection, span, group, follow, on_loss) if comes else selection.scan(span)
        _write(batches, selection, writer, limit)


@dataclass(frozen=True, slots=True)
class ConsumeSelection:
    """The partitions and columns that are read of a topic, and the records and columns that are written."""

    topic: Topic
    schema: Schema
    partitions: list[int]
    every: bool
    """True if the user chose no partitions: then partitions that are added later are read too."""
    where: Filter | None
    condition: BoundFilter | None
    """The same, bound to the topic's schema."""
    chosen: list[str] | None
    output: pa.Schema

    @classmethod
    def of(
        cls, topic: Topic, partitions: Sequence[int] | None, where: Filter | None, columns: str | None
    ) -> ConsumeSelection:
        """Check the arguments; raises Mistake."""
        schema, info = topic.schema, topic.info
        own = schema.system("partition")
        available = {own: pa.field(own, PARTITION, nullable=False)} | {field.name: field for field in schema.full}
        chosen = None if columns is None else [name.strip() for name in columns.split(",")]
        unknown = [name for name in chosen or () if name not in available]
        if unknown:
            raise Mistake(f"unknown columns {', '.join(unknown)}; the columns are {', '.join(available)}")
        wrong = [number for number in partitions or () if number >= info.partitions]
        if wrong:
            raise Mistake(f"topic {info.name!r} has partitions 0 to {info.partitions - 1}, not {wrong[0]}")
        return cls(
            topic,
            schema,
            sorted(set(partitions)) if partitions else list(range(info.partitions)),
            not partitions,
            where,
            bind_where(where, schema),
            chosen,
            pa.schema([available[name] for name in chosen or available]),
        )

    @property
    def where_text(self) -> str | None:
        """The filter as a consumer takes it."""
        return None if self.where is None else self.where.text

    @property
    def needed(self) -> list[str] | None:
        """The columns that have to be read; None is all."""
        if self.chosen is None:
            return None
        names = [*self.chosen, self.schema.system("offset")]
        return [name for name in dict.fromkeys(names) if name != self.schema.system("partition")]

    def offset(self, partition: Partition, position: Start) -> int:
        """Return the offset of a position in one of the partitions."""
        return nearest(partition, position, several=len(self.partitions) > 1)

    def scan(self, span: PositionRange) -> Iterator[tuple[int, pa.RecordBatch, None]]:
        """Read the records that are there now."""
        ranges = []
        for number in self.partitions:
            partition = self.topic.partition(number)
            ranges.append((number, partition, self.offset(partition, span.start), self.offset(partition, span.end)))
        for number, partition, first, last in ranges:
            if first < last:
                where = None if self.condition is None else FrameFilter(self.condition, number)
                for batch in partition.scan(first, last, columns=self.needed, schema=self.schema, where=where):
                    yield number, batch, None

    def projected(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are written."""
        own = self.schema.system("partition")
        arrays = [
            pa.repeat(pa.scalar(number, PARTITION), batch.num_rows) if name == own else batch.column(name)
            for name in self.output.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


class Acknowledging:
    """Acknowledges the records of one batch when they were written."""

    def __init__(self, consumer: Consumer, consumed: ConsumedBatch) -> None:
        self._consumer = consumer
        self._consumed = consumed

    def done(self, end: int | None) -> None:
        """Acknowledge everything before `end`; without an end, the whole batch."""
        consumed = self._consumed
        self._consumer.ack_range(
            consumed.topic, consumed.partition, consumed.start, consumed.end if end is None else end
        )


_Batches = Iterator[tuple[int, pa.RecordBatch, Acknowledging | None]]


def _following(
    store: Store,
    selection: ConsumeSelection,
    span: PositionRange,
    group: str | None,
    follow: bool,
    on_loss: OnLoss | None,
) -> _Batches:
    """Read records as they come, for ever. A group's member that does not follow ends at the ends of its beginning."""
    name = selection.topic.name
    wanted = {TopicPartition(name, number) for number in selection.partitions}
    ends = {tp: selection.topic.partition(tp.partition).bounds().end for tp in wanted}
    first: Start = span.start if group is not None else "latest"
    options: dict[str, Any] = {} if on_loss is None else {"on_loss": on_loss}
    with store.consumer(name, group=group, start=first, where=selection.where_text, **options) as consumer:
        if group is None:
            for tp in consumer.assignment() & wanted:
                consumer.seek(*tp, selection.offset(selection.topic.partition(tp.partition), span.start))
        while True:
            others = consumer.assignment() - wanted
            if others and not selection.every:
                consumer.pause(*others)
            for consumed in consumer.poll_batches(timeout=_WAIT if follow else 0.1):
                acknowledging = Acknowledging(consumer, consumed) if group is not None else None
                if selection.every or TopicPartition(consumed.topic, consumed.partition) in wanted:
                    yield consumed.partition, consumed.batch, acknowledging
            if group is not None and not follow and _is_done(store, group, consumer, ends):
                return


def _is_done(store: Store, group: str, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Return whether the group, this member and the others, has read everything before these ends."""
    own: dict[TopicPartition, int] = consumer.statistics().positions
    left = {tp: end for tp, end in ends.items() if own.get(tp, 0) < end}
    if not left.keys().isdisjoint(own) or not left:
        return not left
    committed = store.group(group).committed()
    keys = {tp: (store.describe_topic(tp.topic).uuid, tp.partition) for tp in left}
    return all(key in committed and committed[key].offset >= left[tp] for tp, key in keys.items())


def _write(batches: Any, selection: ConsumeSelection, writer: RecordWriter, limit: int | None) -> None:
    left = limit
    try:
        for number, batch, acknowledging in batches if left != 0 else ():
            kept = batch
            cut = left is not None and kept.num_rows >= left
            if left is not None:
                kept = kept.slice(0, left)
                left -= kept.num_rows
            if kept.num_rows:
                written = kept if writer.whole else selection.projected(number, kept)
                writer.write(selection.topic.name, number, written, selection.schema)
            if acknowledging is not None:
                acknowledging.done(kept.column(selection.schema.system("offset"))[-1].as_py() + 1 if cut else None)
            if cut:
                break
        writer.close()
    finally:
        batches.close()  # commits what was written before, whatever has come in between
