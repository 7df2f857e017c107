"""What the brokers of a cluster ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import grpc

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call, Refused, check_readable
from headwater.broker.security.access import BROKER
from headwater.cluster.node import ClusterNode
from headwater.core.errors import PermissionDenied
from headwater.v1 import broker_pb2 as pb


class Replicating:
    """The methods by which followers keep up, and by which the controller compares logs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def _node(self) -> ClusterNode:
        if self._core.cluster is None:
            raise Refused("the broker is in no cluster")
        return self._core.cluster

    async def replicate(
        self,
        requests: AsyncIterator[pb.ReplicaFetch],  # noqa: ARG002 - read by the call, which costs less
        call: Call,
    ) -> AsyncGenerator[pb.ReplicaFetched]:
        node = self._node
        _check_broker(call)
        answers: asyncio.Queue[pb.ReplicaFetched | None] = asyncio.Queue()
        serving: set[asyncio.Task[None]] = set()

        async def serve(question: pb.ReplicaFetch) -> None:
            answers.put_nowait(await node.serve(question))

        async def take_in() -> None:
            while (question := await call.context.read()) is not grpc.aio.EOF:
                check_readable(question)
                task = asyncio.create_task(serve(question))
                serving.add(task)
                task.add_done_callback(serving.discard)

        def end(_: object) -> None:
            answers.put_nowait(None)

        reading = asyncio.create_task(take_in())
        draining = asyncio.create_task(self._core.draining.wait())
        for task in (reading, draining):
            task.add_done_callback(end)
        try:
            while (answer := await answers.get()) is not None:
                yield answer
            if draining.done():
                raise Refused("the broker is stopping: follow another leader")
            await reading
        finally:
            for one in (reading, draining, *serving):
                one.cancel()

    async def read_replica(self, request: pb.ReadReplicaRequest, call: Call) -> pb.ReadReplicaResponse:
        _check_broker(call)
        return await self._node.read_replica(request)

    async def list_log_ends(self, request: pb.ListLogEndsRequest, call: Call) -> pb.ListLogEndsResponse:
        call.check("read", "broker", BROKER)
        keys = [(place.topic_uuid, place.partition) for place in request.partitions]
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


def _check_broker(call: Call) -> None:
    """What is not acknowledged yet is for nobody but brokers, and neither is a say in what is."""
    if not call.by_broker:
        raise PermissionDenied(call.caller.name, "admin", "broker", BROKER)
