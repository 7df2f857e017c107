"""Bit flips under projected reads: damage in a column that a reader did not ask for is found all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa

from headwater.core.config import Compression
from headwater.core.errors import Damaged
from headwater.core.schema import Schema
from headwater.log import Damage, DirectoryPartition, encode_batch
from headwater.log.format.frame import HEADER_BYTES
from tests.faults import Kind, Run, Violation, proof
from tests.faults.specimen import FIRST_TIME, flip, open_log

FLIPS_PER_RUN = 100
FRAMES = 6
ROWS = 20
SCHEMA = Schema(
    pa.schema([("name", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.string())), ("note", pa.binary())])
)


def _write(directory: Path, compression: Compression, random: Random) -> pa.Table:
    """Write the log: closed segments and a growing one."""
    with open_log(directory) as partition:
        for number in range(FRAMES):
            rows = {
                "name": [f"name {number} {row}" for row in range(ROWS)],
                "price": [random.random() for _ in range(ROWS)],
                "tags": [["a", "b" * row] for row in range(ROWS)],
                "note": [random.randbytes(30) for _ in range(ROWS)],
            }
            batch = pa.RecordBatch.from_pydict(rows, schema=SCHEMA.payload)
            keys = [f"key {row}".encode() for row in range(ROWS)]
            frame = encode_batch(batch, SCHEMA, keys=keys, timestamps=FIRST_TIME + number, compression=compression)
            partition.append(frame)
            if number % 3 == 1:
                partition.roll()
        return partition.scan(schema=SCHEMA).read_all()


@proof(
    row=8,
    title="random body bits flipped under a projected (column-pruned) read",
    runs=10_000 // FLIPS_PER_RUN,
    quick=10,
)
def bit_flips_projected(run: Run) -> Iterator[Violation]:
    """Flip a bit, read some columns, flip it back; of plain frames and compressed ones in turn."""
    random = run.random
    path = run.directory / "log"
    whole = _write(path, ("none", "zstd")[run.number % 2], random)
    with open_log(path) as partition:
        frames = list(_places(path, partition))
        for _ in range(FLIPS_PER_RUN):
            file, position, length, lost = random.choice(frames)
            bit = 8 * position + random.randrange(8 * HEADER_BYTES, 8 * length)
            columns = random.sample(SCHEMA.full.names, random.randint(1, len(SCHEMA.full.names)))
            flip(file, bit)
            for violation in _check(partition, columns, whole, lost):
                yield Violation(violation.kind, f"bit {bit} of {file.name}, columns {columns}: {violation.detail}")
            flip(file, bit)
        if not partition.scan(schema=SCHEMA).read_all().equals(whole):
            yield Violation(Kind.SERVED_DAMAGE, "with every bit as it was, the log is another one")


def _places(directory: Path, partition: DirectoryPartition) -> Iterator[tuple[Path, int, int, range]]:
    """The file, position, length and offsets of each frame."""
    logs = {log: log.read_bytes() for log in directory.glob("*.log")}
    for frame in partition.frames():
        offsets = range(frame.header.base_offset, frame.header.next_offset)
        for log, content in logs.items():
            position = content.find(frame.data.to_pybytes())
            if position >= 0:
                yield log, position, frame.header.length, offsets


def _check(partition: DirectoryPartition, columns: list[str], whole: pa.Table, lost: range) -> Iterator[Violation]:
    try:
        partition.scan(columns=columns, schema=SCHEMA).read_all()
        yield Violation(Kind.SERVED_DAMAGE, "the damage was not noticed")
    except Damaged:
        pass
    named: list[Damage] = []
    found = partition.scan(columns=columns, schema=SCHEMA, on_damage=named.append).read_all()
    kept = pa.concat_tables([whole.slice(0, lost.start), whole.slice(lost.stop)]).select(columns)
    if not found.equals(kept):
        yield Violation(Kind.SERVED_DAMAGE, "not exactly the undamaged frames were served")
    if [(damage.offset, damage.next_offset) for damage in named] != [(lost.start, lost.stop)]:
        yield Violation(Kind.FALSE_SUCCESS, f"offsets {lost.start} to {lost.stop - 1} are damaged, named was {named}")
