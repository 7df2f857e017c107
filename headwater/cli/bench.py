"""`hw bench`: how fast it is here, beside peers that are present, with what each has made durable.

A few seconds each, in turns, on the same disk: enough to compare, not to publish. The benchmarks with goals are in the
repository, `make bench`.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.text import Text

from headwater.cli.output import Json, console, printable, shown, size, table, wants_json, write_json
from headwater.cli.target import connect, find
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.streams import Store

app = typer.Typer(add_completion=False)

_BATCH: Final = 1000
_BAR: Final = 30
_SYNCED: Final = "each batch synced before it is acknowledged"
_EVERY_SECOND: Final = "synced each second: a power loss takes up to a second"
_READ: Final = "every checksum verified"


class Figure(NamedTuple):
    """One rate that was measured."""

    name: str
    ours: bool
    records_per_second: float
    bytes_per_second: float
    durability: str


Work = Callable[[float], int]
"""Does something for about so many seconds; returns how many records."""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw bench                               here, a few seconds each\n"
    "  hw bench --size 1000 --seconds 5 --plot speed.svg\n"
    "  hw bench --store hw://broker.example:6174    through a broker; its topic is removed at the end",
)
def bench(
    record_size: Annotated[
        int, typer.Option("--size", min=1, max=1_000_000, metavar="BYTES", help="Of a record.")
    ] = 100,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, metavar="N", help="For each figure.")] = 1.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it, as .svg or .png; needs matplotlib.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Measure peers too.")] = True,
    store: Annotated[
        str | None,
        typer.Option("--store", "-s", metavar="STORE", help="A broker, or a directory; else one that is removed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how fast records are written and read here, beside a file, SQLite and Redis, and say what is durable.

    Producer and consumer share a process, so figures are those of one core. Run it twice, and believe the ratios.
    """
    if plot is not None:
        _check_plot(plot)
    value = os.urandom(record_size // 2 + 1).hex().encode()[:record_size]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".hw-bench-", dir=Path.cwd())))
        place = stack.enter_context(connect(store) if store else connect(str(scratch / "store"), make=True))
        figures = list(_ours(place, value, seconds))
        if peers:
            figures += _peers(scratch, value, seconds)
        where = find(store).where if store else str(Path.cwd())
    if plot is not None:
        _plot(figures, plot, record_size)
    if wants_json(as_json):
        write_json({"where": where, "record_bytes": record_size, "figures": [one._asdict() for one in figures]})
    else:
        _tell(figures, record_size, where, plot)


def _figure(name: str, value: bytes, seconds: float, work: Work, durability: str, *, ours: bool) -> Figure:
    sys.stderr.write(f"\r\x1b[2K{printable(name)}" if sys.stderr.isatty() else "")
    sys.stderr.flush()
    began = time.perf_counter()
    records = work(seconds)
    taken = time.perf_counter() - began
    sys.stderr.write("\r\x1b[2K" if sys.stderr.isatty() else "")
    return Figure(name, ours, records / taken, records * len(value) / taken, durability)


def _ours(store: Store, value: bytes, seconds: float) -> Iterator[Figure]:
    with _topic(store, "always") as synced, _topic(store, 1.0) as lazy:
        for name, topic, durability in (("synced", synced, _SYNCED), ("each second", lazy, _EVERY_SECOND)):
            send, batch = _send(store, topic, value), _send_batches(store, topic, value)
            yield _figure(f"send one by one, {name}", value, seconds, send, durability, ours=True)
            yield _figure(f"send_batch of {_BATCH}, {name}", value, seconds, batch, durability, ours=True)
        yield _figure("read as Arrow", value, seconds, _scan(store, lazy), _READ, ours=True)
        yield _figure("read as Python objects", value, seconds, _consume(store, lazy), _READ, ours=True)


@contextmanager
def _topic(store: Store, sync: float | str) -> Iterator[str]:
    """A topic for the length of a block."""
    name = f"hw-bench-{uuid.uuid4().hex[:12]}"
    store.create_topic(name, sync=sync)
    try:
        yield name
    finally:
        store.delete_topic(name)


def _until(seconds: float) -> Iterator[None]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield


def _send(store: Store, topic: str, value: bytes) -> Work:
    def work(seconds: float) -> int:
        count = 0
        with store.producer(topic) as out:
            for _ in _until(seconds):
                for _ in range(_BATCH):
                    out.send(value)
                count += _BATCH
            out.flush()
        return count

    return work


def _send_batches(store: Store, topic: str, value: bytes) -> Work:
    def work(seconds: float) -> int:
        count = 0
        with store.producer(topic) as out:
            for _ in _until(seconds):
                out.send_batch([value] * _BATCH)
                count += _BATCH
            out.flush()
        return count

    return work


def _scan(store: Store, topic: str) -> Work:
    def work(seconds: float) -> int:
        count = 0
        for _ in _until(seconds):
            for batch in store.topic(topic).scan():
                count += batch.num_rows
        return count

    return work


def _consume(store: Store, topic: str) -> Work:
    def work(seconds: float) -> int:
        count = 0
        with store.consumer(topic) as inbox:
            for _ in _until(seconds):
                found = inbox.poll(10_000, timeout=0.1)
                if not found:
                    inbox.reset("earliest")
                count += len(found)
        return count

    return work


# Peers.


def _peers(scratch: Path, value: bytes, seconds: float) -> Iterator[Figure]:
    name = f"a file, write and fdatasync by {_BATCH}"
    yield _figure(name, value, seconds, _file(scratch, value), "each batch synced; no checksums", ours=False)
    for mode, durability in (("FULL", "each transaction synced"), ("NORMAL", "not synced: a power loss takes some")):
        work = _sqlite(scratch, value, mode)
        yield _figure(f"SQLite, WAL, {_BATCH} in a transaction, {mode}", value, seconds, work, durability, ours=False)
    redis = _redis(value)
    if redis is not None:
        work, durability = redis
        yield _figure(f"a Redis stream, pipelines of {_BATCH}", value, seconds, work, durability, ours=False)


def _file(scratch: Path, value: bytes) -> Work:
    def work(seconds: float) -> int:
        count = 0
        content = value * _BATCH
        with (scratch / "file").open("wb", buffering=0) as file:
            for _ in _until(seconds):
                file.write(content)
                os.fdatasync(file.fileno())
                count += _BATCH
        return count

    return work


def _sqlite(scratch: Path, value: bytes, mode: str) -> Work:
    def work(seconds: float) -> int:
        count = 0
        connection = sqlite3.connect(scratch / f"{mode}.db", isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {mode}")
            connection.execute("CREATE TABLE log (at INTEGER PRIMARY KEY, moment INTEGER, value BLOB)")
            for _ in _until(seconds):
                connection.execute("BEGIN")
                rows = [(time.time_ns(), value)] * _BATCH
                connection.executemany("INSERT INTO log (moment, value) VALUES (?, ?)", rows)
                connection.execute("COMMIT")
                count += _BATCH
        finally:
            connection.close()
        return count

    return work


def _redis(value: bytes) -> tuple[Work, str] | None:
    """A Redis on this machine, if there is one, and what it says of its durability."""
    try:
        import redis

        client: Any = redis.Redis(socket_connect_timeout=0.5)
        settings: dict[str, str] = client.config_get("append*")
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not there to be measured
        return None
    key = f"hw-bench-{uuid.uuid4().hex}"

    def work(seconds: float) -> int:
        count = 0
        try:
            for _ in _until(seconds):
                pipeline = client.pipeline(transaction=False)
                for _ in range(_BATCH):
                    pipeline.xadd(key, {"v": value})
                pipeline.execute()
                count += _BATCH
        finally:
            client.delete(key)
        return count

    durable = settings.get("appendonly") == "yes"
    told = f"appendfsync {settings.get('appendfsync')}" if durable else "in memory: a power loss takes all"
    return work, told


# Showing.


def _tell(figures: list[Figure], record_size: int, where: str, plot: Path | None) -> None:
    people = console()
    most = max(one.records_per_second for one in figures)
    listed = table("", ">records/s", ">bytes/s", "", "durability")
    for one in figures:
        bar = "█" * max(round(one.records_per_second / most * _BAR), 1)
        listed.add_row(
            Text(one.name, "bold" if one.ours else ""),
            f"{one.records_per_second:,.0f}",
            f"{size(one.bytes_per_second)}/s",
            Text(bar, "cyan" if one.ours else "dim"),
            Text(one.durability, "dim"),
        )
    people.print(listed)
    people.print(shown(f"records of {record_size:,} bytes, one process, {os.cpu_count()} cores, in {where}", "dim"))
    if plot is not None:
        people.print(shown(f"drawn to {plot}", "dim"))


def _check_plot(file: Path) -> None:
    """Raise before anything is measured if it could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HeadwaterError("a plot needs matplotlib: run pip install matplotlib, or leave out --plot")
    if file.suffix not in (".svg", ".png"):
        raise typer.BadParameter(f"{file} is neither .svg nor .png", param_hint="--plot")
    if not file.absolute().parent.is_dir():
        raise HeadwaterError(f"there is no directory {file.parent} to draw to")


def _plot(figures: list[Figure], file: Path, record_size: int) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(figures) + 1.5))
    names = [f"{one.name}\n{one.durability}" for one in reversed(figures)]
    rates = [one.records_per_second for one in reversed(figures)]
    colours = ["#2a7ab0" if one.ours else "#b8b8b8" for one in reversed(figures)]
    bars = axes.barh(names, rates, color=colours)
    axes.bar_label(bars, [f" {rate:,.0f}/s" for rate in rates], fontsize=8)
    axes.set_xscale("log")
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel(f"records of {record_size:,} bytes per second, logarithmic")
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)
