"""A segment as `hw inspect` shows it: every frame, every damaged stretch, and what lies behind the published end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from headwater.core.errors import Damaged, FrameDamaged, HeadwaterError
from headwater.core.record import Record
from headwater.log.files.disk import open_plain
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, SegmentHeader, seed_of
from headwater.log.files.state import State
from headwater.log.format.frame import (
    CODEC_MASK,
    CODECS,
    CONTROL,
    EXPLICIT_OFFSETS,
    HAS_HEADERS,
    HAS_KEYS,
    WRITER,
    FrameHeader,
)
from headwater.log.format.schemas import SchemaDirectory
from headwater.log.format.untrusted import admit
from headwater.log.maintain.check import read_state_copies
from headwater.log.recover.recovery import STATE_FILE

_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}
_FEATURES: Final = (
    (HAS_KEYS, "keys"),
    (HAS_HEADERS, "headers"),
    (EXPLICIT_OFFSETS, "offsets"),
    (WRITER, "writer"),
    (CONTROL, "control"),
)


@dataclass(frozen=True, slots=True)
class SegmentItem:
    """A stretch of a segment. A damaged one has a header when its stamp can still be read."""

    kind: Literal["plain", "compressed", "behind", "damaged"]
    position: int
    length: int
    header: FrameHeader | None
    reason: str = ""

    @property
    def codec(self) -> str:
        """The compression of the frame."""
        return _CODEC_NAMES.get(self.header.attributes & CODEC_MASK, "?") if self.header else ""

    @property
    def features(self) -> list[str]:
        """The names of the optional features of the frame."""
        return [name for bit, name in _FEATURES if self.header and self.header.attributes & bit]

    def as_json(self) -> dict[str, Any]:
        """The stretch for programs."""
        document: dict[str, Any] = {"kind": self.kind, "position": self.position, "length": self.length}
        if self.reason:
            document["reason"] = self.reason
        if self.header is not None:
            fields = self.header._asdict()
            document |= {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in fields.items()
                if name not in ("magic", "length", "reserved")
            }
            document["schema_id"] = f"{self.header.schema_id:016x}"
            document["next_offset"] = self.header.next_offset
            document["codec"] = self.codec
        return document


class ShownRecord(Record):
    """A record with its value as text."""

    __slots__ = ()

    @property
    def value_text(self) -> bytes | str:
        """The value as something to print."""
        return self.value if isinstance(self.value, bytes) else str(self.value)

    def as_json(self) -> dict[str, Any]:
        """The record for programs: bytes as text where they are text, else in hexadecimal."""
        value = _json_bytes(self.value) if isinstance(self.value, bytes | None) else str(self.value)
        headers = {name: _json_bytes(content) for name, content in self.headers.items()}
        fixed = {"offset": self.offset, "timestamp": self.timestamp, "key": _json_bytes(self.key)}
        return fixed | {"value": value, "headers": headers}


def _json_bytes(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


@dataclass(slots=True)
class SegmentView:
    """All that can be told of one segment file."""

    path: Path
    size: int
    header: SegmentHeader | None
    problem: str
    items: list[SegmentItem]

    def records(self, limit: int) -> Iterator[ShownRecord]:
        """The first records that can be read, each from a frame that was proved sane."""
        schemas = SchemaDirectory(self.path.parent / "schemas")
        with open(open_plain(self.path), "rb") as file:
            for item in self.items:
                if item.kind not in ("plain", "compressed") or item.header is None or item.header.attributes & CONTROL:
                    continue
                data = pa.py_buffer(os.pread(file.fileno(), item.length, item.position))
                frame = admit(data, schemas.get(item.header.schema_id), explicit_offsets=True)
                for record in frame.records():
                    yield ShownRecord._make(record)
                    limit -= 1
                    if not limit:
                        return

    def as_json(self, limit: int) -> dict[str, Any]:
        """The segment for programs."""
        header = None
        if self.header is not None:
            fields = self.header._asdict()
            header = {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in fields.items()
                if name not in ("magic", "reserved")
            }
        return {
            "file": str(self.path),
            "kind": "segment",
            "size": self.size,
            "header": header,
            "problem": self.problem or None,
            "count": len(self.items),
            "frames": [item.as_json() for item in self.items[: limit or None]],
        }


def read_segment(path: Path) -> SegmentView:
    """Walk over the whole file, passing over what is damaged."""
    state = _state_beside(path)
    with open(open_plain(path), "rb") as opened:
        fd = opened.fileno()
        length = os.fstat(fd).st_size
        header, problem = None, ""
        try:
            header = SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
        except Damaged as error:
            problem = error.reason
            if state is None:
                raise HeadwaterError(f"{path}: {problem}, and no state beside it says whose frames these are") from None
        partition = header.partition if header else state.partition if state else bytes(16)
        file = FrameFile(fd, length, seed_of(partition), path)
        published = length
        if state is not None and header is not None and state.segment == header.log:
            published = state.position
        return SegmentView(path, length, header, problem, list(_items(file, published)))


def _items(file: FrameFile, published: int) -> Iterator[SegmentItem]:
    position = SEGMENT_HEADER_BYTES
    while position < file.end:
        try:
            header = file.frame(position)
        except FrameDamaged as error:
            good = file.find(position, 0)
            after = good[0] if good else file.end
            if position >= published:
                yield SegmentItem("behind", position, after - position, None, error.reason)
            else:
                yield SegmentItem("damaged", position, after - position, _stamp(file, position), error.reason)
            position = after
            continue
        compressed = bool(header.attributes & CODEC_MASK)
        kind: Literal["plain", "compressed", "behind"] = "compressed" if compressed else "plain"
        yield SegmentItem(kind if position < published else "behind", position, header.length, header)
        position += header.length


def _stamp(file: FrameFile, position: int) -> FrameHeader | None:
    """The header at a damaged place, when its stamp is good."""
    try:
        return file.header(position)
    except FrameDamaged:
        return None


def _state_beside(path: Path) -> State | None:
    try:
        copies = read_state_copies(path.with_name(STATE_FILE))
    except OSError:
        return None
    return max((copy for copy in copies if copy is not None), key=lambda copy: copy.sequence, default=None)
