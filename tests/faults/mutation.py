"""Mutations of frames: wrong where it hurts, and right where a checksum would otherwise give them away.

They know the structure of what they change: the header's fields, the Arrow message's metadata with its lengths,
counts and buffers, and the lengths that compressed buffers begin with.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from headwater.core.config import Compression
from headwater.core.schema import Schema
from headwater.log import Frame, Identity, encode, encode_batch
from headwater.log.format.frame import BODY, BODY_START, CODEC_MASK, HEADER_BYTES

ROWS: Final = 7
TIME: Final = 1_700_000_000_000_000_000
PAYLOADS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "text": (pa.string(), ["", "a", None, "héé", "x" * 90, "b", "c"]),
    "big_text": (pa.large_string(), ["", "a", None, "héé", "x" * 90, "b", "c"]),
    "flag": (pa.bool_(), [True, None, False, True, True, False, None]),
    "small": (pa.int8(), [1, 2, None, 4, 5, 6, 7]),
    "price": (pa.decimal128(12, 3), [Decimal(number) for number in range(ROWS)]),
    "words": (pa.list_(pa.string()), [[], ["a"], None, ["b", None], ["c"] * 9, [], ["d"]]),
    "big_words": (pa.large_list(pa.int64()), [[], [1], None, [2, None], [3] * 9, [], [4]]),
    "pair": (pa.list_(pa.float32(), 2), [[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 0], [1, 1]]),
    "place": (
        pa.struct([("x", pa.float64()), ("name", pa.string()), ("deep", pa.struct([("y", pa.int32())]))]),
        [{"x": 1.5, "name": "n", "deep": {"y": 3}}, None, *[{"x": None, "name": "m", "deep": None}] * (ROWS - 2)],
    ),
    "labels": (pa.map_(pa.string(), pa.list_(pa.int16())), [[("k", [1, 2])], None, [], *[[("j", None)]] * (ROWS - 3)]),
    "fixed": (pa.binary(3), [b"abc", None, *[b"xyz"] * (ROWS - 2)]),
    "nothing": (pa.null(), [None] * ROWS),
}
INTERESTING: Final = (0, 1, 2, 3, 7, 8, 9, 64, 127, 128, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
HUGE: Final = (
    1 << 32,
    1 << 40,
    1 << 61,
    (1 << 62) + 8,
    (1 << 63) - 8,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 8,
    (1 << 64) - 1,
)


class Seed(NamedTuple):
    """A good frame to begin with, and the numbers in it: where they are, and how many bytes they have."""

    frame: bytes
    schema: Schema
    words: tuple[tuple[int, int], ...]


class Mutation(NamedTuple):
    """A frame that may be anything, and the schema under which it comes."""

    frame: bytes
    schema: Schema


def seeds() -> list[Seed]:
    """Good frames of many shapes."""
    found = []
    codecs: tuple[Compression, ...] = ("none", "zstd", "lz4")
    for codec in codecs:
        values = [b"", b"a", None, b"x" * 200, b"b", b"c", b"d"]
        keys = [b"k", None, b"", b"m", b"n", b"o", b"p"]
        headers = [{"h": b"1"}, None, {}, {"i": b"2", "j": b""}, None, None, None]
        identity = Identity(b"0123456789abcdef", 1, 0)
        writer = identity._replace(forever=True)
        found.append(encode(values, timestamps=TIME, compression=codec, threshold=0))
        found.append(encode(values, timestamps=TIME, compression=codec, threshold=0, identity=writer))
        found.append(
            encode(
                values,
                keys=keys,
                headers=headers,
                timestamps=[TIME + number for number in range(ROWS)],
                compression=codec,
                threshold=0,
                identity=identity,
            )
        )
        for name, (kind, column) in PAYLOADS.items():
            schema = Schema(pa.schema([(name, kind), ("last", pa.int32())]))
            batch = pa.RecordBatch.from_arrays(
                [pa.array(column, kind), pa.array(range(ROWS), pa.int32())], schema=schema.payload
            )
            found.append(encode_batch(batch, schema, timestamps=TIME, compression=codec, threshold=0))
    return [_seed(frame) for frame in found]


def _seed(frame: Frame) -> Seed:
    stamp, _ = frame.stamp(0, durable_end=0, leader_epoch=0, previous=0, group=3, seed=0)
    content = stamp + frame.message.to_pybytes()
    compressed = bool(frame.attributes & CODEC_MASK)
    return Seed(content, frame.schema, tuple(_header_words() + _message_words(content, compressed)))


def _header_words() -> list[tuple[int, int]]:
    """The numbers of the producer's part of the header."""
    words, position = [], BODY_START
    for size in (4, 8, 4, 4, 8, 8, 8, 8, 8, 4, 4):
        words.append((position, size))
        position += size
    assert position == HEADER_BYTES
    return words


