"""`hw topic`: make, look at, change, copy and delete topics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwater.cli.arguments import Mistake, Settings, parse_settings, written
from headwater.cli.output import (
    Json,
    Yes,
    ago,
    confirm,
    console,
    done,
    facts,
    say,
    shown,
    size,
    table,
    wants_json,
    write_json,
)
from headwater.cli.records import columns as column_text
from headwater.cli.target import StoreOption, TopicName, complete_topic, opened
from headwater.cli.topics import topic_copy
from headwater.core.config import TopicConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.log import Counters
    from headwater.streams import Topic, TopicInfo, TopicStatistics

app = typer.Typer(
    no_args_is_help=True,
    help="Create, show, change, copy and delete topics.",
    epilog="[bold]Examples[/]\n\n"
    "  hw topic create orders --partitions 4 --store events\n"
    "  hw topic list\n"
    "  hw topic describe orders\n"
    "  hw topic alter orders --set retention_age=7d\n"
    "  hw topic copy orders orders.backup",
)

_NewName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False)]
_Partitions = Annotated[int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="How many partitions.")]
_Replication = Annotated[
    int | None,
    typer.Option("--replication", "-r", min=1, metavar="N", help="In a cluster: how many brokers keep each partition."),
]
_MinInsync = Annotated[
    int | None,
    typer.Option(
        "--min-insync", min=1, metavar="N", help="In a cluster: how many of them must have a record to acknowledge it."
    ),
]
_Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", "-c", metavar="NAME:TYPE", help="A column of a typed topic; a ! at its end means not null."
    ),
]


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw topic create orders --partitions 4\n"
    "  hw topic create orders --replication 3 --min-insync 2    in a cluster\n"
    "  hw topic create trades -c symbol:string! -c price:float64 -c at:'timestamp[us, UTC]'\n"
    "  hw topic create trades --like trades.parquet\n"
    "  hw topic create users --set compact=true --set compression=zstd",
)
def create(
    name: _NewName,
    partitions: _Partitions = None,
    replication: _Replication = None,
    min_insync: _MinInsync = None,
    column: _Columns = None,
    like: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the columns of a Parquet, Arrow or CSV file.")
    ] = None,
    settings: Settings = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do not fail if the topic exists.")] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Create a topic, raw or typed by its columns, and its store if that does not exist.

    Options are those of docs/configuration.md: retention_age=7d, retention_bytes=10GiB, compact=true, sync=1s, …
    """
    options = parse_settings(TopicConfig, settings)
    schema = _schema(column, like)
    with opened(store, make=True) as opened_store:
        topic = opened_store.create_topic(
            name,
            partitions or 1,
            schema,
            replication=replication,
            min_insync=min_insync,
            exist_ok=exist_ok,
            **options,
        )
        if wants_json(as_json):
            write_json(_document(topic))
        else:
            done(f"topic {name} exists, with {_counted(topic.info.partitions, 'partition')}, in {opened_store}")


def _schema(column: list[str] | None, like: Path | None) -> pa.Schema | None:
    if column and like is not None:
        raise Mistake("columns come from --column or from --like, not from both")
    if like is not None:
        from headwater.cli.records.reading import schema_of_file

        return schema_of_file(like)
    return column_text.parse_schema(column) if column else None


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@app.command(
    name="list",
    epilog="[bold]Examples[/]\n\n  hw topic list\n  hw topic list | jq -r '.topics[].name'",
)
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show Headwater's own topics too.")] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show every topic, with its partitions, records and size."""
    with opened(store) as opened_store:
        names = opened_store.topic_names() if internal else opened_store.topics()
        known = {
            statistics.name: statistics for statistics in opened_store.statistics().topics
        }  # of all at once: over a network, that counts
        documents = [_document(opened_store.topic(name), known.get(name)) for name in names]
    if wants_json(as_json):
        write_json({"store": str(opened_store), "topics": documents})
        return
    listed = table("topic", ">partitions", ">records", ">size", "kind", "last append")
    for document in documents:
        kind = "raw" if not document["columns"] else ", ".join(column["name"] for column in document["columns"])
        when = ago(document["last_append_ns"]) if document["last_append_ns"] else "never"
        name = Text.assemble(
            shown(document["name"], "bold"), *([(" damaged", "bold red")] if document["unhealthy"] else [])
        )
        listed.add_row(
            name,
            f"{document['partitions']:,}",
            f"{document['records']:,}",
            size(document["bytes"]),
            shown(kind, "dim", limit=40),
            Text(when, "dim"),
        )
    say(listed if documents else Text(f"{opened_store} has no topics yet: hw topic create NAME", "dim"))


