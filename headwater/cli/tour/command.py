"""`hw tour`: what Headwater does, done for real in front of you.

Nothing is staged but the moments of death, which are said. The tour keeps its own account of what was acknowledged,
apart from the log, and compares: when the log falls short of it, the tour says so and fails.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Final

import pyarrow as pa
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

import headwater.core.compute as pc
from headwater.cli.output import console, printable, shown, size
from headwater.cli.storage.check import describe
from headwater.cli.tour.bars import bars, feed
from headwater.cli.tour.processes import FRAME_RECORDS, NUMBER_DIGITS, WRITER_CONFIG, append_frames, key_of, start
from headwater.cli.tour.speed import measure
from headwater.cli.tour.streams import stream
from headwater.core.errors import FrameDamaged, HeadwaterError
from headwater.log import Damage, DirectoryPartition
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, list_segments, seed_of
from headwater.log.maintain.check import Check

_WRITERS: Final = 4
_VICTIM: Final = 2
_FRAMES: Final = 3000
"""Each writer appends so many frames; the victim does not come so far."""
_SECONDS: Final = 6.0
"""Slow disks are not waited for: after this time the writers stop where they are."""
_PATIENCE: Final = 60.0


@dataclass(slots=True)
class WriterProcess:
    """A writing process and its messages."""

    number: int
    process: subprocess.Popen[bytes]
    acknowledged: list[tuple[int, int, int]] = field(default_factory=list)
    """First number, count and first offset of each append that returned."""
    recovered: list[str] = field(default_factory=list)
    _listener: threading.Thread | None = None

    @property
    def records(self) -> int:
        """The number of acknowledged records."""
        return sum(count for _, count, _ in self.acknowledged)

    def listen(self) -> None:
        """Note the messages of the process, until it is gone."""
        assert self.process.stdout is not None, "it is a pipe"
        self._listener = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _read(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            word, _, rest = line.decode().rstrip("\n").partition(" ")
            if not line.endswith(b"\n"):
                break  # cut off by its death: it was not said
            if word == "acknowledged":
                first, count, base = map(int, rest.split())
                self.acknowledged.append((first, count, base))
            else:
                self.recovered.append(rest)

    def finish(self) -> int:
        """Wait until it is gone and all it said is taken down; its exit code."""
        code = self.process.wait(_PATIENCE)
        assert self._listener is not None, "it was listened to"
        self._listener.join(_PATIENCE)
        return code


app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw tour                     in a temporary directory, removed at the end\n"
    "  hw tour ~/hw-tour           in a new directory, kept to look around in\n"
    "  hw tour --no-spark          without the pipeline, in half the time\n"
    "  hw tour | cat               as plain text",
)
def tour(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIRECTORY", help="Where to work: a new or empty directory, which is kept.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Run the pipeline too, if Spark is installed.")
    ] = True,
) -> None:
    """Show what Headwater does: many writers, a killed one, recovery, a flipped bit, groups, and a pipeline on Spark.

    It takes about a minute, without Spark half of that. Everything shown is done for real, there and then. The exit
    code is 1 if a promise is broken.
    """
    raise typer.Exit(run(directory, spark=spark))


def run(directory: Path | None, *, spark: bool = True) -> int:
    """Give the tour; the exit code is 1 when a promise was broken."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise HeadwaterError(f"{directory} is not empty: give the tour a new directory")
    tour_directory = (
        tempfile.TemporaryDirectory(prefix="headwater-tour-") if directory is None else nullcontext(directory)
    )
    with tour_directory as path:
        tour = Tour(Path(path), kept=directory is not None, spark=spark)
        return tour.give()


