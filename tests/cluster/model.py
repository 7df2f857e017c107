"""The cluster as a model: brokers that run the real protocol over simulated disks, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from typing import ClassVar

from headwater.cluster.control.election import Election, LogEnd
from headwater.cluster.control.metadata import Members, PartitionState, Proposal
from headwater.cluster.control.moving import Moving
from headwater.cluster.replication.repair import can_be_spared, should_hand_over
from headwater.cluster.replication.replica import FollowerRequest, FollowerResponse, NotLeading, Replica
from tests.cluster.etcd import Etcd, Guard, Item
from tests.cluster.log import DamageMet, Entry, LogStart, SimulatedLog
from tests.cluster.world import Process, World

PARTITION = "partition"
CONTROLLER = "controller"
LEASE = 1.0
MIN_INSYNC = 2
PATIENCE = 0.7


Record = tuple[int, int]
"""A producer, and which of its records it is."""


class Violation(Exception):
    """Something happened that must never happen."""


class Truth:
    """The records that clients have been told of. Records are added, and never changed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: dict[int, Record] = {}
        self._offsets: dict[Record, int] = {}
        self.acknowledged: set[Record] = set()
        self.logs: list[SimulatedLog] = []
        self.whole: Callable[[], bool] = lambda: True
        """Returns True if every lost disk was made up for. Before that, a copy that counted may be on the lost disk."""
        self.start = 0
        """A leader has deleted the records before this offset."""
        self._read_end = 0
        self._acknowledged_end = 0

    def check_read(self, end: int, who: str) -> None:
        """No read shows less than an earlier one has shown to anybody, or than was acknowledged before it."""
        if end < self._read_end:
            raise Violation(f"went back: {who} reads up to {end}, and {self._read_end} was read before")
        if end < self._acknowledged_end:
            raise Violation(f"unread: {who} reads up to {end}, and {self._acknowledged_end} was acknowledged before")
        self._read_end = end

    def tell(self, offset: int, record: Record, who: str, *, acknowledged: bool = False) -> None:
        """A client has seen this record at this offset."""
        known = self._at.setdefault(offset, record)
        if known != record:
            raise Violation(f"diverged: offset {offset} was {known}, and {who} shows {record}")
        if self._offsets.setdefault(record, offset) != offset:
            raise Violation(f"doubled: {record} is at {self._offsets[record]} and, for {who}, at {offset}")
        if acknowledged:
            self.acknowledged.add(record)
            self._acknowledged_end = max(self._acknowledged_end, offset + 1)
            self._check_copies(offset, record, who)

    def _check_copies(self, offset: int, record: Record, who: str) -> None:
        """An acknowledged record is on so many disks that losing one does no harm, or was before it was deleted."""
        copies = sum(
            log.start <= offset < log.durable_end and self.has(log, offset, record) and offset not in log.damaged
            for log in self.logs
        )
        if copies < MIN_INSYNC and offset >= self.start and self.whole():
            raise Violation(f"thin: {who} acknowledged offset {offset}, of which there are {copies} durable copies")

    def has(self, log: SimulatedLog, offset: int, record: Record) -> bool:
        """Return whether a record is in a log, at its place."""
        return log.at(offset)[1:] == record

    def check(self, log: SimulatedLog, who: str) -> None:
        """Everything that a client has seen, and no leader has deleted, is in this log, at its place."""
        if log.start > self.start:
            raise Violation(f"lost: the log of {who} begins at {log.start}, and nobody wanted it to")
        for offset, record in self._at.items():
            if offset >= log.end:
                raise Violation(f"lost: {record} was seen at {offset}, and the log of {who} ends at {log.end}")
            if offset >= log.start and not self.has(log, offset, record):
                raise Violation(f"lost: {record} was seen at {offset}, where {who} has {log.at(offset)}")


@dataclass(frozen=True)
class Answer:
    """A leader's answer to a follower: the protocol's response, and the beginning of the leader's log."""

    response: FollowerResponse
    begins: LogStart


