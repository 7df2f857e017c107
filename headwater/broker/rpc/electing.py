"""Elections by an operator's command, over the wire: any broker of the cluster takes it."""

from __future__ import annotations

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.core.errors import StoreError
from headwater.v1 import broker_pb2 as pb


class Electing:
    """The method by which a partition is led again that nobody may lead any more."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def elect_leader(self, request: pb.ElectLeaderRequest, call: Call) -> pb.ElectLeaderResponse:
        place = request.partition
        call.check("admin", "topic", place.topic)
        node = self._core.cluster
        if node is None:
            raise StoreError("the broker is in no cluster: it leads everything that it has")
        election = node.forced_election(await node.topics.get(place.topic), place.partition, request.broker)
        found = await election.look()
        epoch = found.epoch if request.dry_run else await election.hold(request.revision)
        return pb.ElectLeaderResponse(
            revision=found.revision,
            epoch=epoch,
            replicas=[pb.ReplicaStanding(**one._asdict()) for one in found.replicas],
        )
