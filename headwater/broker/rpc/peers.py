"""The RPCs that the brokers of a cluster call at each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import grpc

from headwater.broker.backend import Refused
from headwater.broker.clustered.backend import ClusteredBackend
from headwater.broker.core import Core
from headwater.broker.rpc.call import Call, check_readable
from headwater.broker.rpc.messages import pack_range, unpack_portions
from headwater.broker.security.access import BROKER
from headwater.core.errors import PermissionDenied
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb


class PeerMethods(Protocol):
    """The methods between brokers."""

    def replicate(self, requests: AsyncIterator[pb.ReplicaFetch], call: Call) -> AsyncGenerator[pb.ReplicaFetched]:
        """Send followers what they lack."""

    async def read_replica(self, request: pb.ReadReplicaRequest, call: Call) -> pb.ReadReplicaResponse:
        """Send frames of a replica to one that is damaged."""

    async def list_log_ends(self, request: pb.ListLogEndsRequest, call: Call) -> pb.ListLogEndsResponse:
        """Tell the controller how far logs go."""

    async def list_readers(self, request: pb.ListReadersRequest, call: Call) -> pb.ListReadersResponse:
        """Tell leaders how far groups have read."""

    async def hold_stages(self, request: pb.StagesRequest, call: Call) -> pb.HoldStagesResponse:
        """Keep what is staged for a transaction."""

    async def apply_stages(self, request: pb.StagesRequest, call: Call) -> pb.ApplyStagesResponse:
        """Append what is decided."""

    async def list_undone(self, request: pb.ListUndoneRequest, call: Call) -> pb.ListUndoneResponse:
        """Tell leaders which stages are still needed."""


class NoPeerMethods:
    """The methods of a broker that is in no cluster: it refuses all of them."""

    async def replicate(
        self,
        requests: AsyncIterator[pb.ReplicaFetch],  # noqa: ARG002
        call: Call,  # noqa: ARG002
    ) -> AsyncGenerator[pb.ReplicaFetched]:
        raise _alone()
        yield pb.ReplicaFetched()  # makes it a generator

    async def read_replica(self, request: pb.ReadReplicaRequest, call: Call) -> pb.ReadReplicaResponse:  # noqa: ARG002
        raise _alone()

    async def list_log_ends(self, request: pb.ListLogEndsRequest, call: Call) -> pb.ListLogEndsResponse:  # noqa: ARG002
        call.check("read", "broker", BROKER)
        raise _alone()

    async def list_readers(self, request: pb.ListReadersRequest, call: Call) -> pb.ListReadersResponse:  # noqa: ARG002
        raise _alone()

    async def hold_stages(self, request: pb.StagesRequest, call: Call) -> pb.HoldStagesResponse:  # noqa: ARG002
        raise _alone()

    async def apply_stages(self, request: pb.StagesRequest, call: Call) -> pb.ApplyStagesResponse:  # noqa: ARG002
        raise _alone()

    async def list_undone(self, request: pb.ListUndoneRequest, call: Call) -> pb.ListUndoneResponse:  # noqa: ARG002
        raise _alone()


def _alone() -> Refused:
    return Refused("the broker is in no cluster")


class ClusterPeerMethods:
    """The methods of a broker in a cluster."""

    def __init__(self, core: Core, backend: ClusteredBackend) -> None:
        self._core = core
        self._node = backend.node
        self._groups = backend.group_home
        self._transactions = backend.transactions

    # Replicas.

    async def replicate(
        self,
        requests: AsyncIterator[pb.ReplicaFetch],  # noqa: ARG002 - read by the call, which costs less
        call: Call,
    ) -> AsyncGenerator[pb.ReplicaFetched]:
        _check_broker(call)
        answers: asyncio.Queue[pb.ReplicaFetched | None] = asyncio.Queue()
        serving: set[asyncio.Task[None]] = set()

        async def serve(question: pb.ReplicaFetch) -> None:
            answers.put_nowait(await self._node.serve(question))

        async def take_in() -> None:
            while (question := await call.context.read()) is not grpc.aio.EOF:
                check_readable(question)
                task = asyncio.create_task(serve(question))
                serving.add(task)
                task.add_done_callback(serving.discard)

        def end(_: object) -> None:
            answers.put_nowait(None)

        reading = asyncio.create_task(take_in())
        draining = asyncio.create_task(self._core.runtime.draining.wait())
        reading.add_done_callback(end)
        draining.add_done_callback(end)
        try:
            while (answer := await answers.get()) is not None:
                yield answer
            if draining.done():
                raise Refused("the broker is stopping: follow another leader")
            await reading
        finally:
            for running in (reading, draining, *serving):
                running.cancel()

    async def read_replica(self, request: pb.ReadReplicaRequest, call: Call) -> pb.ReadReplicaResponse:
        _check_broker(call)
        return await self._node.read_replica(request)

    async def list_log_ends(self, request: pb.ListLogEndsRequest, call: Call) -> pb.ListLogEndsResponse:
        call.check("read", "broker", BROKER)
        keys = [(named.topic_uuid, named.partition) for named in request.partitions]
        ends = self._node.log_ends(keys)
        sizes = await self._node.sizes.here(keys) if request.sizes else {}
        return pb.ListLogEndsResponse(
            ends=[
                pb.LogEnd(
                    topic_uuid=uuid, partition=number, epoch=end.epoch, end=end.end, bytes=sizes.get((uuid, number), 0)
                )
                for (uuid, number), end in ends.items()
            ]
        )

    # Groups.

    async def list_readers(self, request: pb.ListReadersRequest, call: Call) -> pb.ListReadersResponse:  # noqa: ARG002
        _check_broker(call)
        answer = await self._groups.readers_here()
        return pb.ListReadersResponse(
            coordinated=answer.coordinated,
            groups=answer.groups,
            readers=[
                pb.Reader(group=group, topic_uuid=uuid, partition=number, offset=-1 if offset is None else offset)
                for group, (uuid, number), offset in answer.readers
            ],
        )

    # Transactions.

    async def hold_stages(self, request: pb.StagesRequest, call: Call) -> pb.HoldStagesResponse:
        _check_broker(call)
        partition = TopicPartition(request.partition.topic, request.partition.partition)
        for portion in unpack_portions(request):
            self._transactions.stages.hold(partition, request.partition.topic_uuid, portion.ranges)
        return pb.HoldStagesResponse()

    async def apply_stages(self, request: pb.StagesRequest, call: Call) -> pb.ApplyStagesResponse:
        _check_broker(call)
        partition = TopicPartition(request.partition.topic, request.partition.partition)
        applying = self._transactions.stages.apply(
            partition, request.partition.topic_uuid, request.writer, unpack_portions(request)
        )
        # A caller that gives up does not stop it in the middle.
        bases = await asyncio.shield(asyncio.ensure_future(applying))
        return pb.ApplyStagesResponse(applied=[pb.AppliedPortion(base_offset=base) for base in bases])

    async def list_undone(self, request: pb.ListUndoneRequest, call: Call) -> pb.ListUndoneResponse:
        _check_broker(call)
        undone = await self._transactions.undone_here((request.partition.topic_uuid, request.partition.partition))
        return pb.ListUndoneResponse(
            coordinated=[pb.TopicPartition(topic=topic, partition=number) for topic, number in undone.coordinated],
            undone=map(pack_range, undone.ranges),
        )


def _check_broker(call: Call) -> None:
    """Raise PermissionDenied for users: brokers alone see and decide what is not acknowledged yet."""
    if not call.by_broker:
        raise PermissionDenied(call.caller.name, "admin", "broker", BROKER)
