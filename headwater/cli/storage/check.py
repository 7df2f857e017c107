"""`hw check`: verify every frame of a partition, a topic or a store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from headwater.cli.output import Json, console, shown, size, table, wants_json, write_json
from headwater.cli.target import check_is_store, find
from headwater.core.address import SCHEME
from headwater.core.errors import HeadwaterError
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, SchemaDirectory, Schemas
from headwater.log.maintain.check import Check, Finding, OnProgress
from headwater.streams import TopicInfo
from headwater.streams.catalog import TOPIC_FILE

app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw check                              every partition of the store that HEADWATER_STORE or the context names\n"
    "  hw check events                       every partition of a store\n"
    "  hw check events/orders/0              one partition, segment by segment\n"
    "  hw check --repair events/orders       rebuild what the engine rebuilds by itself, now\n"
    "  hw check --json backup/store && echo ok   the exit code is 1 when there is damage",
)
def check(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A directory of a partition, topic or store; without it, the store of HEADWATER_STORE or context.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First open each partition for writing, which rebuilds indexes and cuts off unfinished writes.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify every frame of every segment, and name all damage.

    Nothing is changed and no lock is taken: the store may be in use. The exit code is 1 when there is damage. --repair
    rebuilds indexes and the state, and cuts off an unfinished append. Damaged records come back only from a backup
    or another replica.
    """
    raise typer.Exit(run(_store() if path is None else _local(path), as_json, repair=repair))


def _local(said: str) -> Path:
    if said.startswith(SCHEME):
        raise HeadwaterError(f"hw check reads files, not brokers: run hw check PATH on the machine of {said}")
    return Path(said)


def _store() -> Path:
    """The store that the environment or the context names."""
    target = find(os.environ.get("HEADWATER_STORE"))
    _local(target.where)
    check_is_store(Path(target.where))
    return Path(target.where)


def run(path: Path, as_json: bool, *, repair: bool = False) -> int:
    """Check, tell, and return the exit code."""
    partitions = partitions_of(path)
    repaired = [report for partition in partitions for report in _repair(partition)] if repair else []
    checked: list[tuple[Check, list[Finding], float]] = []
    for partition in partitions:
        began = time.monotonic()
        with progress_bar() as on_progress:
            check = Check(partition, schemas=schemas_of(partition), on_progress=on_progress)
            checked.append((check, list(check.run()), time.monotonic() - began))
    damaged = any(finding.kind == "damage" for _, findings, _ in checked for finding in findings)
    single = partitions == [path]
    if wants_json(as_json):
        documents = [_document(*result) for result in checked]
        more: dict[str, Any] = {"repaired": repaired} if repair else {}
        whole = {"path": str(path), "damaged": damaged, "partitions": documents}
        write_json((documents[0] if single else whole) | more)
    else:
        for report in repaired:
            console().print(shown(report, "dim"), soft_wrap=True)
        if single:
            _tell(*checked[0])
        else:
            _tell_all(checked, path)
    return 1 if damaged else 0


def partitions_of(path: Path) -> list[Path]:
    """Return the partitions in a store or a topic; any other directory counts as a partition."""
    if (path / TOPIC_FILE).exists():
        return [path / str(number) for number in range(_topic(path).partitions) if (path / str(number)).exists()]
    topics = sorted(
        topic_file.parent for topic_file in path.glob(f"*/{TOPIC_FILE}") if not topic_file.parent.name.startswith(".")
    )
    return [partition for topic in topics for partition in partitions_of(topic)] or [path]


def _topic(path: Path) -> TopicInfo:
    file = path / TOPIC_FILE
    return TopicInfo.from_json(file.read_bytes(), file)


def schemas_of(partition: Path) -> Schemas | None:
    """Return the schemas of a topic's partition; None for a partition on its own, which holds them itself."""
    return SchemaDirectory(partition.parent / "schemas") if (partition.parent / TOPIC_FILE).exists() else None


def _repair(path: Path) -> list[str]:
    """Open a partition for writing, and close it. Return the reports of recovery."""
    if not (path.parent / TOPIC_FILE).exists():
        with DirectoryPartition(path) as partition:
            return [str(report) for report in partition.recovery_reports if not report.clean]
    info = _topic(path.parent)
    with DirectoryStore(path.parent.parent) as store:
        store.always_repair()
        opened = store.partition(info, int(path.name))
        assert isinstance(opened, DirectoryPartition)
        return [str(report) for report in opened.recovery_reports if not report.clean]


