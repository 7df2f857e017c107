"""`hw inspect`: the content of one of Headwater's files, as it is, damage and all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.output import Json, console, printable, shown, size, wants_json, write_json
from headwater.core.errors import Damaged, HeadwaterError, SchemaError
from headwater.core.schema import Schema
from headwater.log.files.index import INDEX_HEADER_BYTES, INDEX_MAGIC, IndexHeader, IndexReader
from headwater.log.files.lock import PartitionLock
from headwater.log.files.marks import read_mark
from headwater.log.files.segment import SEGMENT_MAGIC
from headwater.log.files.segment_list import LIST_MAGIC, ListedSegment, SegmentList
from headwater.log.files.state import CHANGING, POISONED, State
from headwater.log.files.state import MAGIC as STATE_MAGIC
from headwater.log.format.frame import FrameHeader
from headwater.log.maintain.check import read_state_copies
from headwater.log.maintain.segment_view import SegmentView, read_segment
from headwater.log.write.producers import ProducerTable

_MAP_ROWS: Final = 4
_LOOKS: Final = {
    "header": ("▐", "cyan"),
    "plain": ("█", "blue"),
    "compressed": ("▓", "magenta"),
    "behind": ("·", "dim"),
    "damaged": ("╳", "bold red"),
}


app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw inspect events/orders/0/00000000000000000000.log\n"
    "  hw inspect --records 5 events/orders/0/00000000000000000000.log\n"
    "  hw inspect events/orders/0/state\n"
    "  hw inspect --json events/orders/0/00000000000000000000.index",
)
def inspect(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A segment, index, list, state, producers, mark, schema or lock file."),
    ],
    frames: Annotated[
        int, typer.Option(min=0, metavar="N", help="Show at most N frames or entries; 0 shows all.")
    ] = 40,
    records: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N records of a segment.")] = 0,
    as_json: Json = False,
) -> None:
    """Show the content of one of Headwater's files. Nothing is changed."""
    with file.open("rb") as opened:
        magic = opened.read(8)
    show = _recognise(file, magic)
    show(file, frames, records, wants_json(as_json))


Show = Callable[[Path, int, int, bool], None]


def _recognise(file: Path, magic: bytes) -> Show:
    by_magic: dict[bytes, Show] = {
        SEGMENT_MAGIC: _segment,
        INDEX_MAGIC: _index,
        STATE_MAGIC: _state,
        LIST_MAGIC: _list,
        b"HWPRODS1": _producers,
    }
    by_name: dict[str, Show] = {
        ".log": _segment,
        ".index": _index,
        ".producers": _producers,
        ".arrow": _schema,
        "segments": _list,
        "state": _state,
        "lock": _lock,
        "start": _mark,
        "truncate": _mark,
    }
    show = by_magic.get(magic) or by_name.get(file.suffix or file.name)
    if show is None:
        raise HeadwaterError(f"{file} is not one of Headwater's files")
    return show


def moment(nanoseconds: int) -> str:
    """A timestamp for people."""
    try:
        whole_seconds = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{nanoseconds} ns"
    return f"{whole_seconds:%Y-%m-%d %H:%M:%S}.{nanoseconds % 1_000_000_000:09d}"


