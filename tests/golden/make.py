"""Makes the golden log: `python -m tests.golden.make` writes it into this directory, the same bytes each time.

It is made anew only when the format changes on purpose; then `docs/format.md` changes with it. Everything that is
random or takes its value from the clock in a real log is fixed here. `expected.json` says what is in it, written down
from what was put in, not from what was read back.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headwater import PartitionConfig, Schema
from headwater.log import DirectoryPartition, Identity, encode, encode_batch
from headwater.testing import ManualClock

HERE: Final = Path(__file__).parent
PARTITION: Final = bytes(range(16))
PRODUCER: Final = b"golden producer."
WRITER: Final = b"golden writer..."
START_NS: Final = 1_700_000_000_000_000_000
TRADES: Final = Schema(
    pa.schema(
        [
            pa.field("symbol", pa.string(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("tags", pa.list_(pa.field("item", pa.string()))),
        ]
    )
)


def row(offset: int, timestamp: int, key: bytes | None, value: Any, **headers: bytes) -> dict[str, Any]:
    """A record as `expected.json` has it: bytes are hexadecimal."""
    return {
        "offset": offset,
        "timestamp": timestamp,
        "key": key.hex() if key is not None else None,
        "value": value.hex() if isinstance(value, bytes) else value,
        "headers": {name: content.hex() for name, content in headers.items()},
    }


def compacted(partition: DirectoryPartition) -> dict[str, Any]:
    """A segment from which compaction has removed the records 0 and 2, and 4 whole."""
    group = Identity(WRITER, epoch=0, sequence=6, forever=True)
    partition.append(encode([b"a1", b"b1"], keys=[b"a", b"b"], timestamps=[10, 11], identity=group))
    partition.append(encode([b"a2", b"c1"], keys=[b"a", b"c"], timestamps=[12, 13], headers=[None, {"h": b"c"}]))
    partition.append(encode([b"d1"], keys=[b"d"], timestamps=14, identity=Identity(PRODUCER, epoch=2, sequence=0)))
    partition.append(encode([b"a3", b"d2", b"no key"], keys=[b"a", b"d", None], timestamps=[9, 16, 15]))
    partition.roll()
    partition.compact()
    rows = [
        row(1, 11, b"b", b"b1"),
        row(3, 13, b"c", b"c1", h=b"c"),
        row(5, 9, b"a", b"a3"),
        row(6, 16, b"d", b"d2"),
        row(7, 15, None, b"no key"),
    ]
    frame = {"schema": "raw", "codec": "none", "explicit_offsets": True, "group": 3, "producer": None, "records": rows}
    return {"base": 0, "compacted": True, "frames": [frame]}


def plain(partition: DirectoryPartition) -> dict[str, Any]:
    """The growing segment: one append of each kind."""
    frames: list[dict[str, Any]] = []

    def expect(rows: list[dict[str, Any]], **facts: Any) -> None:
        usual = {"schema": "raw", "codec": "none", "explicit_offsets": False, "group": 3, "producer": None}
        frames.append({**usual, **facts, "records": rows})

    partition.append(encode([b"value", b"", None], timestamps=[-(1 << 63), 0, (1 << 63) - 1]))
    expect([row(8, -(1 << 63), None, b"value"), row(9, 0, None, b""), row(10, (1 << 63) - 1, None, None)])

    partition.append(encode([b"x", b"y"], keys=[b"", None], headers=[{"trace": b"1", "é": b""}, None], timestamps=20))
    expect([row(11, 20, b"", b"x", trace=b"1", é=b""), row(12, 20, None, b"y")])

    for codec, fill in (("zstd", b"z"), ("lz4", b"l")):
        base = partition.bounds().end
        partition.append(encode([fill * 1000, b"."], timestamps=[21, 22], compression=codec))  # type: ignore[arg-type]
        expect([row(base, 21, None, fill * 1000), row(base + 1, 22, None, b".")], codec=codec)

    trades: list[dict[str, Any]] = [
        {"symbol": "HW", "price": "1.50", "tags": ["a", None]},
        {"symbol": "", "price": None, "tags": None},
    ]
    columns = [[trade[name] for trade in trades] for name in TRADES.payload.names]
    columns[1] = pa.array(columns[1]).cast(pa.decimal128(10, 2))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TRADES.payload, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=TRADES.payload)
    partition.append(encode_batch(batch, TRADES, keys=[b"HW", None], timestamps=[30, 31]))
    expect([row(17, 30, b"HW", trades[0]), row(18, 31, None, trades[1])], schema="trades")

    identity = Identity(PRODUCER, epoch=2, sequence=1)
    partition.append(encode([b"once", b"only"], timestamps=40, identity=identity))
    facts = {"id": PRODUCER.hex(), "epoch": 2, "sequence": 1, "forever": False}
    expect([row(19, 40, None, b"once"), row(20, 40, None, b"only")], producer=facts)

    identity = Identity(WRITER, epoch=0, sequence=7, forever=True)
    partition.append([encode([value], timestamps=41, identity=identity) for value in (b"all", b"or", b"none")])
    facts = {"id": WRITER.hex(), "epoch": 0, "sequence": 7, "forever": True}
    for offset, value, group in ((21, b"all", 1), (22, b"or", 0), (23, b"none", 2)):
        expect([row(offset, 41, None, value)], group=group, producer=facts)
    return {"base": 8, "compacted": False, "frames": frames}


@contextmanager
def fixed_chance() -> Iterator[None]:
    """Uuids and chains that are the same each time."""
    numbers = itertools.count(1)
    real: Callable[[int], bytes] = os.urandom
    os.urandom = lambda size: next(numbers).to_bytes(4, "little") * (size // 4)
    try:
        yield
    finally:
        os.urandom = real


def make(target: Path) -> dict[str, Any]:
    """Write the log into `target`, a new directory; what it must hold."""
    with fixed_chance():
        config = PartitionConfig(index_interval=512)
        clock = ManualClock(START_NS)
        with DirectoryPartition(target, config, uuid=PARTITION, clock=clock) as partition:
            segments = [compacted(partition)]
            clock.advance(60)
            segments.append(plain(partition))
            list(partition.records(1))  # makes the index of the compacted segment
    (target / "lock").unlink()
    (target / "compaction.lock").unlink()
    return {
        "partition": PARTITION.hex(),
        "segments": segments,
        "schemas": {"trades": f"{TRADES.id:016x}"},
        "start": 0,
        "end": 24,
    }


def main() -> None:
    """Replace the golden log by one made now."""
    log = HERE / "log"
    shutil.rmtree(log, ignore_errors=True)
    expected = make(log)
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
