"""Bounds for each source of failures and connections: one source uses up its own, and keeps out nobody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headwater.serving.connections import Connections
from headwater.serving.failures import Failures

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made: list[Pair] = []
    yield made
    for pair in made:
        for end in pair:
            end.close()


class Server:
    """Takes connections, and sees which of them are closed."""

    def __init__(self, most: int, most_of_source: int, pairs: list[Pair]) -> None:
        self.connections = Connections(most, most_of_source)
        self._pairs = pairs
        self._ends: dict[tuple[str, int], socket.socket] = {}

    def take(self, host: str, *ports: int, answering: bool = False) -> None:
        for port in ports:
            near, far = socket.socketpair()
            self._pairs.append((near, far))
            far.setblocking(False)
            self._ends[host, port] = far
            self.connections.add(host, (host, port), near)
            if answering:
                self.connections.answering((host, port), True)

    def closed(self) -> list[tuple[str, int]]:
        return [key for key, far in self._ends.items() if self._ended(far)]

    def _ended(self, far: socket.socket) -> bool:
        try:
            return far.recv(1) == b""
        except BlockingIOError:
            return False


def test_a_source_with_too_many_loses_its_own_oldest(pairs: list[Pair]) -> None:
    server = Server(100, 3, pairs)
    server.take("10.0.0.2", 1)
    server.take("10.0.0.1", 1, 2, 3, 4, 5)
    assert server.closed() == [("10.0.0.1", 1), ("10.0.0.1", 2)]
    assert len(server.connections) == 4


def test_when_there_are_too_many_the_source_with_the_most_loses_one(pairs: list[Pair]) -> None:
    server = Server(5, 4, pairs)
    server.take("10.0.0.2", 1)
    server.take("10.0.0.1", 1, 2, 3, 4)
    server.take("10.0.0.3", 1)
    assert server.closed() == [("10.0.0.1", 1)]
    assert len(server.connections) == 5


def test_connections_that_are_being_answered_go_last(pairs: list[Pair]) -> None:
    server = Server(4, 4, pairs)
    server.take("10.0.0.1", 1, 2, 3, answering=True)
    server.take("10.0.0.2", 1, 2)
    assert server.closed() == [("10.0.0.2", 1)]
    server.connections.answering(("10.0.0.1", 1), False)
    server.connections.answering(("10.0.0.1", 2), False)
    server.take("10.0.0.3", 1)
    assert server.closed() == [("10.0.0.1", 1), ("10.0.0.2", 1)]


def test_what_was_closed_counts_no_more(pairs: list[Pair]) -> None:
    server = Server(2, 2, pairs)
    for port in range(100):
        server.take("10.0.0.1", port, answering=True)
        server.connections.discard("10.0.0.1", ("10.0.0.1", port))
        server.connections.discard("10.0.0.1", ("10.0.0.1", port))
    assert server.closed() == []
    assert (len(server.connections), server.connections._sources, server.connections._answering) == (0, {}, set())


def test_a_source_is_blocked_for_a_while_and_others_are_not() -> None:
    clock = [1000.0]
    failures = Failures(3, 60.0, lambda: clock[0])
    for _ in range(3):
        assert not failures.blocks("a")
        failures.note("a")
    assert failures.blocks("a")
    assert not failures.blocks("b")
    clock[0] += 59.0
    failures.note("a")
    assert failures.blocks("a")
    clock[0] += 1.0
    assert not failures.blocks("a"), "failing while it is blocked does not make it longer"
    failures.note("a")
    assert not failures.blocks("a")
