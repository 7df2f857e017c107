"""The replica manager: this broker has the replicas that the cluster wants here, and each has its role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from headwater.cluster.control.holdings import Holdings
from headwater.cluster.control.metadata import Proposal
from headwater.cluster.control.view import Changes
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, PartitionKey
from headwater.cluster.leadership import Leadership
from headwater.cluster.node_state import NodeState
from headwater.cluster.repair_manager import RepairManager
from headwater.cluster.replication.catch_up import CatchUp
from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.following import Follower
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.repair import can_be_spared
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.core.config import TopicConfig
from headwater.core.errors import HeadwaterError
from headwater.embedded.directory_store import DirectoryStore, stage_uuid
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
_TICK: Final = 0.2
"""Seconds between two looks for changes of in-sync sets, and for records that became durable by themselves."""
_KEEPING: Final = 1.0
"""Seconds between two times that high watermarks are made durable."""
_AGAIN: Final = 1.0


class ReplicaManager:
    """Hosts replicas: it opens and drops their logs, and leads or follows. For one event loop."""

    def __init__(
        self,
        state: NodeState,
        store: DirectoryStore,
        leadership: Leadership,
        repairs: RepairManager,
        is_same_etcd: Callable[[], Awaitable[bool]],
        tell: Callable[[TopicPartition], None],
        catch_up_bytes_per_second: int | None,
    ) -> None:
        """`tell` is called when there is more to read in a partition that is led here.

        `is_same_etcd` says whether topics that are gone from etcd were deleted.
        """
        self._state = state
        self._leadership = leadership
        self._repairs = repairs
        self._tell = tell
        self._catch_up = CatchUp(catch_up_bytes_per_second)
        self._holdings = Holdings(store, state.threads, is_same_etcd)
        self._when_led: list[Callable[[LocalReplica], None]] = []
        self._repeated = RepeatedLog(_log)
        self._changed = asyncio.Event()

    def on_led(self, callback: Callable[[LocalReplica], None]) -> None:
        """Have `callback` called whenever a partition is led here from then on, and takes appends."""
        self._when_led.append(callback)

    def begin(self) -> None:
        """Look after replicas from now on."""
        self._state.begin(self._keep_up())
        self._state.begin(self._every(_TICK, self._tend))
        self._state.begin(self._every(_KEEPING, self._keep_watermark))

    async def keep_watermarks(self) -> None:
        """Make durable how much is acknowledged, as far as it is known."""
        await self.for_each(self._keep_watermark)

    # The view of the cluster.

    def observe(self, changes: Changes) -> None:
        """Take in changes of the view."""
        for key in changes.partitions:
            local = self._state.replicas.get(key)
            known = self._state.membership.view.partitions.get(key)
            if local is not None and known is not None:
                local.observe(*known)
        self._repairs.try_again(None if changes.members else changes.partitions)
        for local in self._state.replicas.values() if changes.members else ():
            local.wake()
        self._changed.set()

    def become(self, incarnation: int) -> None:
        """The broker is registered as this incarnation; 0 is without a registration."""
        if incarnation:  # without a registration it goes on as who it was: the protocol sees to it that this is safe
            for local in self._state.replicas.values():
                if local.partition is None:  # a stage log goes with its partition
                    local.become(incarnation)
        self._changed.set()

    async def _keep_up(self) -> None:
        """Have the topics and replicas here that the cluster wants here, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._host()
            except (HeadwaterError, OSError) as error:
                _log.error("this broker cannot create all topics and replicas that it should hold: %s", error)
                await asyncio.sleep(_AGAIN)
                self._changed.set()

    async def _host(self) -> None:
        view = self._state.membership.view
        self._forget_deleted()  # first: what comes under the name of a deleted topic takes its directory away
        for topic in list(view.topics.values()):
            await self._holdings.adopt(topic)
        self._forget_deleted()
        await self._holdings.keep_only(view.topics)
        for key, (state, revision) in list(view.partitions.items()):
            owner = view.topic_of(key[0])
            if owner is not None and self._state.broker not in state.replicas:
                if key in self._state.replicas:
                    self._forget(self._state.replicas[key])
                await self._holdings.drop(owner.info, key[1], state.epoch)
            if owner is None or self._state.broker not in state.replicas:
                continue
            await self._holdings.adopt(owner)  # it may have come while the others were adopted
            known_here = self._state.replicas.get(key)
            wants_stage = owner.staged and (known_here is None or known_here.stage is None)
            # Both logs are here before the partition can be led: who is in sync has what is in either.
            stage_log = await self._holdings.stage_log(owner.info, key[1]) if wants_stage else None
            if known_here is not None:
                local = known_here
                local.require(owner.min_insync)
            else:
                local = self._open(key, owner, await self._holdings.log(owner.info, key[1]))
                known = view.partitions.get(key, (state, revision))
                local.become(self._state.membership.registration.incarnation)
                local.observe(*known)
                local.task = self._state.begin(self._play(local))
            if stage_log is not None:
                self._open_stage(local, stage_log)

    def _forget_deleted(self) -> None:
        for local in list(self._state.replicas.values()):
            if local.partition is None and self._state.is_deleted(local):
                self._forget(local)

    def _open(self, key: PartitionKey, topic: ClusterTopic, log: DurableLog) -> LocalReplica:
        partition = TopicPartition(topic.info.name, key[1])
        local = LocalReplica(key, partition, log, self._state.broker, topic.min_insync, self._tell)
        self._state.replicas[key] = self._state.by_partition[partition] = local
        return local

    def _open_stage(self, local: LocalReplica, log: DurableLog) -> None:
        key = (stage_uuid(local.key[0]), local.key[1])
        stage = self._state.replicas[key] = LocalReplica(
            key, local.tp, log, self._state.broker, local.min_insync, lambda _: None
        )
        local.keep_stage(stage)
        stage.task = self._state.begin(self._play(stage))

    def _forget(self, local: LocalReplica) -> None:
        if local.stage is not None:
            self._forget(local.stage)
        if local.task is not None:
            local.task.cancel()
        del self._state.replicas[local.key]
        self._repairs.forget(local.key)
        if self._state.by_partition.get(local.tp) is local:
            del self._state.by_partition[local.tp]

    async def missing(self) -> Collection[PartitionKey]:
        """Before the broker is registered: the partitions of which acknowledged records are missing here.

        Damaged records count as missing if other brokers have them.
        """
        view = self._state.membership.view
        missing: set[PartitionKey] = set()
        leaving: set[PartitionKey] = set()
        for key, (state, _) in list(view.partitions.items()):
            topic = view.topic_of(key[0])
            if topic is None or self._state.broker not in state.replicas:
                continue
            await self._holdings.adopt(topic)
            spare = can_be_spared(state, self._state.broker, topic.min_insync, view.alive)
            for log_key, log in (await self._logs_of(key, topic)).items():
                if log.short or (spare and await self._state.threads.read(log.damaged_at) is not None):
                    leaving.add(log_key)
                    missing.add(key)
        self._repairs.keep_anew(leaving)
        return missing

    async def _logs_of(self, key: PartitionKey, topic: ClusterTopic) -> Mapping[PartitionKey, DurableLog]:
        """The log of a partition, and its stage log if it has one."""
        local = self._state.replicas.get(key)
        logs = {key: await self._holdings.log(topic.info, key[1]) if local is None else local.log}
        stage = None if local is None else local.stage
        if stage is not None:
            logs[stage.key] = stage.log
        elif topic.staged:
            logs[stage_uuid(key[0]), key[1]] = await self._holdings.stage_log(topic.info, key[1])
        return logs

    # Roles.

    async def _play(self, local: LocalReplica) -> None:
        """Take on the role that the cluster gives a replica, for ever."""
        while True:
            replica = local.replica
            epoch = replica.epoch
            try:
                if replica.state is None or (not replica.leads and replica.state.leader < 0):
                    await self._state.threads.write(local.log.follow, epoch)
                elif replica.leads:
                    await self._state.threads.write(local.log.lead, epoch)
                    if local.replica is replica and replica.epoch == epoch:
                        local.led = epoch
                        local.appended()
                        _log.info("%s is led here, in epoch %d", local, epoch)
                        for callback in self._when_led if local.partition is None else ():
                            callback(local)
                else:
                    await self._state.threads.write(local.log.follow, epoch)
                    await self._repairs.mend(local)
                    follower = Follower(local, self._state.links, self._state.threads, self._catch_up)
                    # In the epoch that the log is in. There may be a later one by now, and the log goes first.
                    await follower.follow_as(replica, epoch, lambda: self._leader(local))
                    continue
            except Exception as error:  # noqa: BLE001 - a replica that does nothing any more is worse
                if not self._state.is_deleted(local):
                    known = isinstance(error, HeadwaterError | OSError)
                    self._repeated.log(
                        logging.ERROR,
                        "%s cannot be led or followed: %s",
                        *(local, error),
                        exc_info=None if known else error,
                    )
                    if replica.leads:
                        self._leadership.resign(local, error)
                await asyncio.sleep(_AGAIN)
                continue
            while local.replica is replica and replica.epoch == epoch:
                await local.changed()

    def _leader(self, local: LocalReplica) -> BrokerMember | None:
        """The leader of a partition, if it is alive."""
        state = local.replica.state
        member = None if state is None else self._state.membership.view.members.get(state.leader)
        return member if member is None or state is None or member.incarnation == state.leader_incarnation else None

    # Periodic work.

    async def _every(self, seconds: float, work: Callable[[LocalReplica], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.for_each(work)

    async def for_each(
        self, work: Callable[[LocalReplica], Awaitable[None]], those: Sequence[LocalReplica] | None = None
    ) -> None:
        """Do something for each replica, or each of those. One that fails keeps it from none of the others."""
        for local in list(self._state.replicas.values()) if those is None else those:
            try:
                await work(local)
            except (HeadwaterError, OSError) as error:
                if local.key in self._state.replicas:  # not deleted meanwhile
                    self._repeated.log(logging.ERROR, "%s: %s", local, error)

    async def _tend(self, local: LocalReplica) -> None:
        """Propose a change of the in-sync set, and find what has become durable by itself."""
        if local.leads:
            local.appended()
            if local.partition is not None:
                return  # the replica of the partition speaks for both
            proposal = local.replica.propose(self._state.membership.view.alive, time.monotonic())
            if proposal is not None:
                self._state.begin(self._propose(local, proposal))

    async def _propose(self, local: LocalReplica, proposal: Proposal) -> None:
        replica = local.replica
        _log.info("%s: the leader proposes the in-sync replicas %s", local, sorted(proposal.state.in_sync))
        if await self._state.membership.view.propose(local.key, proposal) is False:
            replica.refused(proposal)
            local.wake()

    async def _keep_watermark(self, local: LocalReplica) -> None:
        """Make durable how much is acknowledged, as far as it is known."""
        if local.replica.high_watermark > local.log.watermark:
            await self._state.threads.write(local.log.keep_watermark, local.replica.high_watermark)

    def config_of(self, local: LocalReplica) -> TopicConfig | None:
        """The configuration of a replica's topic; None if it was deleted."""
        topic = self._state.membership.view.topic_of(local.key[0])
        return None if topic is None else topic.info.config