def _facts(rows: list[tuple[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else shown(str(value)))
    return table


# Segments.


def _segment(file: Path, frames: int, records: int, as_json: bool) -> None:
    view = read_segment(file)
    if as_json:
        document = view.as_json(frames)
        if records:
            document["records"] = [record.as_json() for record in view.records(records)]
        write_json(document)
        return
    people = console()
    header = view.header
    facts: list[tuple[str, Any]] = [("segment", file.name)]
    if header is None:
        facts.append(("header", Text(view.problem, "bold red")))
    else:
        facts += [
            ("partition", header.partition.hex()),
            ("log", header.log.hex()),
            ("base offset", header.base),
            ("created", moment(header.created_ns)),
            ("chain", f"{header.chain:08x}"),
            ("kind", f"compacted, {header.length:,} bytes" if header.compacted else "appended"),
        ]
    good = [item for item in view.items if item.kind in ("plain", "compressed")]
    facts.append(("size", f"{view.size:,} bytes ({size(view.size)})"))
    facts.append(("frames", f"{len(good):,} good, {sum(i.header.record_count for i in good if i.header):,} records"))
    people.print(_facts(facts))
    people.print()
    for line in _map(view, max(people.width - 2, 20)):
        people.print(line)
    people.print(_legend(view))
    people.print()
    people.print(_frame_table(view, frames))
    hidden = len(view.items) - frames
    if frames and hidden > 0:
        people.print(Text(f"{hidden:,} more: --frames 0 shows all", "dim"))
    if records:
        people.print()
        people.print(_record_table(view, records))


def _map(view: SegmentView, width: int) -> Iterator[Text]:
    """The file from its first byte to its last, one character for each so many bytes. No damage is too small."""
    cells = min(width * _MAP_ROWS, max(view.size // 8, 1))
    starts = [0, *(item.position for item in view.items)]
    kinds = ["header", *(item.kind for item in view.items)]
    numbers = [bisect_right(starts, (2 * cell + 1) * view.size // (2 * cells)) - 1 for cell in range(cells)]
    numbers[0] = 0
    for number, item in enumerate(view.items, start=1):
        if item.kind == "damaged":
            first = item.position * cells // view.size
            last = (item.position + item.length - 1) * cells // view.size
            numbers[first : last + 1] = [number] * (last + 1 - first)
    for row in range(0, cells, width):
        line = Text(" ")
        for number in numbers[row : row + width]:
            glyph, style = _LOOKS[kinds[number]]
            bright = kinds[number] in ("plain", "compressed") and number % 2
            line.append(glyph, f"bright_{style}" if bright else style)
        yield line


def _legend(view: SegmentView) -> Text:
    present = {"header"} | {item.kind for item in view.items}
    names = {"plain": "frame", "compressed": "compressed frame", "behind": "behind the published end"}
    line = Text(" ")
    for kind, (glyph, style) in _LOOKS.items():
        if kind in present:
            line.append(glyph, style).append(f" {names.get(kind, kind)}   ", "dim")
    return line


def _frame_table(view: SegmentView, limit: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("position", "bytes", "offsets", "records"):
        table.add_column(heading, justify="right")
    for heading in ("newest record", "codec", "has", "schema", "producer", "stamp"):
        table.add_column(heading, no_wrap=True)
    for item in view.items[: limit or None]:
        header = item.header
        extent = (f"{item.position:,}", f"{item.length:,}")
        if item.kind == "damaged" or header is None:
            told = f"{header.base_offset}–{header.next_offset - 1}" if header else "?"
            table.add_row(*extent, told, "", shown(item.reason, "bold red"))
            continue
        table.add_row(
            *extent,
            f"{header.base_offset}–{header.next_offset - 1}",
            f"{header.record_count:,}",
            moment(header.max_timestamp)[:23],
            item.codec,
            ", ".join(item.features) or "–",
            f"{header.schema_id:016x}",
            _producer(header),
            f"{header.stamp_crc:08x}",
            style="dim" if item.kind == "behind" else "",
        )
    return table


def _producer(header: FrameHeader) -> str:
    if header.producer_id == bytes(16):
        return "–"
    return f"{header.producer_id.hex()[:8]}… {header.base_sequence}"


def _record_table(view: SegmentView, limit: int) -> Table:
    records = list(view.records(limit))
    keys = [Text("–", "dim") if record.key is None else shown(record.key, limit=32) for record in records]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(
        "offset", justify="right", min_width=max((len(str(record.offset)) for record in records), default=0)
    )
    table.add_column("timestamp", min_width=len(moment(0)))
    table.add_column("key", min_width=max((key.cell_len for key in keys), default=0))
    table.add_column("value", no_wrap=True, overflow="ellipsis")
    for record, key in zip(records, keys, strict=True):
        value = Text("deleted", "dim") if record.value is None else shown(record.value_text, limit=200)
        table.add_row(str(record.offset), moment(record.timestamp), key, value)
    return table


# The other files.


def _index(file: Path, limit: int, _records: int, as_json: bool) -> None:
    with file.open("rb") as opened:
        try:
            header = IndexHeader.unpack(opened.read(INDEX_HEADER_BYTES))
        except Damaged as error:
            raise error.at(file=file, position=0) from None
        whole = max(file.stat().st_size - INDEX_HEADER_BYTES, 0) // 32
        count = header.entries if header.covered else whole
        reader = IndexReader(opened.fileno(), header.log, count)
        entries: list[dict[str, Any]] = []
        for number in range(min(count, limit or count)):
            try:
                entries.append(dict(reader[number]._asdict()))
            except Damaged as error:
                entries.append({"damaged": error.reason})
    if as_json:
        facts = {"log": header.log.hex(), "covered": header.covered, "max_timestamp": header.max_timestamp}
        write_json({"file": str(file), "kind": "index", **facts, "count": count, "entries": entries})
        return
    people = console()
    covered = f"{header.covered:,} bytes of a closed segment" if header.covered else "a growing segment"
    people.print(_facts([("index", file.name), ("log", header.log.hex()), ("covers", covered), ("entries", count)]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("offset", "position"):
        table.add_column(heading, justify="right")
    table.add_column("newest record before it")
    for entry in entries:
        if "damaged" in entry:
            table.add_row("?", "?", Text(entry["damaged"], "bold red"))
            continue
        newest = "–" if entry["max_timestamp"] == -(1 << 63) else moment(entry["max_timestamp"])
        table.add_row(f"{entry['offset']:,}", f"{entry['position']:,}", newest)
    people.print(table)
    if count > len(entries):
        people.print(Text(f"{count - len(entries):,} more: --frames 0 shows all", "dim"))


def _state(file: Path, _limit: int, _records: int, as_json: bool) -> None:
    copies = read_state_copies(file)
    whole = [copy for copy in copies if copy is not None]
    newest = max(whole, key=lambda copy: copy.sequence, default=None)
    if as_json:
        known = [None if copy is None else _plain(copy) for copy in copies]
        counts = None if newest is None else copies.index(newest)
        write_json({"file": str(file), "kind": "state", "newest": counts, "copies": known})
        return
    people = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("state", style="bold")
    for copy in copies:
        table.add_column("damaged" if copy is None else "newest" if copy is newest else "older")
    for name in State._fields[1:]:
        cells = [_state_cell(name, copy) for copy in copies]
        changed = None not in copies and len(set(cells)) > 1
        table.add_row(name, *(Text(cell, "yellow" if changed else "") for cell in cells))
    people.print(table)


def _state_cell(name: str, copy: State | None) -> str:
    if copy is None:
        return "?"
    value = getattr(copy, name)
    if isinstance(value, bytes):
        return value.hex()
    if name == "flags":
        names = [label for bit, label in ((POISONED, "poisoned"), (CHANGING, "changing")) if value & bit]
        return ", ".join(names) or "none"
    if name.endswith("_ns") and value:
        return moment(value)
    return f"{value:08x}" if name in ("stamp", "durable_stamp") else f"{value:,}"


def _plain(state: State) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in state._asdict().items()}


def _producers(file: Path, _limit: int, _records: int, as_json: bool) -> None:
    table = ProducerTable.load(file)
    producers, writers = table.producers, table.writers
    if as_json:
        document: dict[str, Any] = {"file": str(file), "kind": "producers"}
        document["producers"] = [
            {
                "id": key.hex(),
                "epoch": producer.epoch,
                "seen_ns": producer.seen_ns,
                "batches": [dict(batch._asdict()) for batch in producer.batches],
            }
            for key, producer in producers.items()
        ]
        document["writers"] = [{"id": key.hex(), "sequence": sequence} for key, sequence in writers.items()]
        write_json(document)
        return
    people = console()
    people.print(_facts([("producers", len(producers)), ("writers of atomic groups", len(writers))]))
    for key, producer in producers.items():
        last = producer.batches[-1] if producer.batches else None
        told = f"last sequence {last.last} at offset {last.end_offset - 1}" if last else "nothing yet"
        people.print(f"{key.hex()} epoch {producer.epoch}: {told}, seen {moment(producer.seen_ns)}")
    for key, sequence in writers.items():
        people.print(f"{key.hex()}: last group {sequence}")


def _list(file: Path, limit: int, _records: int, as_json: bool) -> None:
    """The closed segments, each with the state of its file."""
    with file.open("rb") as opened:
        partition = opened.read(24)[8:]
    listed = SegmentList.read(file.parent, partition)
    try:
        entries = list(islice(listed.scan(), limit or None))
    finally:
        listed.close()
    damaged: dict[str, Any] = {"damaged": "does not match its checksum"}
    rows = [damaged if entry is None else _listed(entry, file.parent) for entry in entries]
    if as_json:
        facts = {"partition": partition.hex(), "generation": listed.generation, "count": len(listed)}
        write_json({"file": str(file), "kind": "segments", **facts, "entries": rows})
        return
    people = console()
    people.print(_facts([("list of closed segments", file.name), ("segments", len(listed))]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("base", "end", "bytes", "records"):
        table.add_column(heading, justify="right")
    table.add_column("closed")
    table.add_column("file")
    for row in rows:
        if "damaged" in row:
            table.add_row("?", "?", "?", "?", "?", Text(row["damaged"], "bold red"))
            continue
        counted = "–" if row["records"] < 0 else f"{row['records']:,}"
        verdict = Text(row["problem"], "bold red") if row["problem"] else Text("there", "green")
        sizes = (f"{row['base']:,}", f"{row['end']:,}", f"{row['length']:,}", counted)
        table.add_row(*sizes, moment(row["sealed_ns"]), verdict)
    people.print(table)


def _listed(entry: ListedSegment, directory: Path) -> dict[str, Any]:
    """An entry, and the problem with the size of its file."""
    problem = None
    try:
        length = (directory / f"{entry.base:020d}.log").stat().st_size
        if length not in (entry.length, entry.former_length or entry.length):
            problem = f"has {length:,} bytes"
    except OSError:
        problem = "missing"
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in entry._asdict().items()}
    return fields | {"problem": problem}


def _mark(file: Path, _limit: int, _records: int, as_json: bool) -> None:
    offset = read_mark(file.parent, file.name)
    if as_json:
        write_json({"file": str(file), "kind": "mark", "offset": offset})
        return
    meaning = "the log begins at" if file.name == "start" else "the next opening truncates the log to"
    console().print(Text.assemble(shown(file.name, "bold"), f": {meaning} {offset}"))


def _schema(file: Path, _limit: int, _records: int, as_json: bool) -> None:
    try:
        schema = Schema.deserialize(file.read_bytes())
    except SchemaError as error:
        raise Damaged(str(error), file=file) from error
    columns = [(field.name, str(field.type), field.nullable) for field in schema.payload]
    if as_json:
        listed = [{"name": name, "type": kind, "nullable": nullable} for name, kind, nullable in columns]
        write_json({"file": str(file), "kind": "schema", "id": f"{schema.id:016x}", "columns": listed})
        return
    people = console()
    right = Text() if file.stem == f"{schema.id:016x}" else Text(" which is not its name: damaged", "bold red")
    people.print(Text.assemble((f"schema {schema.id:016x}", "bold"), right))
    for name, kind, nullable in columns:
        people.print(Text.assemble("  ", shown(name, "bold"), f": {printable(kind)}{'' if nullable else ' not null'}"))


def _lock(file: Path, _limit: int, _records: int, as_json: bool) -> None:
    lock = PartitionLock(file)
    pid, since = lock.holder() or (None, None)
    lock.close()
    if as_json:
        write_json({"file": str(file), "kind": "lock", "pid": pid, "since": since})
        return
    told = "nobody yet" if pid is None or since is None else f"process {pid} at {moment(int(since * 1e9))}"
    console().print(f"last taken by {told}; hw unlock shows the holder", soft_wrap=True)
