"""A node: a broker's part in its cluster. It holds replicas, leads some of them and follows the leaders of the others.

It goes by the view of the cluster that the membership keeps. What the broker asks of it, it answers for the partitions
that are led here; for the others it knows who to ask.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Final

import grpc

from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.forced_election import ForcedElection
from headwater.cluster.control.holdings import Holdings
from headwater.cluster.control.identity import identity_of
from headwater.cluster.control.membership import Membership
from headwater.cluster.control.metadata import Proposal
from headwater.cluster.control.moves import Moves
from headwater.cluster.control.sizes import Sizes
from headwater.cluster.control.topics import ClusterTopics
from headwater.cluster.control.view import Changes
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.keys import ClusterTopic, Member, PartitionKey
from headwater.cluster.internal import InternalTopics
from headwater.cluster.link import Links, password_of
from headwater.cluster.replication.catch_up import CatchUp
from headwater.cluster.replication.cleaning import Cleaning
from headwater.cluster.replication.durable_log import DurableLog, Span
from headwater.cluster.replication.following import Follower, Threads
from headwater.cluster.replication.leading import answer_follower
from headwater.cluster.replication.local_replica import LocalReplica, damaged_among
from headwater.cluster.replication.markers import Markers
from headwater.cluster.replication.repair import (
    Repair,
    Repairs,
    answer_replica,
    can_be_spared,
    should_hand_over,
    sources_of,
)
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.cluster.replication.replica import NotLeading
from headwater.core.config import BrokerConfig, TopicConfig
from headwater.core.errors import (
    BrokerUnavailable,
    FrameDamaged,
    HeadwaterError,
    LeaderNotReady,
    NotLeader,
    PartitionPoisoned,
    StoreError,
    WriteFailed,
)
from headwater.embedded.directory_store import DirectoryStore, stage_uuid
from headwater.log import Appended
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_log = logging.getLogger(__name__)
_TICK: Final = 0.2
"""How often changes of in-sync sets are thought of, and what became durable by itself is looked for. Seconds."""
_KEEPING: Final = 1.0
"""How often high watermarks are made durable. Seconds."""
_AGAIN: Final = 1.0
_LOOK: Final = 0.02
"""How often it is looked whether a partition is led by now. Seconds."""
_LOOKING: Final = 0.5
"""How often it is looked whether readers have met damage. Seconds."""
_REPAIRING: Final = 10.0
"""How long a repair has before damage is looked for again. Seconds."""
_HANDING_OVER: Final = 60.0
"""How long others lead before a damaged replica that leads again hands over again: they may be damaged too. Seconds."""
_DRAINING: Final = 10.0
_NAMED: Final = 5
"""How many damaged stretches a line of the log names."""


class ClusterNode:
    """A broker in a cluster. It belongs to one event loop, but what says otherwise."""

    def __init__(
        self,
        store: DirectoryStore,
        threads: Threads,
        etcd: Etcd,
        config: BrokerConfig,
        tell: Callable[[TopicPartition], None],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`tell` is called when there is more to read in a partition that is led here.

        With `credentials` the other brokers are called over TLS.
        """
        self.store = store
        self.cluster = config.cluster
        self.broker = config.broker_id
        self._lease_seconds = ceil(config.etcd_lease)
        self.threads = threads
        self._etcd = etcd
        self._tell = tell
        self._local: dict[PartitionKey, LocalReplica] = {}
        self._by_place: dict[TopicPartition, LocalReplica] = {}
        self._links = Links(credentials)
        self.sizes = Sizes(self.broker, self._local, self._links, threads)
        self._catch_up = CatchUp(config.catch_up_bytes_per_second)
        self._membership: Membership | None = None
        self.internal = InternalTopics(self, config.internal_partitions, config.replication)
        self.readers: Callable[[], Awaitable[Mapping[PartitionKey, int] | None]] = _nobody_reads
        """Tells before which offset all groups are done, in each partition that they read; None when nobody knows."""
        self._when_led: list[Callable[[LocalReplica], None]] = []
        self._holdings = Holdings(store, threads, self._is_the_same_etcd)
        self._repairs = Repairs()
        self._repairing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._anew: set[PartitionKey] = set()
        """The logs that are copied anew from their damage on, once it has left in-sync sets by registering anew."""
        self._handed_over: set[PartitionKey] = set()
        """The partitions that others lead because damage cannot be repaired here."""
        self._repeated = RepeatedLog(_log)
        self._repairing_since = -_REPAIRING
        self._resigned = -_HANDING_OVER
        self.cleaning = Cleaning(threads, store.elapsed, store.defaults.steward, self._for_each, self._config_of)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    # A life.

    async def start(self, address: str) -> None:
        """Join the cluster. Raises EtcdUnavailable, EtcdRefused and StoreInUse."""
        identity = await self.threads.write(identity_of, self.store.path, self.cluster, self.broker)
        membership = Membership(
            self._etcd, identity, address, ask=self._ask, missing=self._missing, lease_seconds=self._lease_seconds
        )
        membership.view.on_change(self._seen)
        membership.registration.on_incarnation(self._become)
        self._membership = membership
        await membership.start()
        self.begin(self._keep_up())
        self.begin(self._every(_TICK, self._tend))
        self.begin(self._every(_KEEPING, self._keep_watermark))
        self.begin(self._look_for_damage())
        self.begin(self.cleaning.run(self._read_so_far))

    @property
    def membership(self) -> Membership:
        """The membership of the cluster, once it has begun."""
        if self._membership is None:
            raise StoreError("the broker has not joined its cluster yet: try again")
        return self._membership

    @property
    def topics(self) -> ClusterTopics:
        """How topics are made, changed and deleted."""
        return ClusterTopics(self._etcd, self.membership.view)

    def forced_election(self, topic: ClusterTopic, number: int, broker: int) -> ForcedElection:
        """How an operator lets a broker lead a partition that nobody may lead any more."""
        return ForcedElection(self._etcd, self.membership.view, self._ask, topic, number, broker)

    @property
    def moves(self) -> Moves:
        """How an operator moves replicas from broker to broker."""
        return Moves(self._etcd, self.membership.view, self.sizes.at)

    def on_led(self, callback: Callable[[LocalReplica], None]) -> None:
        """Call this whenever a partition is led here from then on, and takes appends."""
        self._when_led.append(callback)

    async def drain(self) -> None:
        """Let others lead, as far as there are any: before the broker stops to answer."""
        if self._membership is not None:
            await self._membership.drain(_DRAINING)

    async def leave(self) -> None:
        """End it all, and make durable what is known to be acknowledged."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()
        if self._membership is not None:
            await self._membership.leave()
        else:
            await self._etcd.close()
        await self._for_each(self._keep_watermark)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for as long as it takes, at most until the node leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a part of the cluster's node has failed and works no more", exc_info=task.exception())

    # What the cluster says.

    def _seen(self, changes: Changes) -> None:
        for key in changes.partitions:
            local = self._local.get(key)
            known = self.membership.view.partitions.get(key)
            if local is not None and known is not None:
                local.observe(*known)
        self._repairs.try_again(None if changes.members else changes.partitions)
        for local in self._local.values() if changes.members else ():
            local.wake()
        self._changed.set()

    def _become(self, incarnation: int) -> None:
        self._links.secret = self.membership.registration.secret
        if incarnation:  # without a registration it goes on as who it was: the protocol sees to it that this is safe
            for local in self._local.values():
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
                _log.error("not all that the cluster wants here can be made: %s", error)
                await asyncio.sleep(_AGAIN)
                self._changed.set()

    async def _host(self) -> None:
        view = self.membership.view
        self._forget_deleted()  # first: what comes under the name of a deleted topic takes its directory away
        for topic in list(view.topics.values()):
            await self._holdings.adopt(topic)
        self._forget_deleted()
        await self._holdings.keep_only(view.topics)
        for key, (state, revision) in list(view.partitions.items()):
            owner = view.topic_of(key[0])
            if owner is not None and self.broker not in state.replicas:
                if key in self._local:
                    self._forget(self._local[key])
                await self._holdings.drop(owner.info, key[1], state.epoch)
            if owner is None or self.broker not in state.replicas:
                continue
            await self._holdings.adopt(owner)  # it may have come while the others were adopted
            known_here = self._local.get(key)
            wants_stage = owner.staged and (known_here is None or known_here.stage is None)
            # Both logs are here before the partition can be led: who is in sync has what is in either.
            stage_log = await self._holdings.stage_log(owner.info, key[1]) if wants_stage else None
            if known_here is not None:
                local = known_here
                local.require(owner.min_insync)
            else:
                local = self._open(key, owner, await self._holdings.log(owner.info, key[1]))
                known = view.partitions.get(key, (state, revision))
                local.become(self.membership.registration.incarnation)
                local.observe(*known)
                local.task = self.begin(self._play(local))
            if stage_log is not None:
                self._open_stage(local, stage_log)

    def _forget_deleted(self) -> None:
        for local in list(self._local.values()):
            if local.partition is None and self._is_deleted(local):
                self._forget(local)

    def _is_deleted(self, local: LocalReplica) -> bool:
        """Whether the topic is gone: then what cannot be read or written there says nothing about this broker."""
        return self.membership.view.topic_of((local.partition or local).key[0]) is None

    def _open(self, key: PartitionKey, topic: ClusterTopic, log: DurableLog) -> LocalReplica:
        place = TopicPartition(topic.info.name, key[1])
        local = LocalReplica(key, place, log, self.broker, topic.min_insync, self._tell)
        self._local[key] = self._by_place[place] = local
        return local

    def _open_stage(self, local: LocalReplica, log: DurableLog) -> None:
        key = (stage_uuid(local.key[0]), local.key[1])
        stage = self._local[key] = LocalReplica(key, local.place, log, self.broker, local.min_insync, lambda _: None)
        local.keep_stage(stage)
        stage.task = self.begin(self._play(stage))

    def _forget(self, local: LocalReplica) -> None:
        if local.stage is not None:
            self._forget(local.stage)
        if local.task is not None:
            local.task.cancel()
        del self._local[local.key]
        self._repairs.forget(local.key)
        self._handed_over.discard(local.key)
        if self._by_place.get(local.place) is local:
            del self._by_place[local.place]

    async def _is_the_same_etcd(self) -> bool:
        """Whether topics that are gone from etcd were deleted. One that was emptied has no say in what is kept here."""
        found = await self._etcd.get(self.membership.view.keys.secret)
        same = found is not None and found.value.decode() == self._links.secret.hex()
        if not same:
            _log.error("etcd has lost its topics, and the cluster's secret: nothing is deleted here")
        return same

    async def _missing(self) -> Collection[PartitionKey]:
        """Before it is registered: the partitions of which something that was acknowledged is missing here.

        What is damaged counts as missing where others have it.
        """
        view = self.membership.view
        missing: set[PartitionKey] = set()
        leaving: set[PartitionKey] = set()
        for key, (state, _) in list(view.partitions.items()):
            topic = view.topic_of(key[0])
            if topic is None or self.broker not in state.replicas:
                continue
            await self._holdings.adopt(topic)
            spare = can_be_spared(state, self.broker, topic.min_insync, view.alive)
            for log_key, log in (await self._logs_of(key, topic)).items():
                if log.short or (spare and await self.threads.read(log.damaged_at) is not None):
                    leaving.add(log_key)
                    missing.add(key)
        self._anew &= leaving  # others stay in sync, and keep what they have
        return missing

    async def _logs_of(self, key: PartitionKey, topic: ClusterTopic) -> Mapping[PartitionKey, DurableLog]:
        """The log of a partition, and its stage log if it has one."""
        local = self._local.get(key)
        found = {key: await self._holdings.log(topic.info, key[1]) if local is None else local.log}
        stage = None if local is None else local.stage
        if stage is not None:
            found[stage.key] = stage.log
        elif topic.staged:
            found[stage_uuid(key[0]), key[1]] = await self._holdings.stage_log(topic.info, key[1])
        return found

    # Roles.

    async def _play(self, local: LocalReplica) -> None:
        """Take on the role that the cluster gives a replica, for ever."""
        while True:
            replica = local.replica
            epoch = replica.epoch
            try:
                if replica.state is None or (not replica.leads and replica.state.leader < 0):
                    await self.threads.write(local.log.follow, epoch)
                elif replica.leads:
                    await self.threads.write(local.log.lead, epoch)
                    if local.replica is replica and replica.epoch == epoch:
                        local.led = epoch
                        local.appended()
                        _log.info("%s is led here, in epoch %d", local, epoch)
                        for callback in self._when_led if local.partition is None else ():
                            callback(local)
                else:
                    await self.threads.write(local.log.follow, epoch)
                    await self._mend(local)
                    follower = Follower(local, self._links, self.threads, self._catch_up)
                    # In the epoch that the log is in. There may be a later one by now, and the log goes first.
                    await follower.follow_as(replica, epoch, lambda: self._leader(local))
                    continue
            except Exception as error:  # noqa: BLE001 - a replica that does nothing any more is worse
                if not self._is_deleted(local):
                    known = isinstance(error, HeadwaterError | OSError)
                    self._repeated.log(
                        logging.ERROR,
                        "%s cannot be led or followed: %s",
                        *(local, error),
                        exc_info=None if known else error,
                    )
                    if replica.leads:
                        self.resign(local, error)
                await asyncio.sleep(_AGAIN)
                continue
            while local.replica is replica and replica.epoch == epoch:
                await local.changed()

    async def _mend(self, local: LocalReplica) -> None:
        """Before a replica follows: have it as good as it can be, so that its leader takes in none that is damaged."""
        registered = self.membership.registration.incarnation
        if local.key in self._anew and registered and local.replica.incarnation == registered:
            # Nobody counts on this replica any more, or it would not be registered by now.
            self._anew.discard(local.key)
            await self.threads.write(local.log.cut_damage)
        elif local.log.damaged and not local.replica.in_sync:
            await asyncio.shield(self._begin_repair(local))
        local.log.refresh()
        local.replica.high_watermark = min(local.replica.high_watermark, local.log.end)

    async def _look_for_damage(self) -> None:
        while True:
            await asyncio.sleep(_LOOKING)
            for local in await self.threads.read(damaged_among, list(self._local.values())):
                if self._repairs.is_due(local.key):
                    self._begin_repair(local)

    def _begin_repair(self, local: LocalReplica) -> asyncio.Task[None]:
        """Repair a replica, if that is not done already."""
        known = self._repairing.get(local.key)
        if known is None or known.done():
            known = self._repairing[local.key] = self.begin(self._repair(local))
        return known

    async def _repair(self, local: LocalReplica) -> None:
        """Repair a replica from the others; where that cannot be done here, another one leads."""
        state = local.replica.state
        if state is None:
            return
        members = self.membership.view.members
        repair = Repair(local, state, sources_of(state, self.broker, members), self._links, self.threads)
        self._repeated.log(logging.WARNING, "%s is damaged here, and is fetched from another broker", local)
        local.repairing = True
        try:
            await repair.run()
            local.repairing = False
        except (HeadwaterError, OSError) as error:
            repair.left = await self.threads.read(local.log.known_damage)
            if local.key in self._local and not self._is_deleted(local):
                self._repeated.log(logging.ERROR, "%s cannot be repaired here: %s", local, error)
                self._hand_over(local, error)
        self._repairs.ended(local.key, repair)
        if repair.mended:
            helped = sorted(repair.helped)
            _log.warning("%s is repaired: %d frames or gaps came from brokers %s", local, repair.mended, helped)
            local.wake()
        if repair.left:
            await self._tell_what_is_left(local, repair)

    async def _tell_what_is_left(self, local: LocalReplica, repair: Repair) -> None:
        """See to what an attempt could not repair in its place."""
        if repair.left[-1].end > local.replica.high_watermark:
            # What is not acknowledged yet nobody else may have; another leader goes on without it.
            self._hand_over(local, "it is damaged here before it is acknowledged")
        elif repair.anew and await repair.whole_elsewhere():
            self._copy_anew(local)
        else:
            left = ", ".join(f"{one.start} to {one.end - 1}" for one in repair.left[:_NAMED])
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
            if state is not None and should_hand_over(state, self.broker, self.membership.view.alive):
                self._hand_over(local, "it is damaged here, and another replica has to catch up")
        elif time.monotonic() - self._repairing_since > _REPAIRING:
            self._repairing_since = time.monotonic()
            _log.warning("%s is copied anew: it is damaged, and delete markers that it needs are gone", local)
            self._anew.add(local.key)
            self.membership.registration.renew()

    def _hand_over(self, local: LocalReplica, why: object) -> None:
        """Have another one lead a replica that cannot be repaired here: once, since it may fare no better."""
        if local.leads and local.key not in self._handed_over and self.resign(local, why, _HANDING_OVER):
            self._handed_over.add(local.key)

    def _can_be_spared(self, local: LocalReplica) -> bool:
        state = local.replica.state
        return state is not None and can_be_spared(state, self.broker, local.min_insync, self.membership.view.alive)

    def damaged(self, place: TopicPartition, error: FrameDamaged) -> HeadwaterError:
        """In any thread: what a reader is told who has met damage: to ask again, until others cannot help either."""
        local = self._by_place.get(place)
        state = None if local is None else local.replica.state
        if local is None or state is None or len(state.replicas) < 2 or error.offset is None:
            return error
        damage = Span(error.offset, error.next_offset or error.offset + 1)
        others = [one for one in state.replicas if one != self.broker and one in self.membership.view.members]
        if self._repairs.is_left(local.key, damage) and not self._repairs.is_pending(local.key, others):
            return error
        local.log.meet(damage)
        self._repairs.try_again([local.key])
        return NotLeader(*place, None)

    def _leader(self, local: LocalReplica) -> Member | None:
        """Who leads a partition, as far as it is alive."""
        state = local.replica.state
        member = None if state is None else self.membership.view.members.get(state.leader)
        return member if member is None or state is None or member.incarnation == state.leader_incarnation else None

    # What is done again and again.

    async def _every(self, seconds: float, work: Callable[[LocalReplica], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._for_each(work)

    async def _for_each(
        self, work: Callable[[LocalReplica], Awaitable[None]], those: Sequence[LocalReplica] | None = None
    ) -> None:
        """Do something for each replica, or each of those. One that fails keeps it from none of the others."""
        for local in list(self._local.values()) if those is None else those:
            try:
                await work(local)
            except (HeadwaterError, OSError) as error:
                if local.key in self._local:  # not deleted meanwhile
                    self._repeated.log(logging.ERROR, "%s: %s", local, error)

    async def _tend(self, local: LocalReplica) -> None:
        """Propose a change of the in-sync set, and find what has become durable by itself."""
        if local.leads:
            local.appended()
            if local.partition is not None:
                return  # the replica of the partition speaks for both
            proposal = local.replica.propose(self.membership.view.alive, time.monotonic())
            if proposal is not None:
                self.begin(self._propose(local, proposal))

    async def _propose(self, local: LocalReplica, proposal: Proposal) -> None:
        replica = local.replica
        _log.info("%s: in sync are to be %s", local, sorted(proposal.state.in_sync))
        if await self.membership.view.propose(local.key, proposal) is False:
            replica.refused(proposal)
            local.wake()

    async def _keep_watermark(self, local: LocalReplica) -> None:
        """Make durable how much is acknowledged, as far as it is known."""
        if local.replica.high_watermark > local.log.watermark:
            await self.threads.write(local.log.keep_watermark, local.replica.high_watermark)

    async def _read_so_far(self) -> Mapping[PartitionKey, int] | None:
        return await self.readers()

    def _config_of(self, local: LocalReplica) -> TopicConfig | None:
        topic = self.membership.view.topic_of(local.key[0])
        return None if topic is None else topic.info.config

    # What other brokers ask.

    async def serve(self, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        """Answer a follower, when there is something or its patience is over."""
        return await answer_follower(self._local.get((question.topic_uuid, question.partition)), question, self.threads)

    def log_ends(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        """How far the logs go that are whole, or as whole as they can be."""
        held = ((key, self._local.get(key)) for key in keys)
        return {key: local.replica.log_end for key, local in held if local is not None and self._vouches(local)}

    def _vouches(self, local: LocalReplica) -> bool:
        """Whether a replica may be elected: nothing is missing there, nor damaged that others may still have."""
        state = local.replica.state
        if local.short or state is None:
            return False
        logs = [one for one in (local, local.stage) if one is not None and one.log.damaged]
        others = [one for one in state.in_sync if one != self.broker and one in self.membership.view.members]
        return not any(self._repairs.is_pending(one.key, others) for one in logs)

    async def read_replica(self, request: pb.ReadReplicaRequest) -> pb.ReadReplicaResponse:
        """What a replica has of some offsets, for one that is damaged there; raises NotLeader if it is not here."""
        local = self._local.get((request.topic_uuid, request.partition))
        if local is None:
            raise NotLeader("", request.partition, None)
        answer: pb.ReadReplicaResponse = await self.threads.read(answer_replica, local.log, request)
        return answer

    async def _ask(self, member: Member, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        """For the controller: how far another broker's logs go, or those that are here."""
        if member.id == self.broker:
            return self.log_ends(keys)
        places = [pb.TopicPartition(topic_uuid=uuid, partition=number) for uuid, number in keys]
        found = await self._links.to(member).log_ends(pb.ListLogEndsRequest(partitions=places), timeout=5.0)
        return {(one.topic_uuid, one.partition): LogEnd(one.epoch, one.end) for one in found.ends}

    # What the broker asks.

    def acknowledged(
        self, place: TopicPartition, appended: asyncio.Future[Appended], *, by_all: bool
    ) -> asyncio.Future[Appended]:
        """What is being appended, once it is acknowledged; fails with NotLeader.

        The epoch is that of this moment, not of the one when the append is done: see `LocalReplica.acknowledged`.
        """
        local = self._leading_here(place)
        return asyncio.ensure_future(self._acknowledged(local, appended, local.led, by_all))

    async def _acknowledged(
        self, local: LocalReplica, appended: asyncio.Future[Appended], epoch: int, by_all: bool
    ) -> Appended:
        try:
            return await local.acknowledged(appended, epoch, by_all=by_all)
        except NotLeading:
            raise self.not_leader(local.place) from None
        except (WriteFailed, PartitionPoisoned) as error:
            if not self.resign(local, error):
                raise
            raise NotLeader(*local.place, None) from error

    def resign(self, local: LocalReplica, why: object, pause: float = _REPAIRING) -> bool:
        """Let others lead, as another incarnation, but not again within a pause; False if nobody else can."""
        state = local.replica.state
        if state is None or not can_be_spared(state, self.broker, 1, self.membership.view.alive):
            return False
        if self._is_deleted(local):
            return False
        if time.monotonic() - self._resigned > pause:
            self._resigned = time.monotonic()
            _log.error("%s is to be led by others: %s", local, why)
            self.membership.registration.renew()
        return True

    def leads(self, place: TopicPartition) -> bool:
        """Whether appends to the partition are taken here."""
        local = self._by_place.get(place)
        return local is not None and local.leads and not self._may_be_replaced(local)

    async def wait_for_leader(self, place: TopicPartition, timeout: float) -> None:
        """Wait until another broker is known to lead a partition, or this one takes appends; for so long at most.

        That takes a moment where a topic was just made. Nobody has done anything so far that could be done twice.
        """
        deadline = time.monotonic() + timeout
        while not self.leads(place) and self._leading_elsewhere(place) is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)

    async def call_leader(self, place: TopicPartition, method: str, request: Any, timeout: float) -> Any:
        """Call the other broker that leads a partition; raises NotLeader when there is none."""
        member = self._leading_elsewhere(place)
        if member is None:
            raise self.not_leader(place)
        return await self.call_broker(member.id, method, request, timeout)

    async def call_broker(self, broker: int, method: str, request: Any, timeout: float) -> Any:
        """Call another broker; raises what that one raises, or BrokerUnavailable."""
        member = self.membership.view.members.get(broker)
        if member is None:
            raise BrokerUnavailable(f"broker {broker}", method, 0, "it is not alive")
        return await self._links.to(member).call(method, request, timeout)

    def with_stage(self, place: TopicPartition) -> tuple[LocalReplica, LocalReplica]:
        """The replicas of a partition and of its stage log, both led here in one epoch; raises NotLeader."""
        local = self._leading_here(place)
        stage = local.stage
        if stage is None or not stage.leads or stage.led != local.led:
            raise self.not_leader(place)
        return local, stage

    def staged(self) -> list[TopicPartition]:
        """The partitions with stage logs that are led here."""
        return [local.place for local in self._local.values() if local.stage is not None and local.leads]

    def is_broker(self, password: str) -> bool:
        """Whether a caller with this password is another broker of the cluster."""
        secret = self._links.secret
        return bool(secret) and hmac.compare_digest(password, password_of(secret))

    def check_leads(self, place: TopicPartition) -> None:
        """Raise NotLeader unless appends to the partition are taken here."""
        self._leading_here(place)

    def _leading_here(self, place: TopicPartition) -> LocalReplica:
        local = self._by_place.get(place)
        if local is None or not local.leads or self._may_be_replaced(local):
            raise self.not_leader(place)
        return local

    def _may_be_replaced(self, local: LocalReplica) -> bool:
        """Whether it may have been replaced without having heard of it.

        It could not do any harm; but whoever reads here would wait for ever for what another one has by now.
        """
        return not self._lease_lasts() and local.replica.is_alone(time.monotonic())

    def _lease_lasts(self) -> bool:
        """Whether nobody can have taken this broker for dead: etcd counts the lease from later on than this does."""
        registration = self.membership.registration
        return time.monotonic() - registration.confirmed <= registration.lease_seconds

    async def doubtful(self, places: Iterable[TopicPartition], timeout: float) -> frozenset[TopicPartition]:
        """The partitions led here of which another broker may have taken over without this one having heard of it.

        While the lease lasts there are none. Without it, as when etcd is away, followers are asked whom they follow.
        """
        if self._lease_lasts():
            return frozenset()
        led = [place for place in places if self.leads(place)]
        sure = await asyncio.gather(*(self._is_sure(self._by_place[place], timeout) for place in led))
        return frozenset(place for place, is_sure in zip(led, sure, strict=True) if not is_sure)

    async def _is_sure(self, local: LocalReplica, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await local.confirm(local.led)
        except (NotLeading, TimeoutError):
            return False
        return True

    @contextmanager
    def leading(self, place: TopicPartition) -> Iterator[None]:
        """In a thread: the right to append to a partition, for the length of a block; raises NotLeader."""
        local = self._by_place.get(place)
        try:
            if local is None:
                raise NotLeading
            with local.leading():
                yield
        except NotLeading:
            raise self.not_leader(place) from None

    def readable(self, place: TopicPartition, uuid: bytes = b"") -> int:
        """In any thread: before which offset records can be shown; raises NotLeader, and LeaderNotReady.

        NotLeader also where a topic was made again under its name, and only the one before it is led here so far.
        """
        local = self._leading_here(place)
        topic = self.membership.view.topics.get(place.topic)
        if topic is not None and topic.info.uuid == uuid != local.key[0]:
            raise self.not_leader(place)
        readable = local.replica.readable
        if readable is None:
            raise LeaderNotReady(*place)
        return readable

    def markers(self, place: TopicPartition) -> Markers:
        """In any thread: which delete markers may be gone from a partition that is led here; raises NotLeader."""
        return self._leading_here(place).log.markers

    def not_leader(self, place: TopicPartition) -> NotLeader:
        """In any thread: the error that tells where to go instead."""
        member = self._leading_elsewhere(place)
        return NotLeader(place.topic, place.partition, None if member is None else member.address)

    def _leading_elsewhere(self, place: TopicPartition) -> Member | None:
        """In any thread: the other broker that leads a partition, if that is known and alive."""
        if self._membership is None or (topic := self._membership.view.topics.get(place.topic)) is None:
            return None
        view = self._membership.view
        state, _ = view.partitions.get((topic.info.uuid, place.partition), (None, 0))
        member = None if state is None else view.members.get(state.leader)
        return None if member is None or member.id == self.broker else member


async def _nobody_reads() -> Mapping[PartitionKey, int]:
    return {}
