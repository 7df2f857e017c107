"""Packing by hand: frames go in and out of messages without being copied through protobuf.

The three messages that carry frames have them in their last field, `frames`, with the number 15. Everything before it
is protobuf's own work; the frames are put behind it, or found in it, as the encoding says: a tag, a length, the bytes.
The bytes on the wire are the very ones that protobuf makes. In answers a field that nobody reads goes before the
frames, of as many bytes as it takes for them to lie where Arrow wants them: then they are not copied there either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from headwater.v1 import broker_pb2 as pb

FRAMES: Final = 15
PADDING: Final = 10
"""The numbers of the fields."""
_TAG: Final = bytes((FRAMES << 3 | 2,))
_PARTITION_TAG: Final = bytes((1 << 3 | 2,))
_PADDINGS: Final = [
    bytes((PADDING << 3 | 2, size - 2, *bytes(size - 2))) if size else b"" for size in (0, 9, 10, 3, 4, 5, 6, 7)
]
"""Fields that fill up so many bytes, or 8 more: the least has three, as an empty one would not be sent."""
_BY_PROTOBUF: Final = 16 * 1024
"""Smaller messages are taken apart by protobuf: then copying costs less than finding the fields does."""
_HELD_TIMES: Final = 3
"""Frames may hold a message in memory that is so many times as large, no larger one."""

View = bytes | memoryview
_Request = TypeVar("_Request", pb.ProduceRequest, pb.StageRequest)


class Framed(NamedTuple, Generic[_Request]):
    """A request without its frames, and the frames beside it, as they arrived or are to be sent."""

    message: _Request
    frames: Sequence[View]


class Sending(NamedTuple, Generic[_Request]):
    """A request without its frame, and the frame beside it, in pieces that lie where they were made."""

    message: _Request
    pieces: Sequence[View]


class FetchedFrames(NamedTuple):
    """One partition of a FetchResponse without its frames, and the frames beside it."""

    partition: pb.FetchedPartition
    frames: Sequence[View]


class Fetched(NamedTuple):
    """A FetchResponse as it arrived: its partitions, each with its frames, one after the other, beside it."""

    partitions: Sequence[tuple[pb.FetchedPartition, View]]
    generation: int
    size: int
    """The number of its bytes, with those of the frames that it tells the places of."""


# Making messages.


def pack_framed(request: Framed[Any] | Sending[Any] | Message) -> bytes:
    """The bytes of a request, with or without frames beside it."""
    if isinstance(request, Message):
        return request.SerializeToString()
    parts: list[View] = [request.message.SerializeToString()]
    if isinstance(request, Sending):
        return b"".join((*parts, _TAG, _varint(sum(map(len, request.pieces))), *request.pieces))
    for frame in request.frames:
        parts += (_TAG, _varint(len(frame)), frame)
    return b"".join(parts)


def pack_fetched(partitions: Iterable[FetchedFrames], generation: int = 0) -> bytes:
    """The bytes of a FetchResponse.

    Frames begin at a multiple of 8, so that they can be read where they arrive. If the padding itself makes a length
    one byte longer they do not, and the reader copies them.
    """
    parts: list[View] = []
    position = 0
    for partition, frames in partitions:
        head = partition.SerializeToString()
        size = sum(map(len, frames))
        tail = _TAG + _varint(size) if size else b""
        before = position + len(_PARTITION_TAG) + len(_varint(len(head) + len(tail) + size)) + len(head) + len(tail)
        padding = _PADDINGS[-before & 7] if size else b""
        lead = b"".join((_PARTITION_TAG, _varint(len(head) + len(padding) + len(tail) + size), head, padding, tail))
        parts += (lead, *frames)
        position += len(lead) + size
    if generation:
        parts.append(pb.FetchResponse(generation=generation).SerializeToString())
    return b"".join(parts)


def located_bytes(partitions: Iterable[tuple[pb.FetchedPartition, Any]]) -> int:
    """The number of bytes of frames that a FetchResponse only tells the places of."""
    return sum(extent.length for partition, _ in partitions for extent in partition.extents)


def pack_response(response: bytes | Message) -> bytes:
    """A response that is packed already, or is to be."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


# Taking them apart.


def unpack_produce(content: bytes) -> Framed[pb.ProduceRequest]:
    """A ProduceRequest with its frames beside it; raises DecodeError."""
    return Framed(*_unpack(pb.ProduceRequest, content))


def unpack_stage(content: bytes) -> Framed[pb.StageRequest]:
    """A StageRequest with its frames beside it; raises DecodeError."""
    return Framed(*_unpack(pb.StageRequest, content))


def _unpack(kind: type[_Request], content: bytes) -> tuple[_Request, Sequence[View]]:
    if len(content) < _BY_PROTOBUF:
        message = kind.FromString(content)
        frames = list(message.frames)
        del message.frames[:]
        return message, frames
    rest, views = _split(memoryview(content), FRAMES)
    return kind.FromString(rest), views


def unpack_fetched(content: bytes) -> Fetched:
    """A FetchResponse with the frames of each partition as a view on these bytes; raises DecodeError.

    Frames that are a small part of it are copied: they would hold all of it in memory for as long as they are there.
    """
    fetched: list[tuple[pb.FetchedPartition, View]] = []
    if len(content) < _BY_PROTOBUF:
        message = pb.FetchResponse.FromString(content)
        fetched += ((partition, partition.frames) for partition in message.partitions)
        return Fetched(fetched, message.generation, len(content) + located_bytes(fetched))
    rest, partitions = _split(memoryview(content), 1)
    for partition in partitions:
        head, views = _split(partition, FRAMES)
        frames: View = views[-1] if views else b""
        copied = len(frames) * _HELD_TIMES < len(content)
        fetched.append((pb.FetchedPartition.FromString(head), bytes(frames) if copied else frames))
    return Fetched(fetched, pb.FetchResponse.FromString(rest).generation, len(content) + located_bytes(fetched))


def _split(content: memoryview, wanted: int) -> tuple[bytes, list[memoryview]]:
    """All fields but those of bytes with the number `wanted`, and these."""
    rest: list[memoryview] = []
    views: list[memoryview] = []
    position = size = 0
    while position < len(content):
        start = position
        tag, position = _read_varint(content, position)
        match tag & 7:
            case 0:
                _, position = _read_varint(content, position)
            case 1:
                position += 8
            case 2:
                size, position = _read_varint(content, position)
                position += size
            case 5:
                position += 4
            case _:
                raise DecodeError("a message has a field of an unknown wire type")
        if position > len(content):
            raise DecodeError("a message is cut short")
        if tag == wanted << 3 | 2:
            views.append(content[position - size : position])
        else:
            rest.append(content[start:position])
    return b"".join(rest), views


def _read_varint(content: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(content) or shift > 63:
            raise DecodeError("a message is cut short")
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
