"""Leadership: the partitions that this broker leads, and the leaders of the others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from headwater.cluster.etcd.keys import BrokerMember
from headwater.cluster.node_state import NodeState
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.markers import Markers
from headwater.cluster.replication.repair import can_be_spared
from headwater.cluster.replication.replica import NotLeading
from headwater.core.errors import LeaderNotReady, NotLeader, PartitionPoisoned, WriteFailed
from headwater.log import Appended
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
_LOOK: Final = 0.02
"""Seconds between two looks whether a partition has a leader by now."""
RESIGNING: Final = 10.0
"""Other brokers lead so many seconds before this one may resign again."""


class Leadership:
    """Answers for the partitions that are led here; for the others it says which broker leads them."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._resigned = float("-inf")

    # Leaders.

    def leads(self, partition: TopicPartition) -> bool:
        """In any thread: return whether appends to the partition are taken here."""
        local = self._state.by_partition.get(partition)
        return local is not None and local.leads and not self._may_be_replaced(local)

    def check_leads(self, partition: TopicPartition) -> None:
        """Raise NotLeader unless appends to the partition are taken here."""
        self._leading_here(partition)

    def _leading_here(self, partition: TopicPartition) -> LocalReplica:
        local = self._state.by_partition.get(partition)
        if local is None or not local.leads or self._may_be_replaced(local):
            raise self.not_leader(partition)
        return local

    def not_leader(self, partition: TopicPartition) -> NotLeader:
        """In any thread: the error that names the leader, as far as it is known."""
        member = self.leader_elsewhere(partition)
        return NotLeader(partition.topic, partition.partition, None if member is None else member.address)

    def leader_elsewhere(self, partition: TopicPartition) -> BrokerMember | None:
        """In any thread: the other broker that leads a partition, if it is known and alive."""
        membership = self._state.joined
        if membership is None or (topic := membership.view.topics.get(partition.topic)) is None:
            return None
        view = membership.view
        state, _ = view.partitions.get((topic.info.uuid, partition.partition), (None, 0))
        member = None if state is None else view.members.get(state.leader)
        return None if member is None or member.id == self._state.broker else member

    async def wait_for_leader(self, partition: TopicPartition, timeout: float) -> None:
        """Wait until another broker is known to lead a partition, or this one takes appends; `timeout` seconds at most.

        That takes a moment where a topic was just made. Nothing was done so far that could be done twice.
        """
        deadline = time.monotonic() + timeout
        while not self.leads(partition) and self.leader_elsewhere(partition) is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)

    # Doubts.

    def _may_be_replaced(self, local: LocalReplica) -> bool:
        """Return whether another broker may lead by now, without this one having heard of it.

        This one could do no harm; but its readers would wait for ever for records that another leader has.
        """
        return not self._lease_lasts() and local.replica.is_alone(time.monotonic())

    def _lease_lasts(self) -> bool:
        """Return whether nobody can have taken this broker for dead: etcd counts the lease from a later moment on."""
        registration = self._state.membership.registration
        return time.monotonic() - registration.confirmed <= registration.lease_seconds

    async def in_doubt(self, partitions: Iterable[TopicPartition], timeout: float) -> frozenset[TopicPartition]:
        """The partitions led here that another broker may lead by now, without this one having heard of it.

        There are none while the lease lasts. Without it, as when etcd is away, followers are asked which leader they
        follow, for `timeout` seconds at most.
        """
        if self._lease_lasts():
            return frozenset()
        led = [partition for partition in partitions if self.leads(partition)]
        sure = await asyncio.gather(*(self._is_sure(self._state.by_partition[tp], timeout) for tp in led))
        return frozenset(partition for partition, is_sure in zip(led, sure, strict=True) if not is_sure)

    async def _is_sure(self, local: LocalReplica, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await local.confirm(local.led)
        except (NotLeading, TimeoutError):
            return False
        return True

    # Reading and writing.

    def readable(self, partition: TopicPartition, uuid: bytes = b"") -> int:
        """In any thread: the offset before which readers may see records; raises NotLeader, and LeaderNotReady.

        Raises NotLeader also if a topic was made again under its name, and only the one before it is led here so far.
        """
        local = self._leading_here(partition)
        topic = self._state.membership.view.topics.get(partition.topic)
        if topic is not None and topic.info.uuid == uuid != local.key[0]:
            raise self.not_leader(partition)
        readable = local.replica.readable
        if readable is None:
            raise LeaderNotReady(*partition)
        return readable

    def markers(self, partition: TopicPartition) -> Markers:
        """In any thread: the delete markers that may be gone from a partition that is led here; raises NotLeader."""
        return self._leading_here(partition).log.markers

    @contextmanager
    def leading(self, partition: TopicPartition) -> Iterator[None]:
        """In a thread: the right to append to a partition, for the length of a block; raises NotLeader."""
        local = self._state.by_partition.get(partition)
        try:
            if local is None:
                raise NotLeading
            with local.log.leading():
                yield
        except NotLeading:
            raise self.not_leader(partition) from None

    def acknowledged(
        self, partition: TopicPartition, appended: asyncio.Future[Appended], *, by_all: bool
    ) -> asyncio.Future[Appended]:
        """The outcome of an append, once it is acknowledged; fails with NotLeader.

        The epoch is that of this moment, not of the moment when the append is done: see `LocalReplica.acknowledged`.
        """
        local = self._leading_here(partition)
        return asyncio.ensure_future(self._acknowledged(local, appended, local.led, by_all))

    async def _acknowledged(
        self, local: LocalReplica, appended: asyncio.Future[Appended], epoch: int, by_all: bool
    ) -> Appended:
        try:
            return await local.acknowledged(appended, epoch, by_all=by_all)
        except NotLeading:
            raise self.not_leader(local.tp) from None
        except (WriteFailed, PartitionPoisoned) as error:
            if not self.resign(local, error):
                raise
            raise NotLeader(*local.tp, None) from error

    def with_stage(self, partition: TopicPartition) -> tuple[LocalReplica, LocalReplica]:
        """The replicas of a partition and of its stage log, both led here in one epoch; raises NotLeader."""
        local = self._leading_here(partition)
        stage = local.stage
        if stage is None or not stage.leads or stage.led != local.led:
            raise self.not_leader(partition)
        return local, stage

    def staged(self) -> list[TopicPartition]:
        """The partitions with stage logs that are led here."""
        return [local.tp for local in self._state.replicas.values() if local.stage is not None and local.leads]

    # Giving it up.

    def resign(self, local: LocalReplica, why: object, pause: float = RESIGNING) -> bool:
        """Let other brokers lead, by registering anew, but not again within a pause; False if nobody else can."""
        state, membership = local.replica.state, self._state.membership
        if state is None or not can_be_spared(state, self._state.broker, 1, membership.view.alive):
            return False
        if self._state.is_deleted(local):
            return False
        if time.monotonic() - self._resigned > pause:
            self._resigned = time.monotonic()
            _log.error("this broker gives up the leadership of %s: %s", local, why)
            membership.registration.renew()
        return True
