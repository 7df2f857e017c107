"""Hostile files: garbage, strange names, directories, links and pipes where the log's own files should be.

Opening such a directory works or raises one of Headwater's own errors, and soon. Intact records are served, what is
not is named, and after a refusal nothing has been lost: with the strange thing gone, everything is there.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from headwater.core.config import PartitionConfig
from headwater.core.errors import HeadwaterError
from headwater.log import DirectoryPartition, Identity, encode
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, failures, limit_memory
from tests.faults.specimen import Author, compare, copy, goes_on, open_log

PATIENCE = 60.0
HEADROOM = 512 << 20
NAMES = (
    "00000000000000000003.log",
    "00000000000000000999.log",
    "09223372036854775807.log",
    "99999999999999999999.log",
    "00000000000000000999.index",
    "00000000000000000999.producers",
    "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.log",
    "0.log",
    "-0000000000000000001.log",
    "state.1.1.tmp",
    "truncate",
    "start",
    ".log",
    "a\nb.log",
    "\udcff\udcfe.log",
    "x" * 255,
    "00000000000000000000.compacting",
    "compaction.lock",
    "schemas",
)


def _write(directory: Path) -> dict[str, dict[int, bytes]]:
    """A log of three segments: what was written to each."""
    segments: dict[str, dict[int, bytes]] = {}
    with open_log(directory) as partition:
        for number in range(3):
            author = Author(partition, number=100 * number)
            author.append(2)
            author.append(1, 2)
            author.append(2, identity=Identity(b"0123456789abcdef", 0, 2 * number))
            segments[f"{min(author.written):020d}.log"] = author.written
            if number < 2:
                partition.roll()
        partition.delete_before(1)
    del next(iter(segments.values()))[0]
    return segments


def _garbage(random: Random) -> bytes:
    length = random.choice((0, 1, 20, 80, 200, 512, 1024, 100_000))
    return random.choice((bytes(length), b"\xff" * length, random.randbytes(length)))


def _put_garbage(path: Path, random: Random) -> str:
    """One of the log's own files is overwritten, from its beginning or from somewhere in the middle."""
    name = random.choice(sorted(file.name for file in path.iterdir()))
    content = (path / name).read_bytes()
    start = random.choice((0, random.randint(0, len(content))))
    (path / name).write_bytes(content[:start] + _garbage(random) + content[start + random.randint(0, 500) :])
    return name


def _put_stranger(path: Path, random: Random) -> str:
    """A file of garbage, or a copy of one of the log's own files, under a strange name."""
    name = random.choice(NAMES)
    source = random.choice(sorted(path.iterdir()))
    (path / name).write_bytes(random.choice((_garbage(random), source.read_bytes())))
    return name


def _put_directory(path: Path, random: Random) -> str:
    return _put_thing(path, random, lambda target: (target / "inside").mkdir(parents=True))


def _put_pipe(path: Path, random: Random) -> str:
    return _put_thing(path, random, os.mkfifo)


def _put_socket(path: Path, random: Random) -> str:
    def make(target: Path) -> None:
        # The path of a socket may not be longer than about a hundred bytes, so it is made elsewhere and moved.
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path.parent / "socket"))
        os.rename(path.parent / "socket", target)

    return _put_thing(path, random, make)


def _put_link(path: Path, random: Random) -> str:
    goal = random.choice(("nowhere", "/dev/zero", "/dev/null", "/dev/full", ".", "lock", "itself"))

    def make(target: Path) -> None:
        target.symlink_to(target.name if goal == "itself" else goal)

    return _put_thing(path, random, make)


def _put_thing(path: Path, random: Random, make: Callable[[Path], None]) -> str:
    """Something that is no file, under a strange name or in the place of one of the log's own files."""
    own = sorted(file.name for file in path.iterdir())
    name = random.choice((random.choice(own), random.choice(NAMES)))
    (path / name).unlink(missing_ok=True)
    make(path / name)
    return name


HOSTILE = (_put_garbage, _put_stranger, _put_garbage, _put_directory, _put_pipe, _put_link, _put_socket)