class Tour:
    """One tour in one directory."""

    def __init__(self, directory: Path, *, kept: bool, spark: bool = True) -> None:
        self.directory = directory
        self.spark = spark
        self.partition = directory / "partition"
        self.kept = kept
        self.people: Console = console()
        self.writers: list[WriterProcess] = []
        self.broken: list[str] = []
        self.random = random.Random()
        self._step = 0

    def give(self) -> int:
        """All of it."""
        began = time.monotonic()
        self._open()
        try:
            self._write()
            self._die("halfway", "halfway through writing a frame")
            self._die("unpublished", "after its frame was synced, before anyone was told")
            self._read_back()
            self._flip()
            stream(self, self.directory / "store")
            feed(self, self.directory / "store")
            if self.spark:
                bars(self, self.directory)
        finally:
            for writer in self.writers:
                if writer.process.poll() is None:
                    writer.process.kill()
        if not self.broken:
            self._speed()
        return self._close(time.monotonic() - began)

    # Saying things.

    def _open(self) -> None:
        text = Text.assemble(
            ("Headwater", "bold"), ", the commit log for Python\n", (f"in {printable(str(self.directory))}", "dim")
        )
        self.people.print(Panel(text, border_style="cyan", expand=False) if self.people.is_terminal else text)

    def heading(self, text: str) -> None:
        """Begin a step."""
        self._step += 1
        self.people.print()
        self.people.print(Text(f"{self._step}. {text}", "bold cyan"))

    def say(self, text: Text | str) -> None:
        """Tell something."""
        whole = not self.people.is_terminal  # in a pipe a line is a line
        self.people.print(Text.assemble("   ", text), soft_wrap=whole)

    def show(self, renderable: RenderableType) -> None:
        """Show a table."""
        self.people.print(renderable)

    def promise(self, kept: bool, text: str) -> None:
        """Tell a promise and whether it was kept; if not, the tour fails in the end."""
        self.say(Text.assemble(("✓ ", "bold green"), text) if kept else Text(f"✗ BROKEN: {text}", "bold red"))
        if not kept:
            self.broken.append(text)

    # Writing and dying.

    def _start(self, number: int, frames: int, *rigged: str, seconds: float = _PATIENCE) -> WriterProcess:
        writer = WriterProcess(number, start(append_frames, self.partition, number, frames, seconds, *rigged))
        self.writers.append(writer)
        writer.listen()
        return writer

    def _write(self) -> None:
        self.heading(f"{_WRITERS} processes append to one partition at once; one of them is killed")
        writers = [
            self._start(number, 100 * _FRAMES) if number == _VICTIM else self._start(number, _FRAMES, seconds=_SECONDS)
            for number in range(_WRITERS)
        ]
        victim = writers[_VICTIM]  # would go on for long: however busy the machine is, it is killed at its work
        with self._bars(writers) as show:
            while not victim.acknowledged and victim.process.poll() is None:
                time.sleep(0.01)
            began = time.monotonic()
            while len(victim.acknowledged) < _FRAMES // 3 and time.monotonic() - began < _SECONDS / 3:
                time.sleep(0.02)
                show()
            victim.process.kill()
            victim.finish()
            while any(writer.process.poll() is None for writer in writers):
                time.sleep(0.02)
                show()
            seconds = time.monotonic() - began
            for writer in writers:
                writer.finish()
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("  ")
        table.add_column("process")
        table.add_column("acknowledged", justify="right")
        table.add_column("")
        for writer in writers:
            killed = writer.process.returncode == -signal.SIGKILL
            how = Text("killed (SIGKILL) in the middle", "red") if killed else Text("went on", "green")
            table.add_row(
                "", f"{key_of(writer.number).decode()} (pid {writer.process.pid})", f"{writer.records:,}", how
            )
        self.people.print(table)
        total = sum(writer.records for writer in writers)
        self.say(f"{total:,} records in {seconds:.1f} s, each append synced to the disk before it was acknowledged")
        for writer in writers:
            for report in writer.recovered:
                self.say(
                    Text.assemble(f"{key_of(writer.number).decode()} cleaned up after the dead one: ", shown(report))
                )
        self.promise(victim.process.returncode == -signal.SIGKILL, "the victim was killed while it was writing")
        others = [writer for writer in writers if writer is not victim]
        unharmed = all(writer.process.returncode == 0 and writer.records for writer in others)
        self.promise(unharmed, "a dead process blocked nobody: the others went on to their end")

    @contextmanager
    def _bars(self, writers: list[WriterProcess]) -> Iterator[Callable[[], None]]:
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(30),
            TextColumn("{task.fields[records]:>9,} acknowledged"),
        )
        with Progress(*columns, console=self.people, transient=True, disable=not self.people.is_terminal) as bars:
            tasks = [
                bars.add_task(escape(key_of(writer.number).decode()), total=_FRAMES, records=0) for writer in writers
            ]

            def show() -> None:
                for task, writer in zip(tasks, writers, strict=True):
                    bars.update(task, completed=len(writer.acknowledged), records=writer.records)

            yield show

    def _die(self, moment: str, meaning: str) -> None:
        self.heading(f"A writer dies {meaning}")
        writer = self._start(len(self.writers), 20, moment)
        code = writer.finish()
        self.promise(code == -signal.SIGKILL, f"it is dead, with {writer.records:,} records acknowledged")
        began = time.monotonic()
        with DirectoryPartition(self.partition, WRITER_CONFIG) as partition:
            milliseconds = (time.monotonic() - began) * 1000
            reports = partition.recovery_reports
            for report in reports:
                told = str(report).partition(": ")[2]
                self.say(Text.assemble(f"reopened in {milliseconds:.1f} ms, recovery says: ", shown(told, "bold")))
        if moment == "halfway":
            self.promise(any(report.cut_bytes for report in reports), "the half frame is gone")
        else:
            adopted = sum(report.adopted_records for report in reports)
            self.promise(adopted == FRAME_RECORDS, "the whole frame was kept, although nobody had been told of it yet")

    # Proving.

    def _read_back(self) -> None:
        self.heading("Everything is read back and compared with the acknowledged records")
        with DirectoryPartition(self.partition, WRITER_CONFIG) as partition:
            table = partition.scan(columns=["offset", "key", "value"]).read_all()
        writers, numbers = _parse(table)
        acknowledged = sum(writer.records for writer in self.writers)
        offsets = table.column("offset").to_pylist()
        self.promise(offsets == list(range(len(offsets))), f"{len(offsets):,} records, every offset there once")
        missing = doubled = misplaced = 0
        for writer in self.writers:
            own_numbers = [number for name, number in zip(writers, numbers, strict=True) if name == writer.number]
            doubled += len(own_numbers) - len(set(own_numbers))
            misplaced += own_numbers != sorted(own_numbers)
            present = set(own_numbers)
            for first, count, base in writer.acknowledged:
                missing += sum(number not in present for number in range(first, first + count))
                told = numbers[base : base + count] == list(range(first, first + count))
                misplaced += not (told and set(writers[base : base + count]) == {writer.number})
        self.promise(missing == 0, f"{acknowledged:,} acknowledged records, {missing} missing")
        self.promise(doubled == 0, f"{doubled} doubled")
        self.promise(misplaced == 0, f"{misplaced} out of order, or not at the offset that was acknowledged")
        extra = len(offsets) - acknowledged
        self.say(Text(f"{extra:,} more were on their way when their writers died: whole frames, kept", "dim"))

    def _flip(self) -> None:
        self.heading("One bit flips in a copy")
        copy = self.directory / "flipped"
        shutil.copytree(self.partition, copy)
        path, position, base, after = _some_frame(copy, self.random)
        target = position + self.random.randrange(after[1] - position)
        bit = self.random.randrange(8)
        with path.open("r+b") as file:
            file.seek(target)
            byte = file.read(1)[0]
            file.seek(target)
            file.write(bytes([byte ^ (1 << bit)]))
        self.say(f"bit {bit} of byte {target:,} in {path.name}, in the frame with offsets {base} to {after[0] - 1}")
        findings = [finding for finding in Check(copy).run() if finding.kind == "damage"]
        for finding in findings:
            self.say(describe(finding))
        named = [(finding.file, finding.offset, finding.next_offset) for finding in findings]
        self.promise(named == [(path, base, after[0])], "the damage is found, and named to the frame")
        damage: list[Damage] = []
        with DirectoryPartition(copy, WRITER_CONFIG) as partition:
            try:
                sum(batch.num_rows for batch in partition.scan(columns=["offset"]))
                refused = False
            except FrameDamaged:
                refused = True
            rest = sum(batch.num_rows for batch in partition.scan(columns=["offset"], on_damage=damage.append))
            end = partition.bounds().end
        self.promise(refused, "a reader gets an error, never the damaged record")
        self.promise(rest == end - (after[0] - base), f"a reader who asks to go on gets the other {rest:,} records")

    # Numbers, and the end.

    def _speed(self) -> None:
        self.heading("How fast it is here: records of 100 bytes, 1000 in a frame, one thread")
        figures = measure(self.directory / "speed")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column("  ")
        table.add_column("what")
        table.add_column("rate", justify="right", style="bold")
        table.add_column("bytes", justify="right")
        table.add_column("more", style="dim")
        for figure in figures:
            table.add_row(
                "",
                figure.name,
                f"{figure.records_per_second:,.0f} records/s",
                f"{size(figure.bytes_per_second)}/s",
                figure.remark,
            )
        self.people.print(table)
        self.say(Text("rough figures of a second each; benchmarks measure with more care", "dim"))

    def _close(self, seconds: float) -> int:
        self.people.print()
        if self.broken:
            self.people.print(Text(f"✗ {len(self.broken)} promises were broken", "bold red"))
            for promise in self.broken:
                self.people.print(Text(f"  {promise}", "red"))
            return 1
        self.people.print(Text(f"✓ every promise was kept ({seconds:.0f} s)", "bold green"))
        self.people.print()
        self.people.print(Text("Try next", "bold"))
        root = printable(str(self.directory)) if self.kept else "hw-tour"
        first = list_segments(self.partition, None)[0][0].path.name
        lines = [] if self.kept else [("hw tour hw-tour", "the same, in a directory that is kept")]
        lines += [
            (f"hw topic list --store {root}/store", "the topics that were made here"),
            (f"hw consume prices --from -3 --store {root}/store", "the last prices of each partition"),
            (f'hw sql "SELECT symbol, avg(price) FROM prices GROUP BY ALL" --store {root}/store', "ask them in SQL"),
            (f"hw check {root}/flipped", "find the damage again"),
            (f"hw inspect {root}/partition/{first}", "see the frames of a file"),
            (f"hw broker {root}/store", "serve the same at hw://127.0.0.1:6174"),
        ]
        width = max(len(command) for command, _ in lines)
        for command, about in lines:
            line = Text.assemble((f"  {command:<{width}}", "bold"), (f"  {about}", "dim"))
            self.people.print(line, soft_wrap=True)
        return 0


def _parse(table: pa.Table) -> tuple[list[int], list[int]]:
    """The writer and the number of each record."""
    key_bytes = len(key_of(0))
    writers = pc.cast(pc.cast(pc.binary_slice(table.column("key"), key_bytes - 1, key_bytes), pa.string()), pa.int64())
    numbers = pc.cast(pc.cast(pc.binary_slice(table.column("value"), 0, NUMBER_DIGITS), pa.string()), pa.int64())
    return writers.to_pylist(), numbers.to_pylist()


def _some_frame(directory: Path, chance: random.Random) -> tuple[Path, int, int, tuple[int, int]]:
    """A frame at random: its file, where it begins there, its first offset, and the offset and position after it."""
    segment = chance.choice(
        [candidate for candidate in list_segments(directory, None)[0] if candidate.path.stat().st_size > 1000]
    )
    with segment.path.open("rb") as log:
        length = segment.path.stat().st_size
        file = FrameFile(log.fileno(), length, seed_of(segment.header.partition), segment.path)
        position, header = chance.choice(list(file.walk(SEGMENT_HEADER_BYTES)))
    return segment.path, position, header.base_offset, (header.next_offset, position + header.length)
