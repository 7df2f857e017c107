"""`hw spark`: stewardship of topics that are larger than one machine likes, as jobs of Spark."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headwater.cli.descriptors import silenced_children
from headwater.cli.output import Json, console, shown, size, wants_json, write_json
from headwater.cli.records.span import WORDS
from headwater.core.errors import InvalidConfiguration
from headwater.streams import time as moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    name="spark",
    no_args_is_help=True,
    help="Archive, compact and replay topics, however large, as jobs of Spark.",
    epilog="[bold]Examples[/]\n\n"
    "  hw spark archive orders --store events --to /archive\n"
    "  hw spark compact customers --store events",
)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

Store = Annotated[Path, typer.Option("--store", metavar="DIRECTORY", help="The store.")]
Master = Annotated[
    str, typer.Option("--master", metavar="WHERE", help="Where Spark runs: local[4], spark://host:7077.")
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="The memory of Spark's driver, such as 4g.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Roll = Annotated[bool, typer.Option("--roll", help="Close the growing segments first, so that all of it is included.")]

OnProgress = Callable[[int, int], None]


@app.command(
    name="archive",
    epilog="[bold]Examples[/]\n\n"
    "  hw spark archive orders --store events --to /archive\n"
    "  hw spark archive orders --store events --to /archive --trim --grace 7d\n"
    "  hw spark archive orders --store events --to /archive --roll   the growing segments too",
)
def archive_command(
    topic: TopicName,
    to: Annotated[Path, typer.Option("--to", metavar="DIRECTORY", help="The archive; created if it does not exist.")],
    store: Store,
    roll: Roll = False,
    trim: Annotated[
        bool, typer.Option("--trim", help="Remove from the log the records that are archived and read.")
    ] = False,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long the log still keeps archived records: 90s, 12h, 7d."),
    ] = "1d",
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Skip records that retention removed before they were archived; this leaves a gap."
        ),
    ] = False,
    master: Master = "local[*]",
    memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Copy the closed segments of a topic to Parquet, proven against the log row for row.

    Run it again to resume, also after it was killed. Compacted topics are refused.
    """
    seconds = _length(grace)
    with _session(master, memory) as spark, _progress("archiving") as on_progress:
        from headwater.spark.jobs.archiving import archive

        partitions = archive(
            spark,
            _absolute(store),
            topic,
            str(to),
            roll=roll,
            trim=trim,
            grace=seconds,
            skip_lost=skip_lost,
            on_progress=on_progress,
        )
    if wants_json(as_json):
        write_json({"topic": topic, "archive": str(to), "partitions": [asdict(partition) for partition in partitions]})
        return
    _table(
        ("partition", "archived", "new rows", "new files", "size", "log from", "kept for"),
        [
            (
                str(partition.partition),
                f"{partition.start}–{partition.end}",
                f"{partition.rows:,}",
                str(partition.files),
                size(partition.bytes),
                str(partition.log_start),
                shown(", ".join(partition.protected_by)),
            )
            for partition in partitions
        ],
    )


