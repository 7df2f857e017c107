"""A link: the one stream by which a broker follows another, for all the partitions that the other leads.

Each partition has one question on its way at a time. When the stream breaks every question fails, and the next one
opens another stream.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from typing import Any, Final

import grpc

from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.core.errors import BrokerUnavailable
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of
from headwater.wire.service import Stub

_PATIENCE: Final = 10.0
"""An answer that takes longer does not come. Seconds."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, not the one that has just failed
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
)


PASSWORD_KEY: Final = "headwater-cluster"
"""By which brokers know each other: what stands there only those know who can read the cluster's secret."""

USER_KEY: Final = "headwater-user-bin"
"""The name of the user whose call a broker carries to another one. It counts only beside the password."""


def password_of(secret: bytes) -> str:
    """The password that a broker gives to another one of its cluster."""
    return hmac.digest(secret, b"broker", "sha256").hex()


class Link:
    """To one incarnation of another broker. It belongs to one event loop."""

    def __init__(self, member: BrokerMember, secret: bytes, credentials: grpc.ChannelCredentials | None) -> None:
        self.member = member
        self._metadata = ((PASSWORD_KEY, password_of(secret)),)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(member.address, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(member.address, credentials, options=OPTIONS)
        self._stub: Any = Stub(self._channel)
        self._questions: asyncio.Queue[pb.ReplicaFetch] = asyncio.Queue()
        self._answers: dict[PartitionKey, asyncio.Future[pb.ReplicaFetched]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        """Ask for what is behind a log's end; raises BrokerUnavailable."""
        key = (question.topic_uuid, question.partition)
        answer: asyncio.Future[pb.ReplicaFetched] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        if self._reading is None or self._reading.done():
            self._questions = asyncio.Queue()
            self._reading = asyncio.create_task(self._read(self._questions))
        self._questions.put_nowait(question)
        try:
            async with asyncio.timeout(_PATIENCE + question.max_wait_ms / 1000):
                return await answer
        except BrokerUnavailable:  # which is a TimeoutError too
            raise
        except TimeoutError:
            self._end()  # nobody says anything any more: whatever it is, a new stream may be better
            raise self._unavailable("no answer") from None
        finally:
            if self._answers.get(key) is answer:
                del self._answers[key]

    async def log_ends(self, request: pb.ListLogEndsRequest, timeout: float) -> pb.ListLogEndsResponse:
        """The ends of the other broker's logs; raises BrokerUnavailable."""
        try:
            response: pb.ListLogEndsResponse = await self._stub.ListLogEnds(
                request, timeout=timeout, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error.details() or error.code().name) from None
        return response

    async def call(self, method: str, request: Any, timeout: float, user: str | None = None) -> Any:
        """Call a method of the other broker; raises what that one raises, or BrokerUnavailable.

        With `user`, the other broker takes it for a call of this user.
        """
        metadata = self._metadata if user is None else (*self._metadata, (USER_KEY, user.encode()))
        try:
            return await getattr(self._stub, method)(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            told = error_of(error)
            unavailable = self._unavailable(error.details() or error.code().name, unknown=True)
            raise (unavailable if told is None else told) from None

    async def _read(self, questions: asyncio.Queue[pb.ReplicaFetch]) -> None:
        """Take the answers for as long as the stream lasts."""
        why = "the stream has ended"
        call = self._stub.Replicate(metadata=self._metadata)
        writing = asyncio.create_task(_send(call, questions))
        try:
            async for fetched in call:
                answer = self._answers.get((fetched.topic_uuid, fetched.partition))
                if answer is not None and not answer.done():
                    answer.set_result(fetched)
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
        finally:
            writing.cancel()
            call.cancel()
            answers, self._answers = self._answers, {}
            for answer in answers.values():
                if not answer.done():
                    answer.set_exception(self._unavailable(why))

    def _unavailable(self, why: str, *, unknown: bool = False) -> BrokerUnavailable:
        where = f"broker {self.member.id} at {self.member.address}"
        return BrokerUnavailable(where, "a call of another broker", 0, why, unknown=unknown)

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        """Cut it; questions fail."""
        self._end()
        if self._reading is not None:
            with suppress(asyncio.CancelledError):
                await self._reading
        await self._channel.close()


async def _send(call: Any, questions: asyncio.Queue[pb.ReplicaFetch]) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has broken: its reader tells
        while True:
            await call.write(await questions.get())


class Links:
    """The links of a broker, made when they are first needed."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self.secret = b""
        self._credentials = credentials
        self._links: dict[int, Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def to(self, member: BrokerMember) -> Link:
        """The link to a broker, in the incarnation that it has."""
        known = self._links.get(member.id)
        if known is None or known.member != member:
            self.drop(member.id)
            known = self._links[member.id] = Link(member, self.secret, self._credentials)
        return known

    def drop(self, broker: int) -> None:
        """The broker is gone, or another one by now."""
        known = self._links.pop(broker, None)
        if known is not None:
            task = asyncio.create_task(known.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Cut all of them."""
        for broker in list(self._links):
            self.drop(broker)
        await asyncio.gather(*self._closing, return_exceptions=True)
