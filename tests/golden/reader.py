"""A reader of logs that shares no code with Headwater: written from `docs/format.md` alone.

It is slow and plain. Only the Arrow messages are left to pyarrow; even the checksum is its own.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

POLYNOMIAL: Final = 0x82F63B78
SEGMENT_HEADER: Final = struct.Struct("<8s16s16sqqqIII4s")
FRAME_HEADER: Final = struct.Struct("<4sIqqIIIIIIQIIqq16sqII")
INDEX_HEADER: Final = struct.Struct("<8s16sqqII16s")
INDEX_ENTRY: Final = struct.Struct("<qqqI4s")
STATE: Final = struct.Struct("<8sQ16sIIQqqqIqqI16sqqqIqqQQQQQqIIQIq")
LIST_HEADER: Final = struct.Struct("<8s16sQI")
LIST_ENTRY: Final = struct.Struct("<qq16sqqqqqq16sqIII")
COUNTERS: Final = struct.Struct("<30Q8I4x")
PRODUCERS_HEAD: Final = struct.Struct("<8sQQ")
CODECS: Final = ("none", "zstd", "lz4")
RAW_ID: Final = 0xD9236C6851DAC192


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE: Final = _table()


def crc32c(content: bytes, start: int = 0) -> int:
    """CRC-32C, continued from `start`."""
    value = start ^ 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def schema_id(schema: pa.Schema) -> int:
    """The id of a schema of plain columns and lists of them."""

    def canonical(field: pa.Field) -> list[Any]:
        kind = str(field.type).partition("<")[0]
        children = [field.type.field(number) for number in range(field.type.num_fields)]
        return [field.name, kind, field.nullable, [canonical(child) for child in children]]

    text = json.dumps([canonical(field) for field in schema], separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8).digest(), "little")


class GoldenReader:
    """Everything in one partition's directory, each byte accounted for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.state = self._read_state()
        self._seed = crc32c(self.state["partition"])
        self._schemas = {RAW_ID: pa.schema([("value", pa.binary())])}
        for path in (directory / "schemas").glob("*.arrow"):
            self._schemas[int(path.stem, 16)] = pa.ipc.open_stream(path.read_bytes()).schema

    def _read_state(self) -> dict[str, Any]:
        page = (self._directory / "state").read_bytes()
        assert len(page) == 1024
        found = []
        for copy in (page[:512], page[512:]):
            assert crc32c(copy[:508]) == int.from_bytes(copy[508:], "little")
            assert STATE.size + COUNTERS.size == 508
            assert copy[504:508] == bytes(4)
            found.append((*STATE.unpack_from(copy), COUNTERS.unpack_from(copy, STATE.size)))
        newest = max(found, key=lambda fields: fields[1])
        assert newest[0] == b"HWSTATE1"
        names = ("partition", "flags", "leader_epoch", "layout", "start", "end", "position", "stamp", "durable_end")
        self.counters = newest[31]
        own = {"segment": newest[13], "segment_base": newest[14], "list_generation": newest[28], "listed": newest[29]}
        return dict(zip(names, newest[2:], strict=False)) | own

    def segments(self) -> list[dict[str, Any]]:
        """Every segment with its frames and their records."""
        found = [self._segment(path) for path in sorted(self._directory.glob("*.log"))]
        if self.state["list_generation"]:
            self._check_list(found)
        return found

    def _check_list(self, segments: list[dict[str, Any]]) -> None:
        """The list has every segment but the growing one, as it is."""
        content = (self._directory / "segments").read_bytes()
        magic, partition, generation, checksum = LIST_HEADER.unpack_from(content)
        assert (magic, partition) == (b"HWSLIST1", self.state["partition"])
        assert (generation, checksum) == (self.state["list_generation"], crc32c(content[:32]))
        assert content[36:128] == bytes(92)
        assert len(content) == 128 * (1 + self.state["listed"])
        newest = -(1 << 63)
        for number, segment in enumerate(segments[:-1], 1):
            entry = content[128 * number : 128 * (number + 1)]
            fields = LIST_ENTRY.unpack_from(entry)
            base, end, log, length, records, most, running, created, closed, former, former_length, chain = fields[:12]
            assert fields[13] == crc32c(entry[:112], self._seed)
            assert entry[116:] == bytes(12)
            header = SEGMENT_HEADER.unpack_from((self._directory / f"{base:020d}.log").read_bytes())
            assert (base, end) == (segment["base"], segments[number]["base"])
            assert (log, created, chain) == (header[2], header[4], header[6])
            assert length == (self._directory / f"{base:020d}.log").stat().st_size
            assert records == sum(len(frame["records"]) for frame in segment["frames"])
            times = [record["timestamp"] for frame in segment["frames"] for record in frame["records"]]
            newest = max(newest, *times)
            assert (most, running) == (max(times), newest)
            assert closed == segments[number]["created"]
            assert (former, former_length) == (bytes(16), 0)
            assert fields[12] == int(segment["compacted"])

    def _segment(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        fields = SEGMENT_HEADER.unpack_from(content)
        magic, partition, log, base, created, length, chain, reserved, checksum, padding = fields
        assert (magic, partition, reserved, padding) == (b"HWSEGMT1", self.state["partition"], 0, bytes(4))
        assert checksum == crc32c(content[:72])
        assert path.name == f"{base:020d}.log"
        assert length in (0, len(content))
        growing = base == self.state["segment_base"]
        if growing:
            assert log == self.state["segment"]
            assert len(content) == self.state["position"]
        frames = list(self._frames(content, chain))
        self._check_index(path.with_suffix(".index"), log, len(content), frames, growing)
        return {"base": base, "created": created, "compacted": length > 0, "frames": frames}

    def _frames(self, content: bytes, previous: int) -> Iterator[dict[str, Any]]:
        position = 80
        while position < len(content):
            fields = FRAME_HEADER.unpack_from(content, position)
            length = fields[1]
            frame = content[position : position + length]
            assert fields[0] == b"HWF1"
            assert len(frame) == length >= 128
            assert length % 8 == 0
            assert fields[8] == crc32c(frame[:40], self._seed), "stamp checksum"
            assert fields[7] == crc32c(frame[44:]), "body checksum"
            assert fields[5] == previous, "chain"
            assert fields[-1] == 0, "reserved"
            yield {"position": position, **self._frame(fields, frame[112:])}
            previous = fields[8]
            position += length
        assert position == len(content)

    def _frame(self, fields: tuple[Any, ...], message: bytes) -> dict[str, Any]:
        base, durable_end, epoch, group = fields[2], fields[3], fields[4], fields[6]
        attributes, schema, count, delta, least, most, producer, sequence, producer_epoch = fields[9:18]
        assert attributes < 1 << 7
        assert epoch == 0
        assert durable_end <= base or attributes & 32
        records = self._records(attributes, self._schemas[schema], base, count, message)
        times = [record["timestamp"] for record in records]
        assert (min(times), max(times)) == (least, most)
        assert records[-1]["offset"] - records[0]["offset"] == delta
        identity = None
        if any(producer):
            facts = (producer.hex(), producer_epoch, sequence, bool(attributes & 64))
            identity = dict(zip(("id", "epoch", "sequence", "forever"), facts, strict=True))
        else:
            assert (sequence, producer_epoch) == (-1, 0)
        return {
            "schema": f"{schema:016x}",
            "codec": CODECS[attributes & 3],
            "explicit_offsets": bool(attributes & 32),
            "group": group,
            "producer": identity,
            "records": records,
        }

    def _records(
        self, attributes: int, payload: pa.Schema, base: int, count: int, message: bytes
    ) -> list[dict[str, Any]]:
        system = [pa.field("_offset", pa.int64(), nullable=False)] if attributes & 32 else []
        system.append(pa.field("_timestamp", pa.timestamp("ns", "UTC"), nullable=False))
        system += [pa.field("_key", pa.binary())] if attributes & 8 else []
        system += [pa.field("_headers", pa.map_(pa.string(), pa.binary()))] if attributes & 16 else []
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), pa.schema([*system, *payload]))
        assert batch.num_rows == count
        names = batch.schema.names
        nothing = [None] * count
        offsets = batch["_offset"].to_pylist() if "_offset" in names else list(range(base, base + count))
        times = batch["_timestamp"].cast(pa.int64()).to_pylist()
        keys = batch["_key"].to_pylist() if "_key" in names else nothing
        headers = batch["_headers"].to_pylist() if "_headers" in names else nothing
        values = batch.select(payload.names).to_pylist()
        return [
            {
                "offset": offset,
                "timestamp": time,
                "key": key.hex() if key is not None else None,
                "value": _readable(value if payload.names != ["value"] else value["value"]),
                "headers": {name: content.hex() for name, content in pairs or ()},
            }
            for offset, time, key, value, pairs in zip(offsets, times, keys, values, headers, strict=True)
        ]

    def _check_index(self, path: Path, log: bytes, length: int, frames: list[dict[str, Any]], growing: bool) -> None:
        content = path.read_bytes()
        magic, of, covered, most, entries, checksum, padding = INDEX_HEADER.unpack_from(content)
        assert (magic, of, padding) == (b"HWINDEX1", log, bytes(16))
        assert checksum == crc32c(content[:44])
        times = [max(record["timestamp"] for record in frame["records"]) for frame in frames]
        if not growing:
            assert (covered, most, entries) == (length, max(times), (len(content) - 64) // 32)
        positions = [frame["position"] for frame in frames]
        for place in range(64, len(content), 32):
            offset, position, before, checksum, padding = INDEX_ENTRY.unpack_from(content, place)
            assert checksum == crc32c(content[place : place + 24], crc32c(log))
            assert padding == bytes(4)
            number = positions.index(position)
            assert frames[number]["records"][0]["offset"] == offset
            assert before == max(times[:number], default=-(1 << 63))

    def schema(self, name: str) -> pa.Schema:
        """The schema with this id, which must be its own."""
        found = self._schemas[int(name, 16)]
        assert f"{schema_id(found):016x}" == name
        return found

    def producers(self, base: int) -> dict[str, Any]:
        """The batches of each producer and the last sequence of each writer, as the snapshot at `base` knows them."""
        content = (self._directory / f"{base:020d}.producers").read_bytes()
        magic, producers, writers = PRODUCERS_HEAD.unpack_from(content)
        assert magic == b"HWPRODS1"
        assert crc32c(content[:-4]) == int.from_bytes(content[-4:], "little")
        position = PRODUCERS_HEAD.size
        found: dict[str, Any] = {}
        for _ in range(producers):
            producer, epoch, batches, _ = struct.unpack_from("<16sIIq", content, position)
            position += 32
            places = [struct.unpack_from("<qqqq", content, position + 32 * number) for number in range(batches)]
            position += 32 * batches
            found[producer.hex()] = {"epoch": epoch, "batches": places}
        for _ in range(writers):
            writer, sequence = struct.unpack_from("<16sq", content, position)
            position += 24
            found[writer.hex()] = sequence
        assert position == len(content) - 4
        return found


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: item if item is None or isinstance(item, list) else str(item) for name, item in value.items()}
    return value