class Broker(Process):
    """One broker with one replica. Its log, a checkpoint of the high watermark and its identity survive a crash."""

    replica_kind: type[Replica] = Replica
    election_kind: type[Election] = Election
    log_kind: type[SimulatedLog] = SimulatedLog
    moving_kind: type[Moving] = Moving

    def __init__(self, world: World, number: int, etcd: Etcd, truth: Truth) -> None:
        super().__init__(world, f"broker {number}")
        self.number = number
        self.etcd = etcd
        self.truth = truth
        self.log = self.log_kind()
        self.checkpoint = 0
        self.lost = False
        """True if the disk has lost records since the replica was last in sync."""
        self.retains = False
        """True if old records are deleted."""
        self._unworthy = False
        """True if the replica has left the in-sync set because of damage, which can be removed then."""
        self.in_place = False
        """True if the replica repairs damage in its place; else it is copied anew from the damage on."""
        self.peers: dict[int, Broker] = {}
        self.replica: Replica | None = None
        self.alive: dict[int, int] = {}
        self.incarnation = 0
        self._confirmed = inf
        """When it asked for the lease that it was granted last."""
        self._controlling = 0
        self._ends: dict[int, tuple[int, LogEnd]] = {}
        self._waiting: list[tuple[int, Record, Callable[[int], None]]] = []

    # A life.

    def begin(self) -> None:
        """Start: first out of the in-sync set, if something is missing; then register; then take part."""
        self.start()
        self.replica = None
        self.incarnation = self._controlling = 0
        self._confirmed = inf
        self.alive, self._ends, self._waiting = {}, {}, []
        self._unworthy = False
        if self.log.end < self.checkpoint:
            self.lost = True
        self.world.note(f"{self.name} starts, log {self.log.end}, checkpoint {self.checkpoint}, lost {self.lost}")
        self._prepare()

    def _prepare(self) -> None:
        if self.incarnation:
            return
        self.ask(self.etcd, lambda: dict(self.etcd.items), self._prepared)
        self.after(0.3, self._prepare)

    def _prepared(self, items: dict[str, Item]) -> None:
        if self.incarnation:
            return
        state: PartitionState = items[PARTITION].value
        damaged = bool(self.log.known_damage) and self.can_be_spared(state, _alive(items))
        if not self.must_leave(damaged=damaged):
            self._register()
        elif self.number in state.in_sync:
            guard = [Guard(PARTITION, changed=items[PARTITION].changed)]
            self.ask(self.etcd, lambda: self.etcd.write(guard, {PARTITION: state.without(self.number)}), lambda _: None)
        else:
            self._unworthy = damaged and not self.in_place
            if self.lost:
                self.lost, self.checkpoint = False, 0
            self._register()

    def must_leave(self, *, damaged: bool) -> bool:
        """Return whether this replica has to leave the in-sync set before it may be elected."""
        return self.lost or damaged

    def can_be_spared(self, state: PartitionState, alive: Members) -> bool:
        """Return whether this replica may begin anew from its damage on."""
        return can_be_spared(state, self.number, MIN_INSYNC, alive)

    def _register(self) -> None:
        key, value = f"broker/{self.number}", self.life

        def write() -> int:
            known = self.etcd.items.get(key)
            if known is not None and known.value == value:
                return known.created
            self.etcd.delete(key)  # a new incarnation takes the place of the old one
            return self.etcd.write([], {key: value}, LEASE)

        if not self.incarnation:
            self._confirmed = min(self._confirmed, self.world.now)  # whichever attempt it is that is taken
            self.ask(self.etcd, write, self._registered)

    def _registered(self, incarnation: int) -> None:
        if self.incarnation or not incarnation:
            return
        self.incarnation = incarnation
        self.world.note(f"{self.name} is registered as {incarnation}")
        self.replica = self.replica_kind(
            self.number,
            incarnation,
            self.log,
            min_insync=MIN_INSYNC,
            patience=PATIENCE,
            high_watermark=self.checkpoint,
        )
        self.etcd.watch(self, self._told)
        self.every(0.2, self._look)
        self.every(0.25, self._keep_alive)
        self.every(0.05, self._fetch)
        self.every(0.15, self._sync)
        self.every(0.3, self._checkpoint)
        self.every(0.15, self._propose)
        self.every(0.2, self._control)
        self.every(0.3, self._look_for_damage)
        self.every(0.5, self._retain)

    def _keep_alive(self) -> None:
        key, incarnation, asked = f"broker/{self.number}", self.incarnation, self.world.now
        self.ask(self.etcd, lambda: self.etcd.keep_alive(key, incarnation, LEASE), lambda kept: self._kept(kept, asked))

    def _kept(self, kept: bool, asked: float) -> None:
        if kept:
            self._confirmed = max(self._confirmed, asked)
        else:  # its lease has ended: it is another one from now on
            self.world.note(f"{self.name} has lost its registration")
            self.fail(power=False)
            self.world.after(0.1, self.begin)

    def fail(self, *, power: bool) -> None:
        """Die. Without power, what was not synced may be gone."""
        if self.up:
            self.world.note(f"{self.name} dies{' without power' if power else ''}, log {self.log.end}")
        self.crash()
        if power:
            self.log.lose_power(self.world.random)

    def lose_disk(self) -> None:
        """Die, and come back with an empty disk."""
        self.fail(power=False)
        self.world.note(f"{self.name} loses its disk")
        self.log.lose_disk()
        self.lost = True

    # News from etcd.

    def _told(self, key: str, item: Item | None) -> None:
        if key == PARTITION and item is not None:
            self._observe(item)
        elif key.startswith("broker/"):
            number = int(key.removeprefix("broker/"))
            if item is None:
                self.alive.pop(number, None)
            else:
                self.alive[number] = item.created

    def _look(self) -> None:
        self.ask(self.etcd, lambda: dict(self.etcd.items), self._seen)

    def _seen(self, items: dict[str, Item]) -> None:
        self.alive = _alive(items)
        if PARTITION in items:
            self._observe(items[PARTITION])

    def _observe(self, item: Item) -> None:
        assert self.replica is not None
        before = self.replica.epoch
        self.replica.observe(item.value, item.changed, self.world.now)
        self._mend()
        if self.replica.epoch != before:
            self._waiting = []
            if self.replica.leads:
                self.world.note(
                    f"{self.name} leads epoch {self.replica.epoch}, log {self.log.end}: {item.value.in_sync}"
                )
        self._answer()

    # Replicating.

    def _fetch(self) -> None:
        assert self.replica is not None
        request = self.replica.request()
        if request is not None:
            repairing = self.in_place and any(offset < self.replica.high_watermark for offset in self.log.known_damage)
            request = request._replace(damaged=repairing)
            assert self.replica.state is not None
            leader = self.peers[self.replica.state.leader]
            self.ask(leader, lambda: leader.serve(request), self._take)

    def serve(self, request: FollowerRequest) -> Answer | None:
        """Answer a follower."""
        if self.replica is None:
            return None
        try:
            response = self.replica.fetch(request, self.world.now)
        except (NotLeading, DamageMet):
            return None
        self._answer()
        return Answer(response, self.log.begins)

    def _take(self, answer: Answer | None) -> None:
        replica = self.replica
        if answer is None or replica is None or replica.leads:
            return
        response, begins = answer.response, answer.begins
        if response.epoch == replica.epoch and response.end == self.log.end < begins.offset:
            self.world.note(f"{self.name} goes on at {begins.offset}, from {self.log.end}")
            self.restart(begins)
            return
        before = self.log.end
        replica.take(response)
        if self.log.end < before:
            self.world.note(f"{self.name} cuts its log from {before} to {self.log.end}")
            self._check_cut()
        if response.epoch == replica.epoch:
            self.log.delete_before(min(begins.offset, replica.high_watermark, self.log.end))

    def restart(self, begins: LogStart) -> None:
        """Go on where the leader's log begins: what is before that is gone."""
        self.log.restart(begins)

    def _retain(self) -> None:
        """Now and then a leader deletes something old, however little."""
        if self.retains and self.replica is not None and self.replica.leads:
            most = max(self.deletable(), self.log.start)
            self.log.delete_before(self.world.random.choice([most, self.world.random.randint(self.log.start, most)]))
            self.truth.start = max(self.truth.start, self.log.start)

    def deletable(self) -> int:
        """Before which offset a leader may delete."""
        assert self.replica is not None
        return min(self.replica.high_watermark, self.log.end)

    def _look_for_damage(self) -> None:
        """Repair it, or begin anew, as another one, if something is damaged that others have."""
        if self.world.calm or self.world.random.random() < 0.3:
            self.log.scrub()
        state = None if self.replica is None else self.replica.state
        if state is None or not self.log.known_damage:
            return
        if self.in_place:
            self._repair_in_place(state)
        elif self.can_be_spared(state, self.alive) or self.should_hand_over(state):
            self.repair()

    def _repair_in_place(self, state: PartitionState) -> None:
        """Ask all others for what is damaged."""
        for offset in self.log.known_damage:
            for peer in (self.peers[broker] for broker in state.replicas if broker != self.number):
                self.ask(peer, partial(peer.give, offset), partial(self._repaired, offset))

    def give(self, offset: int) -> Entry | None:
        """Return the record that another replica lacks, whoever leads; None if it is not durable and whole here."""
        held = self.log.start <= offset < self.log.durable_end
        try:
            return self.log.verified(offset) if held else None
        except DamageMet:
            return None

    def _repaired(self, offset: int, entry: Entry | None) -> None:
        if entry is not None and offset in self.log.known_damage and self.may_repair(offset, entry):
            self.world.note(f"{self.name} is repaired at {offset}")
            self.log.repair(offset, entry)

    def may_repair(self, offset: int, entry: Entry) -> bool:
        """Return whether another replica's record is the one that was here.

        It must be acknowledged, and of the epoch that is known.
        """
        assert self.replica is not None
        return offset < self.replica.high_watermark and entry.epoch == self.log.epoch_before(offset + 1)

    def should_hand_over(self, state: PartitionState) -> bool:
        """Return whether another broker is to lead instead, because a third one has to catch up."""
        return should_hand_over(state, self.number, self.alive)

    def repair(self) -> None:
        """Register anew, and leave the in-sync set on the way, if that can be."""
        self.world.note(f"{self.name} is damaged at {sorted(self.log.known_damage)}, and begins anew")
        self.crash()
        self.world.after(0.1, self.begin)

    def _mend(self) -> None:
        """Remove what is damaged, once nobody counts on this replica."""
        assert self.replica is not None
        if self._unworthy and not self.replica.leads:
            self._unworthy = False
            self.log.truncate(min(self.log.known_damage, default=self.log.end))
            self.world.note(f"{self.name} cuts its log at the damage, to {self.log.end}")
            self.replica.high_watermark = min(self.replica.high_watermark, self.log.end)

    def _check_cut(self) -> None:
        assert self.replica is not None
        if self.log.end < self.replica.high_watermark:
            raise Violation(f"cut: {self.name} removed records below its high watermark")

    def _sync(self) -> None:
        assert self.replica is not None
        self.log.sync()
        self.replica.synced()
        self._answer()

    def _checkpoint(self) -> None:
        assert self.replica is not None
        self.checkpoint = max(self.checkpoint, min(self.replica.high_watermark, self.log.durable_end))

    def _propose(self) -> None:
        assert self.replica is not None
        proposal = self.replica.propose(self.alive, self.world.now)
        if proposal is not None:
            self.world.note(f"{self.name} proposes {proposal.state.in_sync}")
            self.ask(self.etcd, lambda: self.write_proposal(proposal), lambda taken: self._proposed(proposal, taken))

    def write_proposal(self, proposal: Proposal) -> int:
        """Ask etcd to take it, if nothing has changed since."""
        guards = [Guard(PARTITION, changed=proposal.revision), *self._alive_still(proposal.alive)]
        return self.etcd.write(guards, {PARTITION: proposal.state})

    def _alive_still(self, alive: Members) -> list[Guard]:
        return [Guard(f"broker/{broker}", created=incarnation) for broker, incarnation in alive.items()]

    def _proposed(self, proposal: Proposal, taken: int) -> None:
        assert self.replica is not None
        if taken:
            self.replica.observe(proposal.state, taken, self.world.now)
            self._answer()
        else:
            self.replica.refused(proposal)

    # Controlling.

    def _control(self) -> None:
        """Be the controller if nobody else is, and see to it that the partition is led."""
        self.ask(self.etcd, self._campaign, self._campaigned)

    def _campaign(self) -> tuple[int, dict[str, Item]]:
        item = self.etcd.items.get(CONTROLLER)
        if item is None:
            self.etcd.write([], {CONTROLLER: self.number}, LEASE)
        elif item.value == self.number:
            self.etcd.keep_alive(CONTROLLER, item.created, LEASE)
        item = self.etcd.items[CONTROLLER]
        return (item.created if item.value == self.number else 0), dict(self.etcd.items)

    def _campaigned(self, campaign: tuple[int, dict[str, Item]]) -> None:
        self._controlling, items = campaign
        if not self._controlling:
            return
        alive = _alive(items)
        state: PartitionState = items[PARTITION].value
        election = self.election_kind(MIN_INSYNC)
        if election.is_led(state, alive):
            self._ends = {}
            moved = self.moving_kind().step(state, alive, alive)
            if moved is not None:
                self._write_move(moved, items[PARTITION].changed, alive)
            return
        for broker in election.asks(state, alive):
            self.ask(self.peers[broker], self.peers[broker].tell_end, self._heard)
        elected = election.elect(state, alive, self._current_ends(alive))
        if elected is not None:
            guards = [
                Guard(CONTROLLER, created=self._controlling),
                Guard(PARTITION, changed=items[PARTITION].changed),
                Guard(f"broker/{elected.leader}", created=elected.leader_incarnation),
            ]
            self.ask(self.etcd, lambda: self.etcd.write(guards, {PARTITION: elected}), lambda _: None)

    def _write_move(self, moved: PartitionState, revision: int, alive: Members) -> None:
        guards = [Guard(CONTROLLER, created=self._controlling), Guard(PARTITION, changed=revision)]
        guards += self._alive_still(
            {broker: since for broker, since in moved.in_sync.items() if alive.get(broker) == since}
        )
        self.world.note(f"{self.name} moves to {moved.replicas}, led by {moved.leader}, in sync {moved.in_sync}")
        self.ask(self.etcd, lambda: self.etcd.write(guards, {PARTITION: moved}), lambda _: None)

    def tell_end(self) -> tuple[int, int, LogEnd] | None:
        """For the controller, after a total outage."""
        return None if self.replica is None else (self.number, self.incarnation, self.replica.log_end)

    def _heard(self, told: tuple[int, int, LogEnd] | None) -> None:
        if told is not None:
            self._ends[told[0]] = told[1:]

    def _current_ends(self, alive: Members) -> dict[int, LogEnd]:
        """Return the log ends of the incarnations that are alive: an earlier incarnation may have had more."""
        return {broker: end for broker, (since, end) in self._ends.items() if alive.get(broker) == since}

    # Clients.

    def produce(self, producer: int, sequence: int, answer: Callable[[int], None]) -> None:
        """Take a record, if this one leads, and answer when it is acknowledged.

        One that is not the next of those that are known is refused, and comes again from its producer under another
        name: so it is taken, though it may be there already.
        """
        replica = self.replica
        if replica is None or not replica.leads:
            return
        offset = self.log.find(producer, sequence)
        if offset is None:
            if sequence <= self.log.last_sequence(producer):
                return
            offset = self.log.end
            self.log.add([Entry(replica.epoch, producer, sequence)])
        self._waiting.append((offset, (producer, sequence), answer))
        self._answer()

    def answered(self, offset: int) -> bool:
        """Return whether a record is acknowledged, also one that was sent before."""
        assert self.replica is not None
        return offset < self.replica.high_watermark

    def _answer(self) -> None:
        if self.replica is None or not self.replica.leads:
            return
        left = []
        for offset, record, answer in self._waiting:
            if self.answered(offset):
                self.truth.tell(offset, record, self.name, acknowledged=True)
                answer(offset)
            else:
                left.append((offset, record, answer))
        self._waiting = left

    def readable(self) -> int | None:
        """Before which offset records are shown; None while it may not answer readers."""
        assert self.replica is not None
        return self.replica.readable if self.may_lead() else None

    def may_lead(self) -> bool:
        """Return whether nobody else can have been elected: the lease lasts, counted from before it was asked for."""
        return self.world.now - self._confirmed <= LEASE

    def read(self) -> None:
        """A client reads on; another one, everything."""
        if self.replica is None or not self.replica.leads:
            return
        reads_on, readable = self.world.random.random() < 0.8, self.readable()
        if readable is not None:
            end = min(readable, self.log.end)
            self.truth.check_read(end, f"a reader of {self.name}")
            start = max(end - 20, self.log.start) if reads_on else self.log.start
            with suppress(DamageMet):
                for offset in range(start, end):
                    self.truth.tell(offset, self.log.verified(offset)[1:], f"a reader of {self.name}")


