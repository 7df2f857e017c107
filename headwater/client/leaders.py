"""Leaders: which broker of a cluster leads a partition, and a connection to it.

Any broker tells who leads. An answer may be old. That is found out by asking: a broker that leads no more says so,
and the next attempt asks anew. A single broker leads everything, and is asked nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc

from headwater.client.connection import Channel, Connection, pauses
from headwater.core.address import Address
from headwater.core.errors import HeadwaterError, NotLeader, UnknownTopic
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of, unpack_error

_log = logging.getLogger(__name__)
LeaderKey = tuple[str, int | str]
"""A topic and a partition's number; or an internal topic and a name, whose coordinator is meant."""
_ASKING: Final = 2.0
"""One question for leaders waits so many seconds."""
_TOLD_WITHIN: Final[dict[str, Callable[[Any], Iterable[Any]]]] = {
    "Fetch": lambda fetched: (partition for partition, _ in fetched.partitions),
    "ListOffsets": lambda answer: answer.partitions,
}
"""Methods whose answers tell for each partition what is wrong with it, and where."""
_AGAIN: Final = 0.05
"""Not more often than this is asked who leads a topic. Seconds."""
_DOUBTED: Final = 1.0
"""The same while a leader does not answer."""


class Leaders:
    """The leaders of a cluster's partitions. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """To any of the brokers."""
        self._mutex = threading.Lock()
        self._clustered: bool | None = None
        self._addresses: dict[LeaderKey, str] = {}
        self._asked: dict[str, float] = {}
        self._connections: dict[LeaderKey, Connection] = {}

    @property
    def clustered(self) -> bool:
        """True if there is more than one broker to choose from. Asks, the first time."""
        if self._clustered is None:
            self._learn(self.connection.call("GetMetadata", pb.GetMetadataRequest(brokers_only=True)))
        return bool(self._clustered)

    def of(self, topic: str, partition: int) -> Connection:
        """A connection whose calls go to the broker that leads a partition."""
        return self._connection_to((topic, partition))

    def coordinator(self, topic: str, name: str) -> Connection:
        """A connection whose calls go to the broker that coordinates a name: who leads its place in an internal topic.

        Nobody is asked for it beforehand: whoever is called and is not the one says who is.
        """
        return self._connection_to((topic, name))

    def _connection_to(self, key: LeaderKey) -> Connection:
        with self._mutex:
            connection = self._connections.get(key)
            if connection is None:
                connection = self._connections[key] = LeaderConnection(self, key)
            return connection

    def channel(self, key: LeaderKey) -> Channel:
        """The way to the leader, as far as it is known; else to anyone, who will tell. Raises UnknownTopic."""
        if not self.clustered:
            return self.connection.channel()
        address = self._addresses.get(key)
        if address is None and isinstance(key[1], int):
            self._ask(key[0])
            address = self._addresses.get(key)
        return self.connection.channel() if address is None else self.connection.channel_to(address)

    def lose(self, key: LeaderKey, channel: Channel) -> None:
        """The broker there is gone: where to go instead is asked before the next attempt."""
        with self._mutex:
            self._addresses.pop(key, None)
        self.connection.lose(channel)

    def moved(self, key: LeaderKey, error: NotLeader) -> None:
        """Another one leads: the one that the error names, or who is asked for before the next attempt."""
        with self._mutex:
            self._addresses.pop(key, None)
            if isinstance(error.leader, str):
                self._addresses[key] = error.leader

    def has_left(self, key: LeaderKey, channel: Channel) -> bool:
        """Return whether another broker leads than that of the channel. Asks, unless that was done a moment ago.

        A leader that is stopped closes no connection, and answers nothing. Others know that it leads no more.
        """
        if not self._clustered or not isinstance(key[1], int):
            return False
        with suppress(HeadwaterError):
            self._ask(key[0], _DOUBTED)
        return self._addresses.get(key, channel.address) != channel.address

    def _ask(self, topic: str, pause: float = _AGAIN) -> None:
        now = time.monotonic()
        with self._mutex:
            if now - self._asked.get(topic, 0.0) < pause:
                return
            self._asked[topic] = now
        channel = self.connection.channel()
        try:
            request = pb.GetMetadataRequest(topics=[topic])
            self._learn(channel.stub.GetMetadata(request, timeout=_ASKING, metadata=self.connection.metadata))
        except ValueError:
            return  # closed by who found out first that it is dead
        except grpc.RpcError as failure:
            error = error_of(failure)
            if isinstance(error, UnknownTopic):
                raise error from None
            _log.debug("%s does not tell who leads %s: %s", channel.address, topic, failure)
            if error is None:
                self.connection.lose(channel)

    def _learn(self, metadata: pb.Metadata) -> None:
        addresses = {broker.id: Address(broker.host, broker.port) for broker in metadata.brokers}
        self._clustered = bool(metadata.cluster_id)
        if self._clustered:
            self.connection.learn(list(addresses.values()))
        with self._mutex:
            for topic in metadata.topics:
                for partition in topic.partitions:
                    key = (topic.topic.name, partition.partition)
                    self._addresses.pop(key, None)
                    if partition.leader in addresses:
                        self._addresses[key] = str(addresses[partition.leader])


class LeaderConnection(Connection):
    """Calls go to the broker that leads one partition, whichever that is at the moment."""

    def __init__(self, leaders: Leaders, key: LeaderKey) -> None:
        # Not as a connection of its own: it is a way through the one that all share.
        self._leaders = leaders
        self._key = key
        self._shared = leaders.connection
        self.config = self._shared.config
        self.metadata = self._shared.metadata
        self._closed = self._shared.ended

    def __str__(self) -> str:
        return str(self._shared)

    def channel(self) -> Channel:
        self.check_open()
        return self._leaders.channel(self._key)

    def lose(self, channel: Channel) -> None:
        self._leaders.lose(self._key, channel)

    def call(self, method: str, request: Any, *, timeout: float | None = None, **options: Any) -> Any:
        deadline = time.monotonic() + (self.config.timeout if timeout is None else timeout)
        for pause in pauses():
            response = super().call(method, request, timeout=max(deadline - time.monotonic(), 0.001), **options)
            error = _moved(_TOLD_WITHIN[method](response)) if method in _TOLD_WITHIN else None
            if error is None:
                return response
            self.moved(error)
            if time.monotonic() + pause >= deadline:
                raise error
            self._closed.wait(pause)
        raise AssertionError("there is always another pause")

    def explain(self, failure: grpc.RpcError, channel: Channel) -> tuple[HeadwaterError | None, str]:
        error = error_of(failure)
        if isinstance(error, NotLeader):
            self.moved(error)
        return super().explain(failure, channel)

    def moved(self, error: NotLeader) -> None:
        self._leaders.moved(self._key, error)

    def leads_elsewhere(self, channel: Channel) -> bool:
        return self._leaders.has_left(self._key, channel)

    def check_open(self) -> None:
        self._shared.check_open()

    @property
    def closed(self) -> bool:
        return self._shared.closed

    def close(self) -> None:
        """It is the shared one's to close."""

    def abandon_in_child(self) -> None:
        """It has nothing of its own."""


def _moved(partitions: Iterable[pb.FetchedPartition | pb.PartitionOffsets]) -> NotLeader | None:
    """Return what an answer says of a partition that is led elsewhere."""
    for partition in partitions:
        error = unpack_error(partition.error) if partition.HasField("error") else None
        if isinstance(error, NotLeader):
            return error
    return None
