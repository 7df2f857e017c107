"""Repairs: damaged replicas are repaired from other brokers, or other brokers lead in their place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.leadership import Leadership
from headwater.cluster.node_state import NodeState
from headwater.cluster.replication.durable_log import OffsetSpan
from headwater.cluster.replication.local_replica import LocalReplica, damaged_among
from headwater.cluster.replication.repair import Repair, Repairs, can_be_spared, should_hand_over, sources_of
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.core.errors import FrameDamaged, HeadwaterError, NotLeader
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
_LOOKING: Final = 0.5
"""Seconds between two looks whether readers have met damage."""
_REPAIRING: Final = 10.0
"""A log is copied anew at most once in so many seconds."""
_HANDING_OVER: Final = 60.0
"""A damaged replica hands over at most once in so many seconds: the other replicas may be damaged too."""
_NAMED: Final = 5
"""The number of damaged stretches that a line of the log names."""


class RepairManager:
    """Looks after damaged replicas. For one event loop, except where it says otherwise."""

    def __init__(self, state: NodeState, leadership: Leadership) -> None:
        self._state = state
        self._leadership = leadership
        self._repairs = Repairs()
        self._repairing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._anew: set[PartitionKey] = set()
        """The logs that are copied anew from their damage on, once they have left in-sync sets by registering anew."""
        self._handed_over: set[PartitionKey] = set()
        """The partitions that other brokers lead because damage cannot be repaired here."""
        self._repeated = RepeatedLog(_log)
        self._repairing_since = -_REPAIRING

    def try_again(self, keys: Collection[PartitionKey] | None) -> None:
        """The cluster has changed: replicas that could not be repaired may be by now; None is all of them."""
        self._repairs.try_again(keys)

    def forget(self, key: PartitionKey) -> None:
        """A replica is here no more."""
        self._repairs.forget(key)
        self._handed_over.discard(key)

    def keep_anew(self, leaving: Collection[PartitionKey]) -> None:
        """Copy only those logs anew that leave their in-sync sets. Others stay in sync, and keep what they have."""
        self._anew &= set(leaving)

    async def mend(self, local: LocalReplica) -> None:
        """Before a replica follows: repair it as far as possible, so that its leader takes no damaged one in sync."""
        registered = self._state.membership.registration.incarnation
        if local.key in self._anew and registered and local.replica.incarnation == registered:
            # Nobody counts on this replica any more, or it would not be registered by now.
            self._anew.discard(local.key)
            await self._state.threads.write(local.log.cut_damage)
        elif local.log.damaged and not local.replica.in_sync:
            await asyncio.shield(self._begin_repair(local))
        local.log.refresh()
        local.replica.high_watermark = min(local.replica.high_watermark, local.log.end)

    async def look_for_damage(self) -> None:
        """Repair replicas in which readers have met damage, for ever."""
        while True:
            await asyncio.sleep(_LOOKING)
            for local in await self._state.threads.read(damaged_among, list(self._state.replicas.values())):
                if self._repairs.is_due(local.key):
                    self._begin_repair(local)

    def _begin_repair(self, local: LocalReplica) -> asyncio.Task[None]:
        """Repair a replica, if that is not done already."""
        known = self._repairing.get(local.key)
        if known is None or known.done():
            known = self._repairing[local.key] = self._state.begin(self._repair(local))
        return known

    async def _repair(self, local: LocalReplica) -> None:
        """Repair a replica from the others; where that cannot be done here, another one leads."""
        state = local.replica.state
        if state is None:
            return
        members = self._state.membership.view.members
        repair = Repair(
            local, state, sources_of(state, self._state.broker, members), self._state.links, self._state.threads
        )
        self._repeated.log(logging.WARNING, "%s is damaged here, and is fetched from another broker", local)
        local.repairing = True
        try:
            await repair.run()
            local.repairing = False
        except (HeadwaterError, OSError) as error:
            repair.left = await self._state.threads.read(local.log.known_damage)
            if local.key in self._state.replicas and not self._state.is_deleted(local):
                self._repeated.log(logging.ERROR, "%s cannot be repaired here: %s", local, error)
                self._hand_over(local, error)
        self._repairs.ended(local.key, repair)
        if repair.mended:
            helped = sorted(repair.helped)
            _log.warning("%s is repaired: %d frames or gaps came from brokers %s", local, repair.mended, helped)
            local.wake()
        if repair.left:
            await self._deal_with_rest(local, repair)

    async def _deal_with_rest(self, local: LocalReplica, repair: Repair) -> None:
        """Deal with damage that an attempt could not repair in its place."""
        if repair.left[-1].end > local.replica.high_watermark:
            # Perhaps nobody else has records that are not acknowledged yet; another leader goes on without them.
            self._hand_over(local, "it is damaged here before it is acknowledged")
        elif repair.anew and await repair.whole_elsewhere():
            self._copy_anew(local)
        else:
            left = ", ".join(f"{span.start} to {span.end - 1}" for span in repair.left[:_NAMED])
            self._repeated.log(
                logging.ERROR,
                "%s: offsets %s are damaged, and none of brokers %s has them: restart those that are away, or restore "
                "the partition from a backup",
                *(local, left, sorted(repair.answered)),
            )

    def _copy_anew(self, local: LocalReplica) -> None:
        """Have a replica copied anew, once it can be spared; until then others lead, if one has to catch up."""
        state = local.replica.state
        if not self._can_be_spared(local):
            if state is not None and should_hand_over(state, self._state.broker, self._state.membership.view.alive):
                self._hand_over(local, "it is damaged here, and another replica has to catch up")
        elif time.monotonic() - self._repairing_since > _REPAIRING:
            self._repairing_since = time.monotonic()
            _log.warning("%s is copied anew: it is damaged, and delete markers that it needs are gone", local)
            self._anew.add(local.key)
            self._state.membership.registration.renew()

    def _hand_over(self, local: LocalReplica, why: object) -> None:
        """Have another one lead a replica that cannot be repaired here: once, since it may fare no better."""
        if local.leads and local.key not in self._handed_over and self._leadership.resign(local, why, _HANDING_OVER):
            self._handed_over.add(local.key)

    def _can_be_spared(self, local: LocalReplica) -> bool:
        state = local.replica.state
        return state is not None and can_be_spared(
            state, self._state.broker, local.min_insync, self._state.membership.view.alive
        )

    def damaged(self, partition: TopicPartition, error: FrameDamaged) -> HeadwaterError:
        """In any thread: the error for a reader that has met damage: to ask again, until other brokers cannot help."""
        local = self._state.by_partition.get(partition)
        state = None if local is None else local.replica.state
        if local is None or state is None or len(state.replicas) < 2 or error.offset is None:
            return error
        damage = OffsetSpan(error.offset, error.next_offset or error.offset + 1)
        others = [
            broker
            for broker in state.replicas
            if broker != self._state.broker and broker in self._state.membership.view.members
        ]
        if self._repairs.is_left(local.key, damage) and not self._repairs.is_pending(local.key, others):
            return error
        local.log.meet(damage)
        self._repairs.try_again([local.key])
        return NotLeader(*partition, None)

    def vouches(self, local: LocalReplica) -> bool:
        """Return whether a replica may be elected: it lacks nothing, and other brokers cannot repair its damage."""
        state = local.replica.state
        if local.short or state is None:
            return False
        logs = [replica for replica in (local, local.stage) if replica is not None and replica.log.damaged]
        others = [
            broker
            for broker in state.in_sync
            if broker != self._state.broker and broker in self._state.membership.view.members
        ]
        return not any(self._repairs.is_pending(replica.key, others) for replica in logs)