def _message_words(content: bytes, compressed: bool) -> list[tuple[int, int]]:
    """The numbers of an Arrow message: sizes, the counts of its columns, its buffers, decompressed lengths."""
    start = HEADER_BYTES + 8
    (size,) = struct.unpack_from("<i", content, HEADER_BYTES + 4)
    body = start + size

    def field(table: int, number: int) -> int:
        vtable = table - int(struct.unpack_from("<i", content, table)[0])
        return table + int(struct.unpack_from("<H", content, vtable + 4 + 2 * number)[0])

    def follow(position: int) -> int:
        return position + int(struct.unpack_from("<I", content, position)[0])

    message = follow(start)
    batch = follow(field(message, 2))
    nodes, buffers = follow(field(batch, 1)), follow(field(batch, 2))
    words = [(HEADER_BYTES, 4), (HEADER_BYTES + 4, 4), (field(message, 3), 8), (field(batch, 0), 8)]
    for vector in (nodes, buffers):
        count = struct.unpack_from("<I", content, vector)[0]
        words.append((vector, 4))
        words += [(vector + 4 + 8 * number, 8) for number in range(2 * count)]
    if compressed:
        for number in range(struct.unpack_from("<I", content, buffers)[0]):
            offset, length = struct.unpack_from("<qq", content, buffers + 4 + 16 * number)
            words += [(body + offset, 8)] if length else []
    return words


def mutate(seeds: list[Seed], random: Random) -> Mutation:
    """A frame with some things wrong, under its own schema or, now and then, under another one's name."""
    seed = random.choice(seeds)
    content = bytearray(seed.frame)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(CHANGES)(content, seed, random)
    schema = random.choice(seeds).schema if random.random() < 0.03 else seed.schema
    if len(content) >= HEADER_BYTES and random.random() < 0.97:
        struct.pack_into("<I", content, 4, len(content))
        if schema is not seed.schema:
            struct.pack_into("<Q", content, BODY_START + 4, schema.id)
        struct.pack_into("<I", content, BODY_START - 8, crc32c(content[BODY_START:]))
    return Mutation(bytes(content), schema)


def _set_word(content: bytearray, seed: Seed, random: Random) -> None:
    """One of the known numbers, or a number anywhere in the message, becomes another."""
    position, size = random.choice(seed.words)
    if random.random() < 0.2:
        size = random.choice((2, 4, 8))
        position = random.randrange(HEADER_BYTES, len(content), size)
    old = int.from_bytes(content[position : position + size], "little")
    near = [old + step for step in (-8, -1, 1, 8)]
    value = random.choice([*INTERESTING, *HUGE, *near, 2 * old, len(content), random.getrandbits(64)])
    content[position : position + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


def _set_bytes(content: bytearray, _: Seed, random: Random) -> None:
    """Some bytes become others, mostly in the metadata and the first buffers."""
    for _count in range(random.randint(1, 4)):
        first = random.choice((BODY_START, HEADER_BYTES, HEADER_BYTES))
        content[random.randrange(min(first, len(content) - 1), len(content))] = random.choice((0, 1, 127, 128, 255))


def _fill(content: bytearray, _: Seed, random: Random) -> None:
    """A stretch becomes zeros, ones, chance, or a copy of another stretch."""
    length = random.choice((8, 16, 64, len(content)))
    position = random.randrange(BODY_START, len(content), 4) if len(content) > BODY_START else 0
    length = min(length, len(content) - position)
    other = random.randrange(len(content))
    fillings = (bytes(length), b"\xff" * length, random.randbytes(length), bytes(content[other : other + length]))
    filling = random.choice(fillings)
    content[position : position + len(filling)] = filling


def _resize(content: bytearray, _: Seed, random: Random) -> None:
    """The frame ends early or late, or is moved apart in the middle."""
    length = random.choice((1, 4, 8, 8, 8, 16, 64))
    position = random.choice((len(content), random.randrange(0, len(content) + 1, 8)))
    if random.random() < 0.5:
        del content[max(position - length, 0) : position]
    else:
        content[position:position] = random.choice((bytes(length), random.randbytes(length)))
    if not content:
        content.append(0)


def _lie(content: bytearray, _: Seed, random: Random) -> None:
    """The header tells of other records than there are, and does not contradict itself."""
    if len(content) < HEADER_BYTES:
        return
    fields = list(BODY.unpack_from(content, BODY_START))
    if random.random() < 0.5:
        fields[2] = random.choice((1, ROWS - 1, ROWS + 1, ROWS + 8, 1 << 20, (1 << 32) - 1))
        fields[3] = fields[2] - 1
    else:
        changed = random.choice((4, 5))
        fields[changed] += random.choice((-(10**18), -1, 1, 10**18)) if abs(fields[changed]) < 1 << 62 else 0
    BODY.pack_into(content, BODY_START, *fields)


CHANGES: Final = (_set_word, _set_word, _set_word, _set_bytes, _set_bytes, _fill, _resize, _lie)