def _document(topic: Topic, statistics: TopicStatistics | None = None) -> dict[str, Any]:
    """A topic for programs."""
    info, schema = topic.info, topic.schema
    statistics = statistics or topic.statistics()
    return {
        "name": info.name,
        "uuid": info.uuid.hex(),
        "partitions": info.partitions,
        "replication": info.replication,
        "min_insync": info.min_insync,
        "created_ns": info.created_ns,
        "records": statistics.records,
        "bytes": statistics.bytes,
        "last_append_ns": max((partition.last_append_ns for partition in statistics.partitions), default=0),
        "unhealthy": list(statistics.unhealthy),
        "columns": [] if schema.raw else column_text.written(schema.payload),
        "config": written(info.config),
    }


@app.command(epilog="[bold]Examples[/]\n\n  hw topic describe orders\n  hw topic describe orders | jq .config.sync")
def describe(name: TopicName, store: StoreOption = None, as_json: Json = False) -> None:
    """Show one topic: its columns, configuration, partitions and groups."""
    from headwater.cli.groups.positions import lags

    with opened(store) as opened_store:
        topic = opened_store.topic(name)
        statistics = topic.statistics()
        document = _document(topic, statistics)
        document["parts"] = [
            {
                "partition": number,
                "start": partition.start,
                "end": partition.end,
                "durable_end": partition.durable_end,
                "segments": partition.segments,
                "bytes": partition.bytes,
                "last_append_ns": partition.last_append_ns,
                "damaged": partition.damaged,
                "poisoned": partition.poisoned,
                "counters": asdict(partition.counters),
            }
            for number, partition in enumerate(statistics.partitions)
        ]
        document["counters"] = asdict(statistics.counters)
        groups: dict[str, int] = {}
        for lag in lags(opened_store, topics=[name]):
            groups[lag.group] = groups.get(lag.group, 0) + lag.records
        document["groups"] = groups
    if wants_json(as_json):
        write_json(document)
    else:
        _tell(document, statistics.counters)


def _activity(counters: Counters) -> list[tuple[str, Any]]:
    """Return what was done with a topic since it was created, as far as something was."""
    rows = [("writes", _timed(counters.writes, counters.mean_write_ns, counters.longest_write_ns))]
    if counters.syncs:
        rows.append(("syncs", _timed(counters.syncs, counters.mean_sync_ns, counters.longest_sync_ns)))
    if counters.compressed_frames or counters.compression_skipped:
        before, after = size(counters.compression_bytes_in), size(counters.compression_bytes_out)
        rows.append(("compression", f"{before} became {after}; {counters.compression_skipped:,} frames were too small"))
    if counters.rotations:
        rows.append(("rotations", f"{counters.rotations:,}"))
    if counters.reads:
        told = f"{counters.reads:,} by {_counted(counters.readers, 'reader')}, {counters.cache_hits:,} from the cache"
        rows.append(("reads", told))
    if counters.retention_runs:
        removed = f"{counters.retention_records:,} records, {size(counters.retention_bytes)}, removed"
        kept = f"; {size(counters.protected_bytes)} kept for groups" if counters.protected_bytes else ""
        rows.append(("retention", f"{_counted(counters.retention_runs, 'run')}: {removed}{kept}"))
    if counters.errors:
        rows.append(("errors", f"{counters.errors:,}, the last one {ago(counters.last_error_ns)}"))
    return rows


def _timed(number: int, mean_ns: int, longest_ns: int) -> str:
    return f"{number:,}, {mean_ns / 1e6:.2f} ms each, {longest_ns / 1e6:.2f} ms at most" if number else "none"


