"""`hw check`: verify every frame of a partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from headwater.cli.output import console, shown, size, wants_json, write_json
from headwater.log.check import Check, Finding, OnProgress


def run(partition: Path, as_json: bool) -> int:
    """Check, tell, and return the exit code."""
    began = time.monotonic()
    with progress_bar() as on_progress:
        check = Check(partition, on_progress=on_progress)
        findings = list(check.run())
    damaged = any(finding.kind == "damage" for finding in findings)
    if wants_json(as_json):
        write_json(_document(check, findings, time.monotonic() - began))
    else:
        _tell(check, findings, time.monotonic() - began)
    return 1 if damaged else 0


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("segment")
    for heading in ("offsets", "frames", "records", "size", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for segment in check.segments:
        verdict = Text("damaged", "bold red") if segment.damage else Text("good", "green")
        if segment.compacted:
            verdict.append(", compacted", "dim")
        last = f"{segment.base}–{segment.end - 1}" if segment.end > segment.base else "none"
        table.add_row(
            shown(segment.file.name),
            last,
            f"{segment.frames:,}",
            f"{segment.records:,}",
            size(segment.bytes),
            verdict,
        )
    people.print(table)
    if findings:
        people.print()
    for finding in findings:
        people.print(describe(finding))
    damage = sum(finding.kind == "damage" for finding in findings)
    frames = sum(segment.frames for segment in check.segments)
    records = sum(segment.records for segment in check.segments)
    people.print()
    verdict = Text(f"✗ {damage} × damage", "bold red") if damage else Text("✓ no damage", "bold green")
    speed = f" ({size(check.bytes_total / seconds)}/s)" if seconds > 0.1 else ""
    people.print(
        Text.assemble(verdict, f" in {records:,} records, {frames:,} frames, {size(check.bytes_total)}{speed}")
    )


def describe(finding: Finding) -> Text:
    """A finding in one line: what, where, and which records are gone."""
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
