"""Row 25: closed segments are missing, emptied, garbled, cut at a frame boundary, or of another time.

Whatever is done to a file, the records that it held are served or named as lost, by readers and by the check, and a
backup neither hides the hole nor is restored with one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from headwater.cli.storage.backup import backup
from headwater.cli.storage.restore import restore
from headwater.core.config import PartitionConfig
from headwater.core.errors import HeadwaterError
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.maintain.check import Check
from tests.faults.proof import Run, proof
from tests.faults.specimen import Author, compare, copy, goes_on, open_log
from tests.faults.violation import Kind, Violation

CONFIG = PartitionConfig(segment_bytes=4096, index_interval=512)
RECORDS = 30


def _remove(path: Path, _: Random) -> None:
    path.unlink()


def _empty(path: Path, _: Random) -> None:
    path.write_bytes(b"")


def _garble(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(path.stat().st_size))


def _cut(path: Path, random: Random) -> None:
    """Cut a segment where one of its frames begins."""
    header = Segment.read(path).header
    with path.open("r+b") as file:
        frames = FrameFile(file.fileno(), path.stat().st_size, seed_of(header.partition), path)
        file.truncate(random.choice([position for position, _ in frames.walk(SEGMENT_HEADER_BYTES)]))


def _put_another(path: Path, random: Random) -> None:
    """A file that says it is another one, and is as long."""
    header = Segment.read(path).header
    with path.open("r+b") as file:
        file.write(header._replace(log=random.randbytes(16)).pack())


Harm = Callable[[Path, Random], None]
HARM: tuple[Harm, ...] = (_remove, _empty, _garble, _cut, _put_another)


def _fill(path: Path, random: Random, *, compact: bool) -> dict[int, bytes]:
    """A log of many closed segments; what is in it, by offset."""
    with open_log(path, CONFIG) as partition:
        for number in range(RECORDS):
            key = b"often" if random.random() < 0.4 else b"%d" % number
            partition.append(encode([b"%d" % number + b"." * random.choice((10, 300))], keys=[key]))
        partition.roll()
        if compact:
            partition.compact()
        return {record.offset: record.value for record in partition.records()}


@proof(row=25, title="closed segments missing, emptied, garbled, cut or replaced, and in a backup", runs=500, quick=4)
def lost_segments(run: Run) -> Iterator[Violation]:
    """Harm each closed segment of a log in turn, and one of a store and of its backup."""
    compact = run.number % 2 == 1
    whole = run.directory / "whole"
    written = _fill(whole, run.random, compact=compact)
    for number, closed in enumerate(sorted(whole.glob("*.log"))[:-1]):
        harm = HARM[(run.number // 2 + number) % len(HARM)]
        for violation in _harmed(copy(whole, run.directory / "log"), closed.name, harm, run.random, written):
            yield Violation(violation.kind, f"{harm.__name__} of {closed.name}: {violation.detail}")
    yield from _in_a_backup(run, HARM[run.number // 2 % len(HARM)], compact=compact)


def _harmed(path: Path, name: str, harm: Harm, random: Random, written: dict[int, bytes]) -> Iterator[Violation]:
    with open_log(path, CONFIG) as partition:
        end = partition.bounds().end
        bounds = next((one.first, one.end) for one in partition.closed() if one.segment.path.name == name)
    held = {offset for offset in range(*bounds) if offset in written}
    harm(path / name, random)
    if not held:
        return  # compaction has removed all that was there
    for _ in range(2):
        with open_log(path, CONFIG) as partition:
            if partition.bounds().start:
                yield Violation(Kind.LOST_WRITE, f"the log begins at {partition.bounds().start}")
            yield from compare(partition, written, held)
            if not partition.statistics().damaged:
                yield Violation(Kind.FALSE_SUCCESS, "the statistics know of no damage")
    if not any(finding.kind == "damage" for finding in Check(path).run()):
        yield Violation(Kind.FALSE_SUCCESS, "the check finds no damage")
    with open_log(path, CONFIG) as partition:
        yield from goes_on(Author(partition), end)


def _in_a_backup(run: Run, harm: Harm, *, compact: bool) -> Iterator[Violation]:
    source, place = run.directory / "store", run.directory / "backup"
    with DirectoryStore(source) as store:
        store.create_topic("keys", segment_bytes=4096, compact=compact, sync="never")
    _fill_topic(source, run.random, compact=compact)
    _quietly(lambda: backup(place, store=str(source)))
    copied = run.random.choice(sorted((place / "store" / "keys" / "0").glob("*.log"))[:-1])
    harm(copied, run.random)
    for what, call in (
        ("verified", lambda: restore(place, verify=True)),
        ("restored", lambda: restore(place, str(run.directory / "restored"))),
    ):
        if _quietly(call):
            yield Violation(Kind.FALSE_SUCCESS, f"a backup with {harm.__name__} of {copied.name} was {what}")
    harm(run.random.choice(sorted((source / "keys" / "0").glob("*.log"))[:-1]), run.random)
    if _quietly(lambda: backup(run.directory / "another", store=str(source))):
        yield Violation(Kind.FALSE_SUCCESS, f"a store with {harm.__name__} was backed up")


def _fill_topic(store: Path, random: Random, *, compact: bool) -> None:
    with DirectoryStore(store) as opened, opened.producer("keys") as out:
        for number in range(RECORDS):
            out.send(b"." * 300, b"often" if number % 3 == 0 else b"%d" % random.randrange(1 << 30))
            out.flush()
        partition = opened.topic("keys").partition(0)
        partition.roll()
        if compact:
            partition.compact()


def _quietly(call: Callable[[], None]) -> bool:
    """Return whether a command succeeds."""
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            call()
    except HeadwaterError:
        return False
    return True
