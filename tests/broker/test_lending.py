"""Frames that reach a broker on the same machine by memory that it lends, and are not sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater import ClientConfig
from headwater.broker.rpc.lending import LentMemory
from headwater.client import sender
from headwater.client.borrowing import BorrowedMemory
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidRecord, UntrustedFrame
from headwater.core.machine import machine
from headwater.core.options import KIB, MIB
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from tests.support.broker import BrokerProcess, Served, frame_of, served
from tests.support.patience import wait_until

pytestmark = pytest.mark.skipif(not machine(), reason="the system does not say which machine this is")
VALUES: Final = [bytes([number]) * 1000 for number in range(250)]
"""Enough for a frame that is worth being lent memory for."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "events") as broker:
        broker.create("t")
        yield broker


class Stream:
    """A stream of requests, each of which is answered before the next one."""

    def __init__(self, broker: Served) -> None:
        self._requests: SimpleQueue[pb.ProduceRequest | None] = SimpleQueue()
        self._answers = broker.stub.ProduceStream(iter(self._requests.get, None))

    def ask(self, **fields: Any) -> pb.ProduceResponse:
        self._requests.put(pb.ProduceRequest(id=7, **fields))
        answer: pb.ProduceResponse = next(self._answers)
        assert answer.id == 7
        return answer

    def borrow(self, size: int, name: bytes | None = None) -> pb.ProduceResponse:
        return self.ask(borrow_bytes=size, machine=machine() if name is None else name)

    def produce(self, **fields: Any) -> pb.ProduceResponse:
        return self.ask(topic="t", partition=0, **fields)

    def end(self) -> None:
        self._requests.put(None)
        list(self._answers)


@contextmanager
def streaming(broker: Served) -> Iterator[Stream]:
    stream = Stream(broker)
    try:
        yield stream
    finally:
        stream.end()


def lent(broker: Served) -> int:
    assert broker.broker._core is not None
    return broker.broker._core.lent_bytes


def descriptors() -> int:
    """Return how many descriptors of lent memory this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:headwater-frames" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that lists them
    return count


# The broker.


def test_a_frame_in_lent_memory_is_stored_like_one_that_is_sent(broker: Served) -> None:
    with streaming(broker) as stream:
        memory = BorrowedMemory(stream.borrow(MIB).memory)
        assert lent(broker) == MIB
        region = memory.put(1, [frame_of(b"a", b"b")])
        answer = stream.produce(region=region)
        assert (answer.base_offset, answer.end_offset) == (0, 2)
        # The broker has its own by now, whatever becomes of the memory.
        memory.answered(1)
        memory.put(2, [b"\xff" * 4096])
        assert stream.produce(frames=[frame_of(b"c")]).base_offset == 2
        assert stream.borrow(MIB).memory.file == stream.borrow(2 * MIB).memory.file
        assert lent(broker) == MIB
    assert broker.values("t") == [b"a", b"b", b"c"]


def test_the_memory_is_given_back_with_the_stream(broker: Served) -> None:
    before = descriptors()
    with streaming(broker) as stream:
        memory = BorrowedMemory(stream.borrow(MIB).memory)
        assert descriptors() == before + 2  # one of each side
    del memory
    wait_until(
        lambda: (lent(broker), descriptors()) == (0, before),
        lambda: f"{lent(broker)} lent, {descriptors()} descriptors",
    )


@pytest.mark.parametrize(
    ("position", "length"), [(MIB, 8), (0, MIB + 1), ((1 << 64) - 1, (1 << 64) - 1), (4096, (1 << 64) - 1)]
)
def test_a_frame_beyond_the_memory_is_refused_and_others_are_taken(broker: Served, position: int, length: int) -> None:
    region = pb.Region(position=position, length=length)
    with streaming(broker) as stream:
        assert stream.borrow(MIB).HasField("memory")
        assert isinstance(unpack_error(stream.produce(region=region).error), InvalidRecord)
        assert stream.produce(frames=[frame_of(b"a")]).base_offset == 0


def test_what_is_in_the_memory_is_not_believed(broker: Served) -> None:
    with streaming(broker) as stream:
        memory = BorrowedMemory(stream.borrow(MIB).memory)
        chance = Random(0)
        frame = bytearray(frame_of(*VALUES[:20]))
        for number in range(50):
            damaged = bytearray(frame)
            damaged[chance.randrange(40, len(frame))] ^= 1 << chance.randrange(8)
            answer = stream.produce(region=memory.put(number, [bytes(damaged)]))
            assert isinstance(unpack_error(answer.error), UntrustedFrame)
            memory.answered(number)
        for region in (pb.Region(), pb.Region(position=0, length=512), pb.Region(position=4096, length=MIB - 4096)):
            assert isinstance(unpack_error(stream.produce(region=region).error), UntrustedFrame)
    assert broker.values("t") == []


def test_without_memory_there_is_no_region(broker: Served) -> None:
    region = pb.Region(position=4096, length=512)
    with streaming(broker) as stream:
        assert isinstance(unpack_error(stream.produce(region=region).error), InvalidRecord)
        assert stream.borrow(MIB).HasField("memory")
        both = stream.produce(region=region, frames=[frame_of(b"a")])
        assert isinstance(unpack_error(both.error), InvalidRecord)


def test_memory_is_lent_to_who_is_here_and_while_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig(max_in_flight_bytes=4 * MIB)
    with served(tmp_path, config) as broker, streaming(broker) as first, streaming(broker) as second:
        for name in (b"", b"x" * 16):
            assert not first.borrow(MIB, name).HasField("memory")
        monkeypatch.delattr(os, "memfd_create")
        assert not first.borrow(MIB).HasField("memory")
        monkeypatch.undo()
        assert first.borrow(3 * MIB).HasField("memory")
        assert not second.borrow(2 * MIB).HasField("memory")
        assert second.borrow(MIB).HasField("memory")


# Producers.


@given(sizes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5)), max_size=60))
def test_what_is_not_answered_is_not_overwritten(sizes: list[tuple[int, int]]) -> None:
    lender = LentMemory(4096 + 6000)
    memory = BorrowedMemory(lender.described())
    held: dict[int, tuple[pb.Region, bytes]] = {}
    for number, (size, answered) in enumerate(sizes):
        content = bytes([number]) * size
        region = memory.put(number, [content[: size // 2], content[size // 2 :]])
        if region is not None:
            assert region.position >= 4096
            held[number] = region, content
        elif not held:
            assert size > 6000
        for other, expected in held.values():
            assert lender.read(other) == expected
        for oldest in list(held)[:answered]:
            memory.answered(oldest)
            del held[oldest]


def test_a_file_that_is_not_the_memory_is_left_alone(tmp_path: Path) -> None:
    """The process of that number may be another one here, when the broker is in a container."""
    lender = LentMemory(MIB)
    file = tmp_path / "precious"
    file.write_bytes(b"x" * MIB)
    right = lender.described()
    for wrong in (
        pb.LentMemory(file=str(file), key=b"x" * 16, size=MIB),
        pb.LentMemory(file=right.file, key=b"x" * 16, size=MIB),
        pb.LentMemory(file=right.file, key=b"", size=MIB),
        pb.LentMemory(file=right.file, key=right.key, size=2 * MIB),
        pb.LentMemory(file=str(tmp_path), key=right.key, size=MIB),
        pb.LentMemory(file="/dev/null", key=right.key, size=MIB),
        pb.LentMemory(file=str(tmp_path / "none"), key=right.key, size=MIB),
    ):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            BorrowedMemory(wrong)
    assert file.read_bytes() == b"x" * MIB


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each frame whether it was put into memory."""
    lent: list[bool] = []

    class Counted(BorrowedMemory):
        def put(self, *arguments: Any) -> pb.Region | None:
            region = super().put(*arguments)
            lent.append(region is not None)
            return region

    monkeypatch.setattr(sender, "BorrowedMemory", Counted)
    return lent


