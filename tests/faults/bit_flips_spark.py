"""Bit flips under Spark: a query that meets one fails and names it, and all that is good is read around it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import headwater as hw
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.format.frame import HEADER_BYTES
from tests.faults import Kind, Run, Violation, proof
from tests.faults.spark_deaths import check_available
from tests.faults.specimen import flip

FLIPS: Final = 100
QUICK_FLIPS: Final = 8
FRAMES: Final = 5
ROWS: Final = 20
COLUMNS: Final = ("key", "value", "offset", "timestamp", "partition")
PATIENCE: Final = 500.0


class Damaged(NamedTuple):
    """A topic with one bad bit, and the offsets of the frame that it is in."""

    topic: str
    bit: int
    lost: range


@proof(
    row=8,
    title="random bits flipped under queries of Spark: named, never served, the rest is read",
    runs=1,
    quick=1,
    timeout=600.0,
)
def bit_flips_spark(run: Run) -> Iterator[Violation]:
    """Damage many topics, each once, and ask for them all in one session: the damaged ranges and those around them."""
    check_available(run.directory)
    with hw.open(run.directory / "store") as store:
        damaged = [_damaged(store, number, run.random) for number in range(QUICK_FLIPS if run.quick else FLIPS)]
    queries: list[dict[str, Any]] = [
        {"topic": one.topic, "columns": ",".join(run.random.sample(COLUMNS, run.random.randint(1, len(COLUMNS))))}
        for one in damaged
    ]
    topics = ",".join(one.topic for one in damaged)
    before = json.dumps({one.topic: {"0": one.lost.start} for one in damaged})
    behind = json.dumps({one.topic: {"0": one.lost.stop} for one in damaged})
    queries.append({"topics": topics, "columns": "topic,offset,value", "endingOffsets": before})
    queries.append({"topics": topics, "columns": "topic,offset,value", "startingOffsets": behind})
    (run.directory / "queries.json").write_text(json.dumps(queries))
    *answers, good_before, good_behind = _asked(run.directory)
    for one, query, answer in zip(damaged, queries, answers, strict=False):
        for violation in _check(one, answer):
            detail = f"bit {one.bit} of {one.topic}, columns {query['columns']}: {violation.detail}"
            yield Violation(violation.kind, detail)
    expected = {(one.topic, offset) for one in damaged for offset in range(FRAMES * ROWS) if offset not in one.lost}
    served = [*good_before.get("rows", ()), *good_behind.get("rows", ())]
    for topic, offset in sorted(expected - {(row["topic"], row["offset"]) for row in served}):
        yield Violation(Kind.LOST_WRITE, f"offset {offset} of {topic} is good, and cannot be read by itself")
    for row in served:
        if (row["topic"], row["offset"]) not in expected or row["value"] != _value(row["offset"]):
            yield Violation(Kind.SERVED_DAMAGE, f"among good records was {row}")


def _value(offset: int) -> str:
    return f"value {offset}"


def _damaged(store: hw.Store, number: int, random: Random) -> Damaged:
    """A topic of a few frames, plain or compressed, with one bit flipped somewhere in one of them."""
    name = f"topic-{number}"
    topic = store.create_topic(name, compression=random.choice(("none", "zstd")), compression_threshold=0)
    with store.producer(name, batch_records=ROWS, linger=60.0) as out:
        for offset in range(FRAMES * ROWS):
            out.send(_value(offset).encode(), key=b"key %d" % offset)
    partition = topic.partition(0)
    frames = [(frame.header.base_offset, frame.header.next_offset, len(frame.data)) for frame in partition.frames()]
    partition.roll()
    path = Path(str(store), name, "0", f"{0:020d}.log")
    start, stop, length = random.choice(frames)
    position = SEGMENT_HEADER_BYTES + sum(one[2] for one in frames if one[0] < start)
    # In the frame's own bytes or in its header: as often, though that is much shorter.
    first, last = random.choice(((0, HEADER_BYTES), (HEADER_BYTES, length)))
    bit = 8 * position + random.randrange(8 * first, 8 * last)
    flip(path, bit)
    return Damaged(name, bit, range(start, stop))


def _asked(directory: Path) -> list[dict[str, Any]]:
    """Return the answers of one session of Spark to the queries."""
    command = [sys.executable, "-m", "tests.spark.flips_driver", str(directory)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Spark did not answer: {done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads((directory / "answers.json").read_text())
    return answers


def _check(one: Damaged, answer: dict[str, Any]) -> Iterator[Violation]:
    if "rows" in answer:
        yield Violation(Kind.SERVED_DAMAGE, f"{len(answer['rows'])} records were served as all that there are")
        return
    told = answer["error"]
    if f"RangeUnreadable: {one.topic}/0: offsets 0 to {FRAMES * ROWS} (exclusive) cannot be read" not in told:
        yield Violation(Kind.FALSE_SUCCESS, f"the error does not name the range: {told}")
    elif not re.search(rf"\.log, position \d+, offset {one.lost.start}\b", told):
        yield Violation(Kind.FALSE_SUCCESS, f"offset {one.lost.start} is damaged, and the error says: {told}")