@app.command(
    name="compact",
    epilog="[bold]Examples[/]\n\n"
    "  hw spark compact customers --store events\n"
    "  hw spark compact customers --store events --master 'local[8]' --memory 8g",
)
def compact_command(
    topic: TopicName,
    store: Store,
    roll: Roll = False,
    master: Master = "local[*]",
    memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Keep only the newest record of each key of a compacted topic, with more keys than fit in memory.

    Offsets stay as they are and readers are undisturbed. The exit code is 1 when a segment is damaged and left alone.
    """
    with _session(master, memory) as spark, _progress("compacting") as on_progress:
        from headwater.spark.jobs.compacting import compact

        results = compact(spark, _absolute(store), topic, roll=roll, on_progress=on_progress)
    if wants_json(as_json):
        partitions = [{"partition": number, **asdict(result)} for number, result in results.items()]
        write_json({"topic": topic, "partitions": partitions})
    else:
        _table(
            ("partition", "segments", "rewritten", "damaged", "records removed", "before", "after"),
            [
                (
                    str(number),
                    str(result.segments),
                    str(result.rewritten),
                    Text(str(result.damaged), "bold red" if result.damaged else ""),
                    f"{result.removed_records:,}",
                    size(result.bytes_before),
                    size(result.bytes_after),
                )
                for number, result in results.items()
            ],
        )
    raise typer.Exit(1 if any(result.damaged for result in results.values()) else 0)


@app.command(
    name="replay",
    epilog="[bold]Examples[/]\n\n"
    "  hw spark replay orders orders-copy --store events\n"
    "  hw spark replay orders retry --store events --from 2026-01-31T12:00 --to 2026-01-31T13:00\n"
    "  hw spark replay orders loud --store events --sql 'SELECT key, upper(string(value)) AS value FROM source'",
)
def replay_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The topic to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to write.")],
    store: Store,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="earliest, an offset, -2h, or 2026-01-31T12:00.")
    ] = "earliest",
    end: Annotated[str, typer.Option("--to", metavar="WHERE", help="latest, or as above; exclusive.")] = "latest",
    sql: Annotated[str | None, typer.Option("--sql", help="A SELECT from the view 'source'.")] = None,
    archive: Annotated[Path | None, typer.Option("--archive", help="Where the older part of the topic is.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The name of this replay, which runs once.")] = None,
    master: Master = "local[*]",
    memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Write a range of a topic to another topic, exactly once; SQL may change the records.

    The same command again does nothing, even if the first was killed: give another --name to do it twice.
    """
    directory = _absolute(store)
    options = _range(directory, source, start, end)
    if archive is not None:
        options["archive"] = str(archive.absolute())
    with _session(master, memory) as spark, _progress("replaying") as on_progress:
        from headwater.spark.jobs.replaying import replay

        result = replay(spark, directory, source, target, options=options, sql=sql, name=name, on_progress=on_progress)
    if wants_json(as_json):
        write_json({"source": source, "target": target, **result._asdict()})
    elif result.repeated:
        console().print(f"this replay was done before, as {result.writer}: nothing is written again")
    else:
        console().print(Text.assemble(("✓ ", "bold green"), f"{result.rows:,} records written, as {result.writer}"))


# Arguments.


def _absolute(store: Path) -> str:
    return str(store.expanduser().absolute())


def _length(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if unit not in _SECONDS or not number.replace(".", "", 1).isdecimal():
        raise InvalidConfiguration(f"--grace is a length of time such as 90s, 12h or 7d, not {text!r}")
    return float(number) * _SECONDS[unit]


def _range(store: str, topic: str, start: str, end: str) -> dict[str, str]:
    """Return the beginning and the end as options of the source."""
    options = {}
    for side, text in (("starting", start), ("ending", end)):
        if text in WORDS:
            options[f"{side}Offsets"] = str(WORDS[text])
        elif text.isdecimal():
            options[f"{side}Offsets"] = _everywhere(store, topic, int(text))
        else:
            moment(text)  # raises when it is none
            options[f"{side}Timestamp"] = text
    return options


def _everywhere(store: str, topic: str, offset: int) -> str:
    """The same offset in every partition, as the source takes it."""
    from headwater.spark.address import open_existing

    with open_existing(store) as opened:
        return json.dumps({topic: {str(number): offset for number in range(opened.topic(topic).info.partitions)}})


# Spark.


@contextmanager
def _session(master: str, memory: str) -> Iterator[SparkSession]:
    """Spark, for the length of a command, with nothing of its own to say."""
    import headwater.spark

    known = sys.modules.get("pyspark.sql")
    ours = known is None or known.SparkSession.getActiveSession() is None
    people = console(stderr=True)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    config = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.driver.memory": memory}
    with silenced_children(), people.status("starting Spark") if people.is_terminal else nullcontext():
        spark = headwater.spark.session("hw", master=master, config=config)
        spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    except Exception as error:
        raise _plain(error) from error
    finally:
        if ours:
            spark.stop()


def _plain(error: Exception) -> Exception:
    """Return the one line of Spark's error that names the problem, instead of pages."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException) and not type(error).__module__.startswith("py4j."):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("headwater.core.errors.")]
    text = ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__
    return InvalidConfiguration(text)


@contextmanager
def _progress(label: str) -> Iterator[OnProgress]:
    """A bar on standard error, where that is a terminal."""
    people = console(stderr=True)
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# Telling.


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console().print(table)