def everything(store: hw.Store) -> list[bytes]:
    column: list[bytes] = store.topic("t").scan().read_all().column("value").to_pylist()
    return column


def test_small_frames_are_sent(broker: Served, placed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_WORTH_BORROWING", 64 * KIB)
    with hw.open(f"hw://{broker.broker.address}") as store, store.producer("t") as out:
        for _ in range(5):
            out.send(b"small")
            out.flush()
        assert (placed, lent(broker)) == ([], 0)
        out.send_batch(VALUES)
        out.flush()
        assert lent(broker) > 0


def test_frames_go_by_memory_and_what_does_not_fit_is_sent(
    broker: Served, placed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_BORROWED", MIB)
    expected: list[bytes] = []
    with hw.open(f"hw://{broker.broker.address}") as store, store.producer("t", batch_bytes=300_000) as out:
        for number in range(40):
            values = VALUES if number % 2 else [b"small"] if number % 4 else [b"large" * 300_000]
            out.send_batch(values)
            expected += values
            if number % 5 == 0:
                out.flush()
        out.flush()
        assert everything(store) == expected
    assert True in placed
    assert False in placed


def test_memory_is_used_again_when_the_broker_has_answered(broker: Served, placed: list[bool]) -> None:
    with hw.open(f"hw://{broker.broker.address}") as store, store.producer("t") as out:
        for _ in range(100):
            out.send_batch(VALUES)
            out.flush()
    assert all(placed)
    assert len(placed) >= 99  # the first frame is sent if the memory that was asked for is not there yet


def test_who_wants_frames_sent_has_them_sent(broker: Served, placed: list[bool]) -> None:
    with hw.open(f"hw://{broker.broker.address}", client=ClientConfig(direct=False)) as store:
        with store.producer("t") as out:
            for _ in range(3):
                out.send_batch(VALUES)
                out.flush()
        assert everything(store) == VALUES * 3
    assert placed == []


@pytest.mark.parametrize("call", ["open", "pwritev"])
def test_where_the_memory_cannot_be_used_frames_are_sent(
    broker: Served, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    genuine = getattr(os, call)
    refused: list[str] = []

    def refuse(file: Any, *arguments: Any) -> Any:
        name = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
        if name.startswith(("/proc/", "/memfd:")):
            refused.append(name)
            raise OSError(12, "as if there were no more")
        return genuine(file, *arguments)

    monkeypatch.setattr(os, call, refuse)
    with hw.open(f"hw://{broker.broker.address}") as store:
        with store.producer("t") as out:
            for _ in range(3):
                out.send_batch(VALUES)
                out.flush()
        assert everything(store) == VALUES * 3
    assert refused


def test_a_broker_that_dies_loses_and_doubles_nothing_that_was_in_its_memory(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "events").ready()
    port = broker.address
    expected = [b"%06d" % number + bytes(1000) for number in range(20_000)]
    with hw.open(f"hw://{port}") as store:
        store.create_topic("t", sync=1.0)
        with store.producer("t") as out:
            for begin in range(0, len(expected), 500):
                out.send_batch(expected[begin : begin + 500])
                if begin in (5_000, 12_000):
                    broker.kill()
                    broker = BrokerProcess(tmp_path / "events", listen=port).ready()
            out.flush()
        assert everything(store) == expected
    broker.terminate()
