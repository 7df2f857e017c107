"""The Arrow message of plain records: timestamps, values and perhaps keys, all of them bytes.

The metadata of two such batches differs in a few numbers only. So it is taken from pyarrow once, and from then on
filled in. The bytes are the very ones that pyarrow makes; where they would not be (another version lays metadata out in
another way), or where records are not plain, `plain_message` gives None and pyarrow does the work. One record takes
7 µs to encode instead of 20, and the interpreter's lock is not let go, for which threads that send one record each
would queue.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from operator import countOf
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headwater.core.schema import KEY, RAW

FEW: Final = 48
"""Up to so many records Python adds up lengths faster than pyarrow builds an array."""

_JOINED_BYTES: Final = 1 << 17
"""Up to so many bytes Python joins values faster than pyarrow copies them. The C library gives the memory of larger
pieces back at once, and new pages for each cost more than that gains."""
_SAMPLES: Final = 8
"""By about so many of them it is mostly seen that they have not."""


class _Template(NamedTuple):
    layout: struct.Struct
    constants: tuple[bytes, bytes, bytes, bytes]

    def fill(self, count: int, sizes: list[int], body: int) -> bytes:
        """The metadata of `count` records whose columns after the timestamps hold `sizes` bytes."""
        head, length, nodes, buffers = self.constants
        numbers: list[Any] = [0, 0, 0, 8 * count]
        position = 8 * count
        offsets = 4 * count + 4
        for size in sizes:
            numbers += (position, 0, position, offsets)
            position += offsets + (-offsets & 7)
            numbers += (position, size)
            position += size + (-size & 7)
        return self.layout.pack(head, body, length, count, nodes, *numbers, buffers, *((count, 0) * (len(sizes) + 1)))


class Plain(NamedTuple):
    """A few plain records as they are in a message: when they are from, and how long the longest of each column is."""

    times: tuple[int, ...]
    longest: list[int]


@cache
def _template(columns: int) -> _Template | None:
    """Return the layout that pyarrow gives the metadata for so many columns of bytes."""
    layout = struct.Struct(f"<40sq24sq8s{4 + 6 * columns}q8s{2 * columns + 2}q")
    sample = [b"sample" * 3] * 5
    times = struct.pack("<5q", *range(5))
    made = _by_arrow([sample] * columns, times)
    fields = layout.unpack_from(made)
    template = _Template(layout, (fields[0], fields[2], fields[4], fields[9 + 6 * columns]))
    return template if _assemble(template, [sample] * columns, times) == made else None


def _by_arrow(columns: Sequence[Sequence[bytes]], times: bytes) -> bytes:
    schema = RAW.frame(offsets=False, keys=len(columns) > 1, headers=False)
    first = pa.Array.from_buffers(schema.field(0).type, len(columns[0]), [None, pa.py_buffer(times)])
    arrays = [first, *(pa.array(column, KEY) for column in columns)]
    message: bytes = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return message


def plain_message(columns: Sequence[Sequence[bytes]], times: bytes | pa.Buffer) -> bytes | pa.Buffer | None:
    """The message, or None when these records are not plain. `times` is the content of their timestamp column."""
    template = _template(len(columns))
    return None if template is None else _assemble(template, columns, times)


def _assemble(
    template: _Template, columns: Sequence[Sequence[bytes]], times: bytes | pa.Buffer
) -> bytes | pa.Buffer | None:
    count = len(columns[0])
    parts: list[Any] = [b"", times]
    sizes = []
    for column in columns:
        if len(column) != count:
            return None
        size = _add_few(parts, column) if count <= FEW else _add_alike(parts, column) or _add_many(parts, column)
        if size is None:
            return None
        sizes.append(size)
    body = _body_bytes(count, sizes)
    parts[0] = template.fill(count, sizes, body)
    size = len(parts[0]) + body
    return b"".join(parts) if count <= FEW or size <= 2 * _JOINED_BYTES else _gathered(parts, size)


def _body_bytes(count: int, sizes: list[int]) -> int:
    offsets = 4 * count + 4
    return 8 * count + sum(offsets + (-offsets & 7) + size + (-size & 7) for size in sizes)


def plain_content(message: memoryview, count: int, columns: int) -> Plain | None:
    """Return the content of a message of a few plain records, proved: no number in it leads outside or backwards.

    None when it is not laid out as `plain_message` does it: then it may be sound nevertheless, and pyarrow can tell.
    """
    template = _template(columns)
    if template is None or not 0 < count <= FEW or len(message) < template.layout.size:
        return None
    position = template.layout.size
    stated = template.layout.unpack_from(message)
    sizes = [stated[14 + 6 * number] for number in range(columns)]
    if min(sizes) < 0 or len(message) != position + _body_bytes(count, sizes):
        return None
    if template.fill(count, sizes, len(message) - position) != bytes(message[:position]):
        return None
    times = struct.unpack_from(f"<{count}q", message, position)
    position += 8 * count
    longest: list[int] = []
    for size in sizes:
        ends = struct.unpack_from(f"<{count + 1}i", message, position)
        lengths = [after - before for before, after in pairwise(ends)]
        if ends[0] or ends[-1] != size or min(lengths) < 0:
            return None
        longest.append(max(lengths))
        position += 4 * len(ends) + (-4 * len(ends) & 7) + size + (-size & 7)
    return Plain(times, longest)


def _gathered(parts: list[Any], size: int) -> pa.Buffer:
    """The parts in memory of Arrow's own pool, which keeps what it has had: Python's would be new pages each time."""
    gathered = pa.allocate_buffer(size)
    view = memoryview(gathered).cast("B")
    position = 0
    for part in parts:
        content = memoryview(part).cast("B")
        view[position : position + len(content)] = content
        position += len(content)
    return gathered


def _add_few(parts: list[Any], column: Sequence[bytes]) -> int | None:
    """Add offsets and values, each padded to 8 bytes; returns the size of the values."""
    if set(map(type, column)) != {bytes}:
        return None
    try:
        offsets = array("i", accumulate(map(len, column), initial=0))
    except OverflowError:
        return None
    size = offsets[-1]
    if not len(column) & 1:
        offsets.append(0)
    parts.append(offsets)
    parts += column
    parts.append(bytes(-size & 7))
    return size


def _add_alike(parts: list[Any], column: Sequence[bytes]) -> int | None:
    """Add values of one length: where they end is known beforehand, which saves half of what `_add_many` takes."""
    count = len(column)
    try:
        length, *others = set(map(len, column[:: count // _SAMPLES]))
        if others or not 0 < length * count <= _JOINED_BYTES or countOf(map(len, column), length) < count:
            return None
        values = b"".join(column)
    except TypeError:
        return None
    size = len(values)
    if size != length * count:
        return None  # a view of larger items than bytes is longer than it says
    ends = memoryview(_multiples(length, 1 << count.bit_length()))[: 4 * count + 4]
    parts += (ends, bytes(-len(ends) & 7), values, bytes(-size & 7))
    return size


@lru_cache(maxsize=16)
def _multiples(number: int, count: int) -> pa.Buffer:
    """0 and the first `count` multiples of a number."""
    return pa.arange(0, number * count + 1, number).cast(pa.int32()).buffers()[1]


def _add_many(parts: list[Any], column: Sequence[bytes]) -> int | None:
    try:
        values = pa.array(column, KEY)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # pyarrow says it again, to someone who passes it on
    if isinstance(values, pa.ChunkedArray) or values.null_count:
        return None
    _, offsets, content = values.buffers()
    used = 4 * len(values) + 4
    size = int.from_bytes(memoryview(offsets)[used - 4 : used], "little")
    parts += (memoryview(offsets)[:used], bytes(-used & 7), memoryview(content)[:size], bytes(-size & 7))
    return size
