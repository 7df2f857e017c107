"""Stale state: files of one partition from different moments, as a snapshot, a copy or a remount mixes them.

Whatever the mixture, records that are in the log's files stay there, those that were removed do not come back, what
cannot be found is named, and an offset that was known to be safe is never given to another record.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, encode
from tests.faults import Kind, Run, Violation, proof
from tests.faults.specimen import copy, open_log

CONFIG = PartitionConfig(segment_bytes=4096, index_interval=512, retention_bytes=12 * 1024)
MOMENTS = 8
MIXTURES = 6


class Moment(NamedTuple):
    """A copy of the partition, and what was in it: the least offset, the next one, and each record's value."""

    path: Path
    start: int
    end: int
    records: dict[int, bytes]
    truncations: int
    """The number of truncations before: offsets are given out again only across one of them."""


def _history(directory: Path, random: Random) -> list[Moment]:
    """Write, clean and cut a log, and copy it at several moments."""
    moments = []
    truncations = 0
    with open_log(directory / "log", CONFIG) as partition:
        for number in range(MOMENTS):
            for _ in range(random.randint(1, 6)):
                _append(partition, random)
            match random.randrange(6):
                case 0:
                    partition.roll()
                case 1:
                    start, end, _ = partition.bounds()
                    partition.truncate(random.randint(max(start, end - 8), end - 1))
                    truncations += 1
                case 2:
                    start, end, _ = partition.bounds()
                    partition.delete_before(random.randint(start, end))
                case 3:
                    partition.compact()
                case 4:
                    partition.retain()
            records = {record.offset: record.value for record in partition.records()}
            start, end, _ = partition.bounds()
            path = copy(directory / "log", directory / f"moment {number}")
            moments.append(Moment(path, start, end, records, truncations))
    return moments


def _append(partition: DirectoryPartition, random: Random) -> None:
    counts = random.choice(((1,), (3,), (2, 1)))
    frames = [
        encode([random.randbytes(20) for _ in range(count)], keys=[b"%d" % random.randrange(5) for _ in range(count)])
        for count in counts
    ]
    partition.append(frames)


@proof(row=24, title="stale state under a newer log, and the reverse", runs=1000, quick=20)
def stale_state(run: Run) -> Iterator[Violation]:
    """Mix the files of two moments of one log in several ways, and open each mixture."""
    moments = _history(run.directory, run.random)
    for _ in range(MIXTURES):
        older, newer = sorted(run.random.sample(range(MOMENTS), 2))
        name = run.random.choice(list(CHECKS))
        mixture = run.directory / "mixture"
        for violation in CHECKS[name](mixture, moments[older], moments[newer]):
            yield Violation(violation.kind, f"{name} of {older} in {newer}: {violation.detail}")


def _take(source: Path, target: Path, pattern: str) -> None:
    """Files that both have, from one copy into the other."""
    for path in source.glob(pattern):
        if (target / path.name).exists():
            shutil.copy(path, target / path.name)


def _old_state(mixture: Path, older: Moment, newer: Moment) -> Iterator[Violation]:
    """Everything is as the log says; the state only holds the end up when it knows of a greater one."""
    copy(newer.path, mixture)
    _take(older.path, mixture, "state")
    lost = range(newer.end, older.end)  # truncated since: it may be taken for missing, but must not come back
    yield from _check(mixture, newer.start, newer.records, newer.end, lost)


def _no_state(mixture: Path, _: Moment, newer: Moment) -> Iterator[Violation]:
    copy(newer.path, mixture)
    (mixture / "state").unlink()
    yield from _check(mixture, newer.start, newer.records, newer.end)


def _old_indexes(mixture: Path, older: Moment, newer: Moment) -> Iterator[Violation]:
    copy(newer.path, mixture)
    _take(older.path, mixture, "*.index")
    yield from _check(mixture, newer.start, newer.records, newer.end)


def _old_state_and_indexes(mixture: Path, older: Moment, newer: Moment) -> Iterator[Violation]:
    copy(newer.path, mixture)
    _take(older.path, mixture, "*.index")
    _take(older.path, mixture, "state")
    yield from _check(mixture, newer.start, newer.records, newer.end, range(newer.end, older.end))


def _old_log(mixture: Path, older: Moment, newer: Moment) -> Iterator[Violation]:
    """A newer state under older files: what the state knows to be safe, and is not there, is named."""
    copy(older.path, mixture)
    _take(newer.path, mixture, "state")
    start = max(older.start, newer.start)
    records = {offset: value for offset, value in older.records.items() if offset >= start}
    if newer.truncations > older.truncations:
        # The files do not tell which of their records were cut since: only reuse of offsets can be held against it.
        yield from _goes_on(mixture, max(older.end, newer.end))
        return
    yield from _check(mixture, start, records, max(older.end, newer.end), range(older.end, newer.end))


CHECKS = {
    "the state": _old_state,
    "no state": _no_state,
    "the indexes": _old_indexes,
    "the state and indexes": _old_state_and_indexes,
    "all but the state": _old_log,
}


def _check(
    mixture: Path, start: int, records: dict[int, bytes], end: int, lost: range = range(0)
) -> Iterator[Violation]:
    """The log must hold exactly `records`, name what is missing of `lost`, and go on at `end` or later."""
    named: set[int] = set()
    with open_log(mixture, CONFIG) as partition:
        bounds = partition.bounds()
        if bounds.start != start and not (start == end and bounds.start >= start):
            yield Violation(Kind.POSITION_MOVED_BACK, f"the log starts at {bounds.start}, not at {start}")
        found = {
            record.offset: record.value
            for record in partition.records(
                on_damage=lambda damage: named.update(range(damage.offset, damage.next_offset))
            )
        }
        for offset in found.keys() & records.keys():  # each by itself: these reads go by the indexes
            if [record.value for record in partition.records(offset, offset + 1)] != [records[offset]]:
                yield Violation(Kind.LOST_WRITE, f"offset {offset} cannot be read by itself")
    for offset in sorted(records.keys() | found.keys()):
        if offset not in found:
            yield Violation(Kind.LOST_WRITE, f"offset {offset} is in the files and not served")
        elif offset not in records:
            yield Violation(Kind.UNSEEN, f"offset {offset} had been removed and came back")
        elif found[offset] != records[offset]:
            yield Violation(Kind.SERVED_DAMAGE, f"offset {offset} has another record's value")
    if not named <= set(lost):
        yield Violation(Kind.LOST_WRITE, f"offsets {sorted(named - set(lost))} are called damaged and were fine")
    if bounds.end > end and set(lost) & set(range(end, bounds.end)) - named:
        yield Violation(Kind.FALSE_SUCCESS, f"the log ends at {bounds.end}, and of {lost} only {named} is named")
    yield from _goes_on(mixture, end)


def _goes_on(mixture: Path, end: int) -> Iterator[Violation]:
    with open_log(mixture, CONFIG) as partition:
        done = partition.append(encode([b"new"]))
        if done.base_offset < end:
            yield Violation(
                Kind.DUPLICATE, f"offset {done.base_offset} was given out again: those below {end} were safe"
            )
    with open_log(mixture, CONFIG) as partition:
        values = [record.value for record in partition.records(done.base_offset)]
        if values != [b"new"]:
            yield Violation(Kind.LOST_WRITE, f"a new record is not the last one after reopening: {values}")