def _tell_all(checked: list[tuple[Check, list[Finding], float]], path: Path) -> None:
    people = console()
    listed = table("partition", ">offsets", ">frames", ">records", ">size", "")
    for check, findings, _ in checked:
        damaged = any(finding.kind == "damage" for finding in findings)
        listed.add_row(
            shown(str(check.directory.relative_to(path))),
            f"{check.start}–{check.end - 1}" if check.end > check.start else "none",
            f"{sum(segment.frames for segment in check.segments):,}",
            f"{sum(segment.records for segment in check.segments):,}",
            size(check.bytes_total),
            Text("damaged", "bold red") if damaged else Text("good", "green"),
        )
    people.print(listed)
    for check, findings, _ in checked:
        for finding in findings:
            people.print(Text.assemble(shown(f"{check.directory.relative_to(path)} ", "dim"), describe(finding)))
    _verdict(
        [check for check, _, _ in checked],
        [finding for _, findings, _ in checked for finding in findings],
        sum(seconds for _, _, seconds in checked),
    )


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """A bar on standard error, where that is a terminal; work that is done at once shows none."""
    people = console(stderr=True)
    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    began = time.monotonic()
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal) as bar:
        task = bar.add_task("checking", visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=time.monotonic() - began > 0.5)

        yield show


def _tell(check: Check, findings: list[Finding], seconds: float) -> None:
    people = console()
    listed = table("segment", ">offsets", ">frames", ">records", ">size", "")
    for segment in check.segments:
        verdict = Text("damaged", "bold red") if segment.damage else Text("good", "green")
        if segment.compacted:
            verdict.append(", compacted", "dim")
        last = f"{segment.base}–{segment.end - 1}" if segment.end > segment.base else "none"
        listed.add_row(
            shown(segment.file.name),
            last,
            f"{segment.frames:,}",
            f"{segment.records:,}",
            size(segment.bytes),
            verdict,
        )
    people.print(listed)
    if findings:
        people.print()
    for finding in findings:
        people.print(describe(finding))
    _verdict([check], findings, seconds)


def _verdict(checked: list[Check], findings: list[Finding], seconds: float) -> None:
    damage = sum(finding.kind == "damage" for finding in findings)
    frames = sum(segment.frames for check in checked for segment in check.segments)
    records = sum(segment.records for check in checked for segment in check.segments)
    total = sum(check.bytes_total for check in checked)
    people = console()
    people.print()
    verdict = Text(f"✗ {damage} × damage", "bold red") if damage else Text("✓ no damage", "bold green")
    speed = f" ({size(total / seconds)}/s)" if seconds > 0.1 else ""
    people.print(Text.assemble(verdict, f" in {records:,} records, {frames:,} frames, {size(total)}{speed}"))


def describe(finding: Finding) -> Text:
    """Return a finding in one line: its kind, its place, and the lost records."""
    text = Text.assemble(("✗ ", "bold red") if finding.kind == "damage" else ("· ", "dim"))
    text.append_text(shown(finding.file.name, "bold"))
    if finding.position is not None:
        text.append(f" at byte {finding.position}")
    text.append(": ")
    text.append_text(shown(finding.reason))
    if finding.kind == "damage" and finding.offset is not None and finding.next_offset is not None:
        lost = finding.next_offset - finding.offset
        which = f"offset {finding.offset}" if lost == 1 else f"offsets {finding.offset} to {finding.next_offset - 1}"
        text.append(f"; {which} cannot be read" if lost > 0 else "; no record is lost", "red" if lost > 0 else "")
    return text


def _document(check: Check, findings: list[Finding], seconds: float) -> dict[str, Any]:
    return {
        "partition": str(check.directory),
        "uuid": check.partition.hex(),
        "start": check.start,
        "end": check.end,
        "damaged": any(finding.kind == "damage" for finding in findings),
        "frames": sum(segment.frames for segment in check.segments),
        "records": sum(segment.records for segment in check.segments),
        "bytes": check.bytes_total,
        "seconds": round(seconds, 3),
        "segments": [
            {
                "file": segment.file.name,
                "base": segment.base,
                "end": segment.end,
                "frames": segment.frames,
                "records": segment.records,
                "bytes": segment.bytes,
                "compacted": segment.compacted,
                "damage": segment.damage,
            }
            for segment in check.segments
        ],
        "findings": [
            {
                "kind": finding.kind,
                "file": finding.file.name,
                "position": finding.position,
                "offset": finding.offset,
                "next_offset": finding.next_offset,
                "reason": finding.reason,
            }
            for finding in findings
        ],
    }
