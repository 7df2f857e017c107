"""A stream of fetched records, and the thread that listens to it.

The broker sends no more bytes than it was allowed to, and is allowed more when the consumer has taken as much.
"""

from __future__ import annotations

import sys
import threading
import time
from queue import SimpleQueue
from typing import Any, Protocol
from weakref import ref

import grpc

from headwater.client.connection import Channel
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import Fetched


class StreamListener(Protocol):
    """Takes what a stream brings. The calls come from the thread that listens."""

    def hear(self, stream: FetchStream, response: Fetched) -> None:
        """Keep what came, and wake the consumer."""

    def ended(self, stream: FetchStream, failure: grpc.RpcError | None) -> None:
        """Learn that no more will come."""


class FetchStream:
    """One stream of fetched records from a broker, until it breaks or is given up."""

    def __init__(self, channel: Channel, request: pb.FetchRequest, wanted: dict[TopicPartition, int], metadata: Any):
        self.channel = channel
        self.partitions = tuple(wanted)
        self.next = wanted
        """The next offset of each partition. A partition that failed is left out."""
        self.heard = time.monotonic()
        self._share: int = request.max_bytes
        self._allowed = self._share
        self._requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
        self._requests.put(request)
        self.call = channel.stub.FetchStream(iter(self._requests.get, None), metadata=metadata)

    def took(self, response: Fetched) -> None:
        """Count an answer that has come."""
        self.heard = time.monotonic()
        self._allowed -= response.size

    def allow(self, held: int) -> None:
        """Allow as much again, if there is room for it beside the bytes that are held."""
        if self._allowed + held <= self._share:
            if self._allowed <= 0:
                self.heard = time.monotonic()  # until now it had to be silent
            self._allowed += self._share
            self._requests.put(pb.FetchRequest(max_bytes=self._share))

    def silent(self, patience: float) -> bool:
        """Return whether nothing has come for so many seconds, though something should have."""
        return self._allowed > 0 and time.monotonic() - self.heard > patience

    def end(self) -> None:
        """Cancel the call: nobody listens any more."""
        self.call.cancel()
        self._requests.put(None)

    def listen(self, listener: StreamListener) -> None:
        """Pass on what comes, in a thread of its own, for as long as the listener is there to take it."""
        # A consumer that was dropped is not kept alive by what it waits for.
        weakly = ref(listener, lambda _: _end(self))
        threading.Thread(target=_listen, args=(weakly, self), name="headwater-consumer", daemon=True).start()


def _end(stream: FetchStream) -> None:
    """End a stream; not at the end of the program, when gRPC's threads have stopped, with whatever locks they had."""
    if not sys.is_finalizing():
        stream.end()


def _listen(weakly: ref[StreamListener], stream: FetchStream) -> None:
    failure: grpc.RpcError | None = None
    try:
        for response in stream.call:
            listener = weakly()
            if listener is None:
                break
            listener.hear(stream, response)
            del listener, response
    except grpc.RpcError as error:
        failure = error
    stream.end()
    listener = weakly()
    if listener is not None:
        listener.ended(stream, failure)
