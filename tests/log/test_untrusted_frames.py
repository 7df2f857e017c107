"""Frames from outside that lie about themselves under good checksums are refused, each lie by a check of its own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pytest
from crc32c import crc32c

from headwater.core.errors import UntrustedFrame
from headwater.log import admit
from headwater.log.format.frame import BODY, BODY_START, CONTROL, EXPLICIT_OFFSETS, HEADER_BYTES
from tests.faults.mutation import ROWS, TIME, Seed, seeds

SEEDS: Final = seeds()
ATTRIBUTES, SCHEMA, COUNT, LAST, MIN_TIME, MAX_TIME, PRODUCER, SEQUENCE, EPOCH, RESERVED = range(10)
Fields = list[int | bytes]


def lying(seed: Seed, lie: Callable[[Fields], None]) -> pa.Buffer:
    """The frame of a seed with another header, and the checksum that belongs to it."""
    content = bytearray(seed.frame)
    fields: Fields = list(BODY.unpack_from(content, BODY_START))
    lie(fields)
    BODY.pack_into(content, BODY_START, *fields)
    struct.pack_into("<I", content, BODY_START - 8, crc32c(content[BODY_START:]))
    return pa.py_buffer(bytes(content))


def counting(rows: int) -> Callable[[Fields], None]:
    """So many records, and offsets that fit the number."""

    def lie(fields: Fields) -> None:
        fields[COUNT], fields[LAST] = rows, rows - 1

    return lie


def shifting(field: int, by: int) -> Callable[[Fields], None]:
    """One of the two times is another."""

    def lie(fields: Fields) -> None:
        time = fields[field]
        assert isinstance(time, int)
        fields[field] = time + by

    return lie


def marking(attribute: int) -> Callable[[Fields], None]:
    """It says that it is of another kind."""

    def lie(fields: Fields) -> None:
        attributes = fields[ATTRIBUTES]
        assert isinstance(attributes, int)
        fields[ATTRIBUTES] = attributes | attribute

    return lie


def setting(field: int, value: int | bytes) -> Callable[[Fields], None]:
    def lie(fields: Fields) -> None:
        fields[field] = value

    return lie


LIES: Final[dict[str, tuple[Callable[[Fields], None], str]]] = {
    "one record fewer": (counting(ROWS - 1), "records and has"),
    "one record more": (counting(ROWS + 1), "records and has"),
    "one record": (counting(1), "records and has"),
    "many records": (counting(1 << 30), "records and has"),
    "the first earlier": (shifting(MIN_TIME, -1), "timestamps of a frame are not those"),
    "the first later": (shifting(MIN_TIME, 1), "timestamps of a frame are not those"),
    "the last earlier": (shifting(MAX_TIME, -1), "timestamps of a frame are not those"),
    "the last later": (shifting(MAX_TIME, 1), "timestamps of a frame are not those"),
    "the last a year later": (shifting(MAX_TIME, 365 * 86400 * 10**9), "timestamps of a frame are not those"),
    "no record": (setting(COUNT, 0), "how many records"),
    "more records than offsets": (setting(COUNT, ROWS + 1), "how many records"),
    "more offsets than records": (setting(LAST, ROWS), "leaves out offsets"),
    "a reserved field": (setting(RESERVED, 1), "features that this version does not know"),
    "a sequence below zero": (setting(SEQUENCE, -2), "who produced it"),
    "another schema": (setting(SCHEMA, 1), "a frame has schema"),
    "a control frame": (marking(CONTROL), "a kind that is not accepted"),
    "a compacted frame": (marking(EXPLICIT_OFFSETS), "a kind that is not accepted"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_frame_that_lies_in_its_header_is_refused(name: str) -> None:
    lie, reason = LIES[name]
    for seed in SEEDS:
        with pytest.raises(UntrustedFrame, match=reason):
            admit(lying(seed, lie), seed.schema)


def test_a_frame_from_the_future_is_refused() -> None:
    for seed in SEEDS:
        admit(pa.py_buffer(seed.frame), seed.schema, latest_timestamp=TIME + ROWS - 1)
        with pytest.raises(UntrustedFrame, match="from the future"):
            admit(pa.py_buffer(seed.frame), seed.schema, latest_timestamp=TIME - 1)


def test_a_frame_whose_body_was_changed_is_refused() -> None:
    for seed in SEEDS:
        content = bytearray(seed.frame)
        content[-1] ^= 1
        with pytest.raises(UntrustedFrame, match="does not match its checksum"):
            admit(pa.py_buffer(bytes(content)), seed.schema)


def test_a_frame_with_a_buffer_outside_itself_is_refused_before_it_is_decoded() -> None:
    """Every number in the description of the buffers is tried: those that are places must be checked."""
    refusals = set()
    for seed in SEEDS:
        for position in range(HEADER_BYTES, min(len(seed.frame), HEADER_BYTES + 400), 8):
            content = bytearray(seed.frame)
            struct.pack_into("<q", content, position, 1 << 40)
            struct.pack_into("<I", content, BODY_START - 8, crc32c(content[BODY_START:]))
            try:
                admit(pa.py_buffer(bytes(content)), seed.schema)
            except UntrustedFrame as refusal:
                refusals.add(str(refusal))
    assert any("a buffer outside itself" in refusal for refusal in refusals)
