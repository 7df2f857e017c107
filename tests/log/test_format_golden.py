"""The format is what `docs/format.md` says: a reader written from that alone reads a log byte for byte.

The golden log proves it for what was written in the past, a log made now for what is written today.
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import RAW
from headwater.log import DirectoryPartition, encode
from tests.golden import make, reader
from tests.golden.reader import GoldenReader

GOLDEN = Path(__file__).parents[1] / "golden"


def expected() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(params=["golden", "made now"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The log from the repository, and one that this version writes."""
    if request.param == "golden":
        return GOLDEN / "log"
    target = tmp_path / "log"
    assert make.make(target) == expected()
    return target


def test_every_byte_is_what_the_documentation_says(log: Path) -> None:
    wanted = expected()
    golden = GoldenReader(log)
    assert golden.state["partition"].hex() == wanted["partition"]
    assert (golden.state["start"], golden.state["end"]) == (wanted["start"], wanted["end"])
    assert (golden.state["durable_end"], golden.state["flags"]) == (wanted["end"], 0)
    ids = {"raw": f"{reader.RAW_ID:016x}", **wanted["schemas"]}
    for segment, facts in zip(golden.segments(), wanted["segments"], strict=True):
        assert (segment["base"], segment["compacted"]) == (facts["base"], facts["compacted"])
        for frame, frame_facts in zip(segment["frames"], facts["frames"], strict=True):
            del frame["position"]
            assert frame == {**frame_facts, "schema": ids[frame_facts["schema"]]}


def test_schemas_are_named_by_their_content(log: Path) -> None:
    schema = GoldenReader(log).schema(expected()["schemas"]["trades"])
    assert schema.names == ["symbol", "price", "tags"]
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert RAW.id == reader.RAW_ID == reader.schema_id(RAW.payload)


def test_snapshots_of_producers_are_where_segments_begin(log: Path) -> None:
    assert GoldenReader(log).producers(0) == {}
    assert GoldenReader(log).producers(8) == {
        make.PRODUCER.hex(): {"epoch": 2, "batches": [(0, 0, 4, 5)]},
        make.WRITER.hex(): 6,
    }


def test_headwater_reads_the_same(log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(log, copy)
    with DirectoryPartition(copy) as partition:
        assert partition.recovery_reports == []
        rows = [
            make.row(record.offset, record.timestamp, record.key, plain(record.value), **record.headers)
            for record in partition.records()
        ]
        wanted = expected()
        frames = [frame for segment in wanted["segments"] for frame in segment["frames"]]
        assert rows == [record for frame in frames for record in frame["records"]]
        assert partition.writer_sequence(make.WRITER) == 7
        assert partition.append(encode([b"and goes on"])).base_offset == wanted["end"]


def plain(value: Any) -> Any:
    """A typed value as `expected.json` has it."""
    if not isinstance(value, dict):
        return value
    return {**value, "price": None if value["price"] is None else str(value["price"])}


def test_the_reader_shares_no_code_with_headwater() -> None:
    tree = ast.parse(Path(reader.__file__).read_text(encoding="utf-8"))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in modules if name.partition(".")[0] in ("headwater", "crc32c")]


def test_the_readers_checksum_is_the_castagnoli_one() -> None:
    assert reader.crc32c(b"123456789") == 0xE3069283
    assert reader.crc32c(b"6789", reader.crc32c(b"12345")) == 0xE3069283
    assert reader.crc32c(bytes(32)) == 0x8A9136AA
