"""Hostile frames: what comes from outside with a good checksum and bad intent is refused, or it is harmless.

Mutations are tried by the thousand in a child process, so that a crash of native code is a finding like any other.
Its memory is limited: a frame of a few hundred bytes has no business with hundreds of megabytes.
"""

from __future__ import annotations

import mmap
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa

from headwater.core.errors import OutOfOrderSequence, UntrustedFrame
from headwater.log import MemoryPartition, admit
from headwater.log.format.projection import Projection
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, failures, limit_memory
from tests.faults.mutation import Mutation, mutate, seeds

BATCH = 4000
DECODED_LIMIT = 1 << 20
HEADROOM = 512 << 20
PATIENCE = 120.0
SEEDS = seeds()


def _mutation(seed: int, number: int) -> Mutation:
    """Always the same one for the same numbers, so that a crash can be looked into."""
    return mutate(SEEDS, Random(f"{seed}/{number}"))


@proof(row=22, title="hostile frames: random and mutated, well checksummed", runs=1_000_000 // BATCH, quick=3)
def hostile_frames(run: Run) -> Iterator[Violation]:
    """Try a batch of mutations in a child; when one kills it, name that one and try the rest in another child."""
    seed = run.random.getrandbits(64)
    with mmap.mmap(-1, 8) as progress:
        first = 0
        while first < BATCH:
            child = Child(lambda: _try_all(run.directory, seed, first, progress), run.directory / "child.error")  # noqa: B023
            with child:
                ended = child.ended_within(PATIENCE)
            if child.status == 0:
                break
            number = int.from_bytes(progress[:8], "little")
            frame, schema = _mutation(seed, number)
            (run.directory / f"{number}.frame").write_bytes(frame)
            how = f"ended the process with {child.status}" if ended else "took too long"
            kind = Kind.CRASH if ended else Kind.HANG
            yield Violation(kind, f"mutation {number} of {seed} under {schema} {how}")
            first = number + 1
    yield from failures(run.directory)


def _try_all(directory: Path, seed: int, first: int, progress: mmap.mmap) -> None:
    pa.set_memory_pool(pa.system_memory_pool())  # the others reserve address space far beyond what they use
    limit_memory(HEADROOM)
    for number in range(first, BATCH):
        progress[:8] = number.to_bytes(8, "little")
        mutation = _mutation(seed, number)
        try:
            _try(mutation, Random(number))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            (directory / f"{number}.frame").write_bytes(mutation.frame)
            text = f"mutation {number} of {seed} under {mutation.schema}\n{traceback.format_exc()}{error!r}"
            (directory / f"mutation {number}.error").write_text(text)


def _try(mutation: Mutation, random: Random) -> None:
    """Take the frame in as a broker would; if it is taken, do with it what readers do."""
    schema = mutation.schema
    try:
        frame = admit(pa.py_buffer(mutation.frame), schema, max_decoded_bytes=DECODED_LIMIT)
    except UntrustedFrame as refusal:
        if isinstance(refusal.__cause__, MemoryError):
            raise
        return
    frame.batch().validate(full=True)
    records = frame.records()
    assert len(records) == frame.header.record_count, "it has another number of records than it says"
    times = [record.timestamp for record in records]
    told = (frame.header.min_timestamp, frame.header.max_timestamp)
    assert told == (min(times), max(times)), "its header tells of other times than its records"
    columns = random.sample(schema.full.names, random.randint(1, len(schema.full.names)))
    Projection(schema, columns).batch(frame).validate(full=True)
    partition = MemoryPartition()
    try:
        partition.append(frame.unstamped())
    except OutOfOrderSequence:
        return  # a producer that is not known here begins at 0
    again = list(partition.records())
    assert repr(again) == repr([r._replace(offset=n) for n, r in enumerate(records)]), "it reads differently from a log"