@proof(row=22, title="hostile files: garbage, strange names, directories, pipes, links", runs=5000, quick=100)
def hostile_files(run: Run) -> Iterator[Violation]:
    """Put one hostile thing into a log's directory and use it."""
    whole = run.directory / "whole"
    segments = _write(whole)
    hostile = copy(whole, run.directory / "log")
    act = HOSTILE[run.number % len(HOSTILE)]
    name = act(hostile, run.random)
    found = run.directory / "found"
    with Child(lambda: _use(hostile, segments, name, found), run.directory / "child.error") as child:
        if not child.ended_within(PATIENCE):
            yield child.hangs(f"{act.__name__} as {name!r}: not over after {PATIENCE:g} s")
    for violation in failures(run.directory):
        yield Violation(violation.kind, f"{act.__name__} as {name!r}: {violation.detail}", violation.traceback)
    if found.exists():
        kind, detail = found.read_text().split("\n", 1)
        yield Violation(Kind(kind), f"{act.__name__} as {name!r}: {detail}")
    elif child.status == REFUSED:
        yield from _restored(hostile, whole, name, segments)


REFUSED = 3


def _use(path: Path, segments: dict[str, dict[int, bytes]], name: str, found: Path) -> None:
    """In a child: open the log, read it, write on; twice. It leaves the first problem in the file `found`."""
    written = {offset: value for records in segments.values() for offset, value in records.items()}
    lost = segments.get(name, {})
    end = max(written) + 1
    limit_memory(HEADROOM)
    for _ in range(2):
        try:
            partition = open_log(path)
        except HeadwaterError:
            os._exit(REFUSED)
        with partition:
            written = _without_named(partition, written, lost)
            author = Author(partition, number=1000 + end)
            for violation in (*compare(partition, written, lost), *goes_on(author, end)):
                found.write_text(f"{violation.kind.value}\n{violation.detail}")
                return
            written |= author.written
            end = max(written) + 1


def _without_named(
    partition: DirectoryPartition, written: dict[int, bytes], lost: dict[int, bytes]
) -> dict[int, bytes]:
    """When the first segment is lost, the log may start behind it; then the report of recovery says so."""
    named = {
        offset
        for report in partition.recovery_reports
        for damage in report.damage
        for offset in range(damage.offset, min(damage.next_offset, partition.bounds().start))
    }
    return {offset: value for offset, value in written.items() if offset not in named or offset not in lost}


def _restored(path: Path, whole: Path, name: str, segments: dict[str, dict[int, bytes]]) -> Iterator[Violation]:
    """With the hostile thing gone, and what was in its place back, the refused log is as it was."""
    target = path / name
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if (whole / name).exists():
        shutil.copy(whole / name, target)
    with open_log(path) as partition:
        yield from compare(
            partition, {offset: value for records in segments.values() for offset, value in records.items()}
        )


VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 127, 128, 4095, 4096, 1 << 31, 1 << 62, 1 << 63, 1 << 100, -(1 << 70)),
    *(0.0, -0.5, 1e-300, 0.5, 1e300, float("nan"), float("inf"), float("-inf")),
    *("", "always", "never", "sometimes", b"always", None, True, False, [], {}, object(), 1j),
)


@proof(row=22, title="hostile configurations of a partition", runs=5000, quick=150)
def hostile_configurations(run: Run) -> Iterator[Violation]:
    """Set some fields to strange values: they are refused by name, or the log works with them."""
    chosen = run.random.sample([field.name for field in fields(PartitionConfig)], run.random.choice((1, 1, 2, 13)))
    values = {name: run.random.choice(VALUES) for name in chosen}
    try:
        config = PartitionConfig(**values)
        with DirectoryPartition(run.directory / "log", config) as partition:
            for number in range(3):
                partition.append(encode([b"value"] * 3, keys=[b"%d" % number] * 3))
                partition.roll()
            partition.compact()
            partition.retain()
            read = [record.value for record in partition.records()]
            if any(value != b"value" for value in read) or partition.bounds().end != 9:
                yield Violation(Kind.LOST_WRITE, f"{values}: {read} up to {partition.bounds()}")
    except HeadwaterError:
        pass
    except Exception as error:
        error.add_note(f"with {values}")
        raise
