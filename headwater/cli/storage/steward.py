"""`hw steward`: clean a store, once or for as long as it runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwater.cli.arguments import Settings, parse_settings
from headwater.cli.output import Json, console, done, shown, size, table, wants_json, write_json, write_line
from headwater.cli.target import StoreOption, opened
from headwater.core.config import StewardConfig
from headwater.streams.stopping import stop_on_signals

if TYPE_CHECKING:
    from headwater.streams import CleanedPartition, Steward, StewardReport

app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw steward --dry-run                         what would be cleaned\n"
    "  hw steward                                   clean once\n"
    "  hw steward --forever --set interval=5min     until Ctrl-C or SIGTERM\n"
    "  hw steward --set total_bytes=50GiB",
)
def steward(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    forever: Annotated[bool, typer.Option("--forever", help="Repeat until Ctrl-C or SIGTERM.")] = False,
    settings: Settings = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Clean a store as its topics are configured: retention, compaction, undone transactions, groups long gone.

    A store has one steward at a time, and a broker runs its own. Options are those of docs/configuration.md. The exit
    code is 1 if something went wrong, or if another process is cleaning.
    """
    if dry_run and forever:
        raise typer.BadParameter("--dry-run runs once: leave out --forever")
    with opened(store) as opened_store:
        cleaner = opened_store.steward(**parse_settings(StewardConfig, settings))
        if forever:
            _work(cleaner, as_json)
            return
        report = cleaner.run_once(dry_run=dry_run)
    if wants_json(as_json):
        write_json(_document(report))
    else:
        _tell(report)
    raise typer.Exit(1 if report.errors or report.skipped else 0)


def _work(cleaner: Steward, as_json: bool) -> None:
    with stop_on_signals() as stop:
        while not stop:
            report = cleaner.run_once()
            if wants_json(as_json):
                write_line(_document(report))
            else:
                _tell(report)
            stop.wait(cleaner.config.interval)


def _document(report: StewardReport) -> dict[str, Any]:
    return asdict(report) | {"segments": report.segments, "bytes": report.bytes}


def _tell(report: StewardReport) -> None:
    people = console()
    if report.skipped:
        people.print(Text.assemble(("· ", "dim"), shown(report.skipped)))
        return
    rows = [(partition, work) for partition in report.partitions if (work := _work_on(partition))]
    if rows:
        listed = table("partition", "done" if not report.dry_run else "to be done", ">bytes", "begins at")
        for partition, work in rows:
            style = "bold red" if partition.error else ""
            listed.add_row(
                shown(f"{partition.topic}/{partition.partition}"),
                shown(work, style),
                size(partition.bytes),
                f"{partition.start:,}",
            )
        people.print(listed)
    more = [
        (len(report.expired_groups), "groups forgotten"),
        (report.pruned_positions, "positions forgotten"),
        (report.swept_topics, "deleted topics swept"),
        (report.finished_transactions, "transactions finished"),
        (report.dropped_stages, "abandoned transactions dropped"),
    ]
    told = ", ".join(f"{count:,} {label}" for count, label in more if count)
    if report.clock:
        people.print(Text.assemble(("! ", "bold yellow"), shown(report.clock)))
    for problem in report.errors:
        people.print(Text.assemble(("✗ ", "bold red"), shown(problem)))
    verb = "would be" if report.dry_run else "were"
    done(f"{report.segments:,} segments {verb} deleted; {size(report.bytes_left)} left" + (f"; {told}" if told else ""))


def _work_on(partition: CleanedPartition) -> str:
    parts = [
        "segment closed" if partition.rolled else "",
        f"{partition.segments:,} segments deleted" if partition.segments else "",
        f"{partition.forced:,} of them unread" if partition.forced else "",
        "compacted" if partition.compacted else "",
        f"kept for {', '.join(partition.protected_by)}" if partition.protected_by else "",
        f"failed: {partition.error}" if partition.error else "",
    ]
    return ", ".join(part for part in parts if part)