def _alive(items: dict[str, Item]) -> dict[int, int]:
    """The brokers that are registered, and their incarnations."""
    return {int(key.removeprefix("broker/")): item.created for key, item in items.items() if key.startswith("broker/")}


@dataclass
class Cluster:
    """Three brokers, an etcd, clients that never give up, and a course of faults."""

    seed: int
    broker_kind: type[Broker] = Broker
    faults: float = 10.0
    """For how long things go wrong."""
    power: float = 0.7
    """The probability that a death takes what was not synced."""
    count: int = 3
    """The number of brokers. The first three hold the partition."""
    truth_kind = Truth
    client_kind: ClassVar[type[Client]]
    cleans = True
    """True if old records are deleted and some are damaged. A subclass that needs every record sets it to False."""

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.truth = self.truth_kind(self.world)
        self.etcd = Etcd(self.world)
        self.brokers = {
            number: self.broker_kind(self.world, number, self.etcd, self.truth) for number in range(self.count)
        }
        for broker in self.brokers.values():
            broker.peers = self.brokers
            self.truth.logs.append(broker.log)
        self.etcd.write([], {PARTITION: PartitionState((0, 1, 2), {0: 0, 1: 0, 2: 0})})
        self._lost: Broker | None = None
        self.truth.whole = self._whole
        # Each history has its own temper: some are all about the network, others about power.
        temper = self.world.random
        faults = [
            self._one_dies,
            self._all_die,
            self._one_pauses,
            self._links_break,
            self._links_heal,
            self._answers_are_lost,
            self._lose_a_disk,
            self._client_forgets,
        ]
        self._faults = {fault: temper.random() ** 3 for fault in faults}
        if self.cleans and temper.random() < 0.5:
            self._faults[self._damage_one] = 1.0
        retains = self.cleans and temper.random() < 0.6
        for broker in self.brokers.values():
            broker.retains = retains
            broker.in_place = self.seed % 2 == 1
        self.clients = [self.client_kind(self.world, number, self) for number in range(3)]

    def run(self) -> None:
        """Let it all happen, then let it heal, and look whether everything is still there."""
        for broker in self.brokers.values():
            broker.begin()
        for client in self.clients:
            client.start()
            client.every(0.03, client.produce)
        reader = Process(self.world, "reader")
        reader.start()
        reader.every(0.3, self._read)
        self.world.after(self.world.delay(0.5), self._go_wrong)
        self.world.run(self.faults)
        self._heal()
        for _ in range(60):
            self.world.run(self.world.now + 1.0)
            if not self.truth.acknowledged:
                continue
            for client in self.clients:
                client.stop()
            if self._settled():
                break
        self._check()

    def _settled(self) -> bool:
        """Return whether all logs are the same and undamaged, and everything in them is acknowledged."""
        replicas = [broker.replica for broker in self.brokers.values()]
        logs = [broker.log for broker in self.brokers.values()]
        leads = [
            replica
            for replica in replicas
            if replica is not None and replica.leads and replica.high_watermark == replica.log.end
        ]
        damaged = any(broker.log.damaged for broker in self.brokers.values())
        alike = all(self._alike(log, other) for log, other in pairwise(logs))
        return alike and len(leads) == 1 and all(replica is not None for replica in replicas) and not damaged

    def _alike(self, log: SimulatedLog, other: SimulatedLog) -> bool:
        """Return whether two logs have the same records."""
        return (log.start, log.entries) == (other.start, other.entries)

    def _read(self) -> None:
        for broker in self.brokers.values():
            broker.do(broker.read)

    def _go_wrong(self) -> None:
        if self.world.now >= self.faults:
            return
        fault = self.world.random.choices(list(self._faults), list(self._faults.values()))[0]
        fault()
        self.world.after(self.world.delay(0.5), self._go_wrong)

    def _any_broker(self) -> Broker:
        return self.world.random.choice(list(self.brokers.values()))

    def _one_dies(self) -> None:
        self._die(self._any_broker())

    def _all_die(self) -> None:
        for broker in self.brokers.values():
            self._die(broker)

    def _one_pauses(self) -> None:
        broker = self._any_broker()
        broker.pause(self.world.random.choice([0.5, 2.5]))
        self.world.note(f"{broker.name} pauses")

    def _links_break(self) -> None:
        random = self.world.random
        source, other = random.sample([*(broker.name for broker in self.brokers.values()), "etcd"], 2)
        self.world.cut(source, other)
        if random.random() < 0.5:
            self.world.cut(other, source)
        self.world.note(f"{source} does not reach {other}")

    def _links_heal(self) -> None:
        self.world.heal()
        self.world.note("all links work")

    def _answers_are_lost(self) -> None:
        """etcd does what a broker asks of it, and the broker does not hear of it."""
        self.world.cut("etcd", self._any_broker().name)

    def _client_forgets(self) -> None:
        self.world.random.choice(self.clients).forget()

    def _die(self, broker: Broker) -> None:
        if broker.up:
            broker.fail(power=self.world.random.random() < self.power)
            self.world.after(self.world.delay(0.7), broker.begin)

    def _lose_a_disk(self) -> None:
        """One at a time, and the next one only when the last is back in sync: nothing survives two."""
        if not self._whole():
            return
        broker = self._lost = self._any_broker()
        if broker.up:
            broker.lose_disk()
            self.world.after(self.world.delay(1.0), broker.begin)
            if self.world.random.random() < 0.3:
                self._all_die()

    def _damage_one(self) -> None:
        """One replica at a time, and only what all others have: nothing survives damage to the only copy."""
        state: PartitionState = self.etcd.items[PARTITION].value
        broker = self._any_broker()
        shared = min(holder.log.durable_end for holder in self.brokers.values())
        start = max(holder.log.start for holder in self.brokers.values())
        if self._whole() and len(state.in_sync) == len(self.brokers) and start < shared:
            self._lost = broker
            offset = self.world.random.randrange(start, shared)
            broker.log.damage(offset)
            self.world.note(f"{broker.name} is damaged at {offset}")
            if self.world.random.random() < 0.5:  # and found at once, but another one dies while it is repaired
                broker.log.scrub()
                leader = self.brokers.get(state.leader, broker)
                self.world.after(self.world.delay(0.4), lambda: self._die(leader))

    def _whole(self) -> bool:
        """Return whether the disk that was last lost or damaged has been made up for."""
        last = self._lost
        state: PartitionState = self.etcd.items[PARTITION].value
        return last is None or (
            not last.lost and not last.log.damaged and state.in_sync.get(last.number) == last.incarnation
        )

    def _heal(self) -> None:
        self.world.note("everything heals")
        self.world.calm = True
        self.world.heal()
        for broker in self.brokers.values():
            broker.pause(0)
            if not broker.up:
                broker.begin()

    def _check(self) -> None:
        leaders = [broker for broker in self.brokers.values() if broker.replica is not None and broker.replica.leads]
        if not leaders:
            raise Violation("stuck: nobody leads, though everything works")
        leader = max(leaders, key=lambda broker: broker.replica.epoch if broker.replica else 0)
        leader.read()
        for broker in self.brokers.values():
            self.truth.check(broker.log, broker.name)
            if broker.log.damaged:
                raise Violation(f"stuck: {broker.name} is damaged in the end")
            if not self._alike(broker.log, leader.log):
                raise Violation(f"diverged: the logs of {broker.name} and {leader.name} differ in the end")
        if not self.truth.acknowledged:
            raise Violation("stuck: nothing was ever acknowledged")


