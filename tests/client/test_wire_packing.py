"""Messages that are packed by hand are the very bytes that protobuf makes, and are read like protobuf reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import (
    FetchedFrames,
    Framed,
    pack_fetched,
    pack_framed,
    pack_response,
    unpack_fetched,
    unpack_produce,
    unpack_stage,
)

FRAMES = st.lists(st.binary(max_size=300) | st.binary(min_size=20_000, max_size=20_200), max_size=4)
UINT32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
REQUESTS = st.builds(
    pb.ProduceRequest,
    id=st.integers(0, 2**64 - 1),
    topic=st.text(max_size=20),
    topic_uuid=st.binary(max_size=16),
    partition=st.none() | UINT32,
    records=st.lists(st.builds(pb.Record, key=st.binary(max_size=5), timestamp_ns=INT64), max_size=3),
)
PARTITIONS = st.builds(
    pb.FetchedPartition, topic=st.text(max_size=9), partition=UINT32, log_start=INT64, next_offset=INT64, lag=INT64
)


@given(REQUESTS, FRAMES)
def test_a_request_with_frames(message: pb.ProduceRequest, frames: list[bytes]) -> None:
    packed = pack_framed(Framed(message, [memoryview(frame) for frame in frames]))
    whole = pb.ProduceRequest()
    whole.CopyFrom(message)
    whole.frames.extend(frames)
    assert packed == whole.SerializeToString() == pack_framed(whole)
    unpacked = unpack_produce(packed)
    assert unpacked.message == message
    assert [bytes(frame) for frame in unpacked.frames] == frames


@given(st.text(max_size=20), UINT32, FRAMES)
def test_a_request_to_stage_frames(topic: str, partition: int, frames: list[bytes]) -> None:
    whole = pb.StageRequest(topic=topic, partition=partition, frames=frames)
    unpacked = unpack_stage(pack_framed(Framed(pb.StageRequest(topic=topic, partition=partition), frames)))
    assert unpacked.message == pb.StageRequest(topic=topic, partition=partition)
    assert [bytes(frame) for frame in unpacked.frames] == list(whole.frames)


@given(st.lists(st.tuples(PARTITIONS, FRAMES), max_size=3), INT64)
def test_an_answer_with_frames(parts: list[tuple[pb.FetchedPartition, list[bytes]]], generation: int) -> None:
    packed = pack_fetched([FetchedFrames(head, frames) for head, frames in parts], generation)
    whole = pb.FetchResponse.FromString(packed)
    assert packed == whole.SerializeToString() == pack_response(whole) == pack_response(packed)
    assert whole.generation == generation
    unpacked = unpack_fetched(packed)
    assert (unpacked.generation, unpacked.size) == (generation, len(packed))
    for (head, frames), read, (fetched, content) in zip(parts, whole.partitions, unpacked.partitions, strict=True):
        assert read.frames == bytes(content) == b"".join(frames)
        for message in (read, fetched):
            message.ClearField("frames")
            message.ClearField("padding")
            assert message == head


@given(PARTITIONS, st.integers(20_000, 20_200))
def test_frames_can_be_read_where_they_arrive(head: pb.FetchedPartition, size: int) -> None:
    """Otherwise each byte that is consumed would be copied once more, for Arrow's sake."""
    packed = pack_fetched([FetchedFrames(head, [bytes(size)])])
    ((_, content),) = unpack_fetched(packed).partitions
    assert isinstance(content, memoryview)
    assert content.obj is packed
    assert pa.py_buffer(content).address % 8 == 0


@given(st.lists(PARTITIONS, min_size=2, max_size=2), st.integers(20_000, 20_200), st.integers(20_000, 20_200))
def test_so_can_those_of_several_partitions(heads: list[pb.FetchedPartition], first: int, second: int) -> None:
    packed = pack_fetched(FetchedFrames(head, [bytes(size)]) for head, size in zip(heads, (first, second), strict=True))
    for _, content in unpack_fetched(packed).partitions:
        assert isinstance(content, memoryview)
        assert pa.py_buffer(content).address % 8 == 0


def test_a_small_part_of_a_message_does_not_hold_all_of_it() -> None:
    parts = [
        FetchedFrames(pb.FetchedPartition(partition=number), [bytes(size)]) for number, size in ((0, 64), (1, 1 << 20))
    ]
    (_, small), (_, large) = unpack_fetched(pack_fetched(parts)).partitions
    assert small == bytes(64)
    assert isinstance(small, bytes)
    assert isinstance(large, memoryview)


@given(st.binary(max_size=200), st.integers(0, 40_000))
def test_bytes_that_are_no_message_are_refused_like_by_protobuf(noise: bytes, padding: int) -> None:
    frames = pb.ProduceRequest(frames=[bytes(padding)]).SerializeToString()
    content = frames + noise
    try:
        expected = pb.ProduceRequest.FromString(content)
    except DecodeError:
        # Where protobuf finds a group or a name that is no text, the parts are found and then refused by it.
        with pytest.raises(DecodeError):
            unpack_produce(content)
    else:
        try:
            unpacked = unpack_produce(content)
        except DecodeError:
            return  # groups, which protobuf 3 does not write, are refused
        assert [bytes(frame) for frame in unpacked.frames] == list(expected.frames)