def _tell(document: dict[str, Any], counters: Counters) -> None:
    people = console()
    kind = "typed" if document["columns"] else "raw"
    rows: list[tuple[str, Any]] = [
        ("topic", shown(document["name"], "bold")),
        ("kind", kind),
        ("records", f"{document['records']:,}, {size(document['bytes'])}"),
        ("created", ago(document["created_ns"])),
    ]
    if document["replication"] is not None:
        kept = f"{_counted(document['replication'], 'replica')}, {document['min_insync']} in sync to acknowledge"
        rows.append(("kept as", kept))
    people.print(facts(rows))
    if document["columns"]:
        people.print()
        listed = table("column", "type", "")
        for column in document["columns"]:
            listed.add_row(
                shown(column["name"]), shown(column["type"]), Text("" if column["nullable"] else "not null", "dim")
            )
        people.print(listed)
    people.print()
    listed = table(">partition", ">start", ">end", ">segments", ">size", "last append", "")
    for partition in document["parts"]:
        sound = not partition["damaged"] and not partition["poisoned"]
        verdict = Text("") if sound else Text("damaged: hw check", "bold red")
        when = ago(partition["last_append_ns"]) if partition["last_append_ns"] else "never"
        listed.add_row(
            str(partition["partition"]),
            f"{partition['start']:,}",
            f"{partition['end']:,}",
            f"{partition['segments']:,}",
            size(partition["bytes"]),
            Text(when, "dim"),
            verdict,
        )
    people.print(listed)
    people.print()
    people.print(facts(_activity(counters)))
    if document["groups"]:
        people.print()
        listed = table("group", ">lag")
        for group, lag in sorted(document["groups"].items()):
            listed.add_row(shown(group), f"{lag:,}")
        people.print(listed)
    usual = written(TopicConfig())
    unusual = {option: value for option, value in document["config"].items() if value != usual[option]}
    people.print()
    told = ", ".join(f"{option}={value}" for option, value in unusual.items()) or "as by default"
    people.print(Text.assemble(("configured ", "bold"), shown(told, "dim")), soft_wrap=True)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw topic alter orders --partitions 8\n"
    "  hw topic alter orders --replication 3    in a cluster: replicas move in the background\n"
    "  hw topic alter orders --set retention_age=30d --set compression=zstd\n"
    "  hw topic alter trades --column venue:string",
)
def alter(
    name: TopicName,
    partitions: _Partitions = None,
    replication: _Replication = None,
    min_insync: _MinInsync = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", metavar="NAME:TYPE", help="A new column, which is nullable."),
    ] = None,
    settings: Settings = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Change a topic for everyone: more partitions, other options, more columns, another number of replicas.

    More partitions send keys elsewhere from now on. Stored records stay as and where they are. Replicas move while all
    goes on; `hw cluster rebalance` watches them.
    """
    import pyarrow as pa

    options = parse_settings(TopicConfig, settings)
    numbers = {"partitions": partitions, "replication": replication, "min_insync": min_insync}
    if not any(numbers.values()) and not options and not column:
        raise Mistake("nothing to change: give --partitions, --replication, --min-insync, --set or --column")
    with opened(store) as opened_store:
        topic = opened_store.topic(name)
        if column:
            topic.evolve(pa.schema([*topic.schema.payload, *column_text.parse_schema(column)]))
        if any(numbers.values()) or options:
            opened_store.alter_topic(name, **numbers, **options)
        if wants_json(as_json):
            write_json(_document(topic))
        else:
            done(f"topic {name} is changed")


@app.command(epilog="[bold]Examples[/]\n\n  hw topic delete orders\n  hw topic delete orders trades --yes")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC…", help="Names of topics.", autocompletion=complete_topic, show_default=False),
    ],
    yes: Yes = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Remove topics with all their records, for good."""
    with opened(store) as opened_store:
        infos: list[tuple[TopicInfo, int]] = [
            (opened_store.describe_topic(name), opened_store.topic(name).statistics().records) for name in names
        ]
        listed = ", ".join(f"{info.name} ({_counted(records, 'record')})" for info, records in infos)
        confirm(f"Delete {listed}?", yes)
        for name in names:
            opened_store.delete_topic(name)
    if wants_json(as_json):
        write_json({"deleted": names})
    else:
        done(f"{', '.join(names)} deleted")


app.command(
    name="copy",
    epilog="[bold]Examples[/]\n\n"
    "  hw topic copy orders orders.yesterday --from @-1d\n"
    "  hw topic copy orders --to-store hw://broker.example:6174    the same name, elsewhere\n"
    "  hw topic copy orders orders.wide --partitions 16",
)(topic_copy.copy)