class Client(Process):
    """A producer that sends one record after the other, and each until it is acknowledged."""

    def __init__(self, world: World, number: int, cluster: Cluster) -> None:
        super().__init__(world, f"client {number}")
        self.number = number
        self._cluster = cluster
        self._sequence = 0
        self._sent = 0
        self._stopped = False
        self._leader = 0

    def stop(self) -> None:
        """Send nothing new."""
        self._stopped = True

    def forget(self) -> None:
        """Send the last one again, though it was acknowledged: as if the answer had been lost."""
        self._sequence = max(self._sent - self.forgets(), 0)

    def forgets(self) -> int:
        """Return how many of its last records the client sends again."""
        return 1

    def produce(self) -> None:
        """Try the broker that answered last, or else any: the one that leads takes it."""
        if self._stopped:
            return
        sequence = self._sequence
        if self.world.random.random() < 0.2:
            self._leader = self.world.random.randrange(len(self._cluster.brokers))
        broker = self._cluster.brokers[self._leader]

        def answer(_: int) -> None:
            self.world.send(broker.name, self, lambda: self._acknowledged(sequence, broker.number))

        def send() -> None:
            broker.produce(self.number, sequence, answer)

        self.world.send(self.name, broker, send)

    def _acknowledged(self, sequence: int, leader: int) -> None:
        self._leader = leader
        if sequence == self._sequence:
            self._sequence += 1
            self._sent = max(self._sent, self._sequence)


Cluster.client_kind = Client
