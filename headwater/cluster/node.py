"""A node: a broker's part in its cluster.

It goes by the view of the cluster that the membership keeps. The replica manager hosts replicas, leadership answers for
the partitions that are led here, and the repair manager looks after damage.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import grpc

from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.forced_election import ForcedElection
from headwater.cluster.control.identity import BrokerIdentity
from headwater.cluster.control.membership import ClusterMembership
from headwater.cluster.control.moves import Moves
from headwater.cluster.control.replication_factor import ReplicationFactors
from headwater.cluster.control.sizes import Sizes
from headwater.cluster.control.topics import ClusterTopics
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, PartitionKey
from headwater.cluster.internal import InternalTopics
from headwater.cluster.leadership import Leadership
from headwater.cluster.link import password_of
from headwater.cluster.node_state import NodeState
from headwater.cluster.repair_manager import RepairManager
from headwater.cluster.replica_manager import ReplicaManager
from headwater.cluster.replication.cleaning import Cleaning
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.leading import answer_follower
from headwater.cluster.replication.repair import answer_replica
from headwater.core.config import BrokerConfig
from headwater.core.errors import BrokerUnavailable, NotLeader
from headwater.embedded.directory_store import DirectoryStore
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)
_DRAINING: Final = 10.0
_ASKING: Final = 5.0


class ClusterNode:
    """A broker in a cluster. It belongs to one event loop."""

    def __init__(
        self,
        store: DirectoryStore,
        threads: DiskThreads,
        etcd: Etcd,
        identity: BrokerIdentity,
        config: BrokerConfig,
        tell: Callable[[TopicPartition], None],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`tell` is called when there is more to read in a partition that is led here.

        With `credentials` the other brokers are called over TLS.
        """
        self.store = store
        store.always_repair()
        self.cluster = identity.cluster
        self.broker = identity.broker
        self.threads = threads
        self._lease_seconds = ceil(config.etcd_lease)
        self._etcd = etcd
        self._identity = identity
        self._state = state = NodeState(self.broker, threads, credentials)
        self.leadership = Leadership(state)
        self.repairs = RepairManager(state, self.leadership)
        self.replicas = ReplicaManager(
            state, store, self.leadership, self.repairs, self._is_same_etcd, tell, config.catch_up_bytes_per_second
        )
        self.sizes = Sizes(self.broker, state.replicas, state.links, threads)
        self.internal = InternalTopics(self, config.internal_partitions, config.replication)
        self.readers: Callable[[], Awaitable[Mapping[PartitionKey, int] | None]] = _nobody_reads
        """Returns the offset before which all groups are done, in each partition that they read; None if not known."""
        steward = store.defaults.steward
        self.cleaning = Cleaning(threads, store.elapsed, steward, self.replicas.for_each, self.replicas.config_of)

    # Membership.

    async def start(self, address: str) -> None:
        """Join the cluster. Raises EtcdUnavailable, EtcdRefused and StoreInUse."""
        membership = ClusterMembership(
            self._etcd,
            self._identity,
            address,
            ask=self._ask,
            missing=self.replicas.missing,
            lease_seconds=self._lease_seconds,
        )
        membership.view.on_change(self.replicas.observe)
        membership.registration.on_incarnation(self._become)
        self._state.joined = membership
        await membership.start()
        self.replicas.begin()
        self.begin(self.repairs.look_for_damage())
        self.begin(self.cleaning.run(self._read_so_far))

    async def _read_so_far(self) -> Mapping[PartitionKey, int] | None:
        return await self.readers()

    def _become(self, incarnation: int) -> None:
        self._state.links.secret = self.membership.registration.secret
        self.replicas.become(incarnation)

    @property
    def membership(self) -> ClusterMembership:
        """The membership of the cluster; raises StoreError before the broker has begun to join."""
        return self._state.membership

    async def drain(self) -> None:
        """Let other brokers lead, as far as there are any, before this one stops to answer."""
        if self._state.joined is not None:
            await self._state.joined.drain(_DRAINING)

    async def leave(self) -> None:
        """End everything, and make durable how much is acknowledged."""
        await self._state.end_tasks()
        await self._state.links.close()
        if self._state.joined is not None:
            await self._state.joined.leave()
        else:
            await self._etcd.close()
        await self.replicas.keep_watermarks()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for as long as it takes, at most until the node leaves."""
        return self._state.begin(work)

    async def _is_same_etcd(self) -> bool:
        """Return whether topics that are gone from etcd were deleted. An emptied etcd has no say in it."""
        item = await self._etcd.get(self.membership.view.keys.secret)
        same = item is not None and item.value.decode() == self._state.links.secret.hex()
        if not same:
            _log.error("etcd has lost its topics, and the cluster's secret: nothing is deleted here")
        return same

    # Commands.

    @property
    def topics(self) -> ClusterTopics:
        """Creates, changes and deletes topics."""
        return ClusterTopics(self._etcd, self.membership.view)

    def forced_election(self, topic: ClusterTopic, number: int, broker: int) -> ForcedElection:
        """An operator's election of a broker for a partition that no broker may lead any more."""
        return ForcedElection(self._etcd, self.membership.view, self._ask, topic, number, broker)

    @property
    def moves(self) -> Moves:
        """Moves replicas from broker to broker."""
        return Moves(self._etcd, self.membership.view, self.sizes.at)

    @property
    def replication_factors(self) -> ReplicationFactors:
        """Gives partitions the number of replicas that their topics ask for."""
        return ReplicationFactors(self)

    # Calls of other brokers.

    def is_broker(self, password: str) -> bool:
        """Return whether a caller with this password is another broker of the cluster."""
        secret = self._state.links.secret
        return bool(secret) and hmac.compare_digest(password, password_of(secret))

    async def serve(self, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        """Answer a follower, as soon as there is something or its patience is over."""
        local = self._state.replicas.get((question.topic_uuid, question.partition))
        return await answer_follower(local, question, self.threads)

    def log_ends(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        """The ends of logs that are whole, or as whole as they can be."""
        held = ((key, self._state.replicas.get(key)) for key in keys)
        return {key: local.replica.log_end for key, local in held if local is not None and self.repairs.vouches(local)}

    async def read_replica(self, request: pb.ReadReplicaRequest) -> pb.ReadReplicaResponse:
        """The records of a replica, for one that is damaged; raises NotLeader if it is not here."""
        local = self._state.replicas.get((request.topic_uuid, request.partition))
        if local is None:
            raise NotLeader("", request.partition, None)
        answer: pb.ReadReplicaResponse = await self.threads.read(answer_replica, local.log, request)
        return answer

    # Calls to other brokers.

    async def call_leader(
        self, partition: TopicPartition, method: str, request: Any, timeout: float, user: str | None = None
    ) -> Any:
        """Call the other broker that leads a partition; raises NotLeader if there is none.

        With `user`, the other broker takes it for a call of this user.
        """
        member = self.leadership.leader_elsewhere(partition)
        if member is None:
            raise self.leadership.not_leader(partition)
        return await self.call_broker(member.id, method, request, timeout, user)

    async def call_broker(self, broker: int, method: str, request: Any, timeout: float, user: str | None = None) -> Any:
        """Call another broker; raises what that one raises, or BrokerUnavailable."""
        member = self.membership.view.members.get(broker)
        if member is None:
            raise BrokerUnavailable(f"broker {broker}", method, 0, "it is not alive")
        return await self._state.links.to(member).call(method, request, timeout, user)

    async def _ask(self, member: BrokerMember, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        """For the controller: the ends of a broker's logs, or of those that are here."""
        if member.id == self.broker:
            return self.log_ends(keys)
        partitions = [pb.TopicPartition(topic_uuid=uuid, partition=number) for uuid, number in keys]
        request = pb.ListLogEndsRequest(partitions=partitions)
        response = await self._state.links.to(member).log_ends(request, timeout=_ASKING)
        return {(end.topic_uuid, end.partition): LogEnd(end.epoch, end.end) for end in response.ends}


async def _nobody_reads() -> Mapping[PartitionKey, int]:
    return {}
