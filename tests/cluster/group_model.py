"""Groups in the model of the cluster: real coordinators over simulated logs, and members whose answers are lost.

Everything that goes wrong in the model goes wrong here too. Besides, what a coordinator wants written may be written
late, by a thread that has outlived the leadership of its broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from headwater.broker.clustered.coordinator import Coordinator
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.internal import Record
from headwater.cluster.replication.replica import FollowerRequest, NotLeading
from headwater.core.errors import HeadwaterError, StaleMember
from headwater.streams.group import Commit, GroupInfo
from headwater.streams.membership import Member
from headwater.streams.topic import TopicPartition
from headwater.testing import ManualClock
from tests.cluster.etcd import Etcd, Guard, Item
from tests.cluster.model import PARTITION, Answer, Broker, Cluster, Truth, Violation
from tests.cluster.world import Process, World

GROUP: Final = "g"
TOPIC: Final = "orders"
UUID: Final = bytes(16)
PLACES: Final = [TopicPartition(TOPIC, number) for number in range(4)]
FOREVER: Final = 1e9
PATIENCE: Final = 0.6
"""After so long without an answer a member asks again, anyone."""


class GroupEntry(NamedTuple):
    """The records that a coordinator has appended at once."""

    epoch: int
    producer: int
    sequence: int
    records: tuple[Record, ...]


def partitions_of(_: Member) -> list[TopicPartition]:
    """All members want everything."""
    return PLACES


@dataclass
class Told:
    """The facts that members and others have been told."""

    positions: dict[int, int] = field(default_factory=dict)
    """The group's offset in each partition, as somebody knows it for sure."""
    generation: int = 0
    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)

    def owns(self, generation: int, partitions: frozenset[TopicPartition], member: str) -> None:
        """A member was told that these partitions are its own."""
        self.generation = max(self.generation, generation)
        for partition in partitions:
            if self.owners.setdefault((generation, partition), member) != member:
                raise Violation(f"shared: {partition} has two owners in generation {generation}")

    def check(self, info: GroupInfo | None, floor: Mapping[int, int], generation: int, who: str) -> None:
        """Check that a shown state is not older than the state that was known when somebody asked for it."""
        for number, offset in floor.items():
            position = None if info is None else info.positions.get((UUID, number))
            if position is None or position.offset < offset:
                raise Violation(f"back: {number} was at {offset}, and {who} shows {position}")
        if (0 if info is None else info.generation) < generation:
            raise Violation(f"back: the generation was {generation}, and {who} shows {info}")


class GroupBroker(Broker):
    """A broker that coordinates the group while it leads."""

    coordinator_kind: type[Coordinator] = Coordinator
    told: Told
    sequences: count[int]

    def __init__(self, world: World, number: int, etcd: Etcd, truth: Truth) -> None:
        super().__init__(world, number, etcd, truth)
        self.coordinator: Coordinator | None = None
        self._process = 0
        self._clock = ManualClock()
        self._forget()

    def _forget(self) -> None:
        if self.coordinator is not None:
            self.coordinator.end()
        self.coordinator = None
        self._epoch = 0
        self._written: list[tuple[int, int]] = []
        self._writing = False
        self._reads: list[tuple[int, Callable[[], None]]] = []

    def begin(self) -> None:
        self._forget()
        super().begin()

    def fail(self, *, power: bool) -> None:
        self._process += 1
        super().fail(power=power)

    def _kept(self, kept: bool, asked: float) -> None:
        """Keep the process: a broker that has only lost its registration is the same process, and its threads go on."""
        process = self._process
        super()._kept(kept, asked)
        self._process = process

    # Coordinating.

    def _observe(self, item: Item) -> None:
        super()._observe(item)
        self._coordinate()

    def _sync(self) -> None:
        super()._sync()
        self._coordinate()

    def serve(self, request: FollowerRequest) -> Answer | None:
        if self.replica is not None:
            self.replica.heard(request)
        answer = super().serve(request)
        self._coordinate()
        return answer

    def _coordinate(self) -> None:
        replica = self.replica
        if replica is None:
            return
        if self.coordinator is not None and not (replica.leads and replica.epoch == self._epoch):
            self._forget()
        if replica.leads and self.coordinator is None:
            self.coordinator = self.coordinator_kind(self._clock, FOREVER)
            self._epoch = replica.epoch
            self._end = self.replay_end()
        if self.coordinator is None:
            return
        if not self.coordinator.serves() and replica.high_watermark >= self._end:
            entries = self.log.entries[: self._end]
            self.coordinator.replay([record for entry in entries for record in getattr(entry, "records", ())])
        while self._written and self._written[0][0] <= replica.high_watermark:
            self.coordinator.acknowledge(self._written.pop(0)[1])
        for mark, read in list(self._reads):
            if self.is_sure(mark):
                self._reads.remove((mark, read))
                read()

    def replay_end(self) -> int:
        """Up to where the log is replayed."""
        return self.log.end

    def is_sure(self, mark: int) -> bool:
        """Return whether nobody else has led since the mark."""
        assert self.replica is not None
        return self.replica.confirmed(mark)

    # Writing.

    def _write(self) -> None:
        """Have what was noted written, one piece after the other."""
        coordinator = self.coordinator
        if coordinator is None or self._writing:
            return
        records, noted = coordinator.take(), coordinator.noted
        if not records:
            return
        self._writing = True
        epoch, process = self._epoch, self._process
        delay = 2.0 if self.world.chance(0.05) else self.world.delay(0.005)

        def write() -> None:
            if process != self._process or not self.up:
                return
            end = self._append(epoch, records)
            if self.coordinator is coordinator and end is not None:
                self._writing = False
                self._written.append((end, noted))
                self._coordinate()
                self._write()

        self.world.after(delay, write)

    def _append(self, epoch: int, records: list[Record]) -> int | None:
        replica = self.replica
        if replica is None or not replica.leads or not self.may_append(epoch):
            return None
        self.log.add([GroupEntry(replica.epoch, self.number, next(self.sequences), tuple(records))])  # type: ignore[list-item]
        return self.log.end

    def may_append(self, epoch: int) -> bool:
        """Return whether the broker may now write what it decided in an epoch."""
        assert self.replica is not None
        return epoch == self.replica.epoch

    # Clients.

    def ask_rules(self, rule: Callable[[Coordinator], Any], answer: Callable[[Any], None]) -> None:
        """Apply a rule, and answer when that may be told; NotLeading is the answer of who does not coordinate."""
        coordinator = self.coordinator
        if coordinator is None:
            answer(NotLeading())
        else:
            coordinator.do(lambda: rule(coordinator), answer)
            self._write()

    def look(self) -> None:
        """Somebody looks at the group: what it shows is not older than what is known now."""
        if self.coordinator is None or self.replica is None:
            return
        floor, generation = dict(self.told.positions), self.told.generation

        def shown(info: Any) -> None:
            if not isinstance(info, HeadwaterError | NotLeading):
                self.told.check(info, floor, generation, self.name)

        def describe(coordinator: Coordinator) -> GroupInfo | None:
            group = coordinator.groups.get(GROUP)
            return None if group is None else group.describe()

        self._reads.append((self.replica.mark(), lambda: self.ask_rules(describe, shown)))
        self._coordinate()

    def declare_dead(self) -> None:
        """Take a member out that was not heard for too long."""

        def take_out(coordinator: Coordinator) -> None:
            group = coordinator.groups.get(GROUP)
            if group is not None and group._sessions:
                member = self.world.random.choice(sorted(group._sessions))
                group._sessions[member].heard -= 2 * FOREVER
                group.take_dead_out(partitions_of)

        self.ask_rules(take_out, lambda _: None)


class NamedMember(Process):
    """A member: it joins, settles, commits more and more, and leaves. Each until it is answered."""

    def __init__(self, world: World, number: int, cluster: GroupCluster) -> None:
        super().__init__(world, f"member {number}")
        self._cluster = cluster
        self._names = (f"{number}-{attempt}" for attempt in count())
        self._number = number
        self._member = ""
        self._owned: frozenset[TopicPartition] = frozenset()
        self._offsets: dict[int, int] = {}
        self._turn = 0
        self._asked_at = -PATIENCE
        self._rule: tuple[Callable[[Coordinator], Any], Callable[[Any], None]] | None = None
        self._broker: Broker | None = None
        self._asked_again = False
        self._stopped = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped = True

    def forget(self) -> None:
        """Ask again at once, as if there would be no answer."""
        self._asked_at = -PATIENCE

    def produce(self) -> None:
        """Ask for the next thing, or again for the last one."""
        if self._stopped or self.world.now - self._asked_at < PATIENCE:
            return
        if self._rule is None:
            self._rule = self._next()
            self._turn += 1
        turn, (rule, answer) = self._turn, self._rule
        self._asked_at = self.world.now
        if self._asked_again or self._broker is None:
            self._broker = self.world.random.choice(list(self._cluster.brokers.values()))
        broker, self._asked_again = self._broker, True
        assert isinstance(broker, GroupBroker)

        def told(outcome: Any) -> None:
            answer(outcome)  # what is told counts from now on, whether or not it arrives
            self.world.send(broker.name, self, lambda: self._answered(turn, outcome))

        self.world.send(self.name, broker, lambda: broker.ask_rules(rule, told))

    def _answered(self, turn: int, outcome: Any) -> None:
        if turn != self._turn or self._rule is None:
            return
        self._asked_at = -PATIENCE
        if isinstance(outcome, NotLeading):
            return  # it asks another one
        self._rule = None
        self._asked_again = False
        if isinstance(outcome, StaleMember):
            self._member, self._owned = "", frozenset()
        elif isinstance(outcome, tuple):
            self._owned = outcome[1].owned | outcome[1].leaving

    def _next(self) -> tuple[Callable[[Coordinator], Any], Callable[[Any], None]]:
        random = self.world.random
        if not self._member:
            self._member = next(self._names)
            return self._join(self._member)
        chosen = random.random()
        if chosen < 0.03:
            member, self._member, self._owned = self._member, "", frozenset()
            return lambda coordinator: coordinator.group(GROUP).leave(member, partitions_of), lambda _: None
        if chosen < 0.2 or not self._owned:
            return self._rebalance(self._member, self._owned if random.random() < 0.5 else frozenset())
        return self._commit(self._member, self._owned)

    def _join(self, member: str) -> tuple[Callable[[Coordinator], Any], Callable[[Any], None]]:
        def rule(coordinator: Coordinator) -> None:
            group = coordinator.group(GROUP)
            if not group.has_session(member):
                group.join([TOPIC], partitions_of, member_id=member)

        return rule, lambda _: None

    def _rebalance(
        self, member: str, holding: frozenset[TopicPartition]
    ) -> tuple[Callable[[Coordinator], Any], Callable[[Any], None]]:
        def told(outcome: Any) -> None:
            if isinstance(outcome, tuple):
                generation, rebalanced = outcome
                self._cluster.told.owns(generation, rebalanced.owned, member)

        return lambda coordinator: coordinator.group(GROUP).rebalance(member, partitions_of, FOREVER, holding), told

    def _commit(
        self, member: str, partitions: frozenset[TopicPartition]
    ) -> tuple[Callable[[Coordinator], Any], Callable[[Any], None]]:
        positions = self._cluster.told.positions
        offsets = {
            partition: positions.get(partition.partition, 0) + self.world.random.randint(0, 3)
            for partition in sorted(partitions)
        }
        commits = {partition: Commit((UUID, partition.partition), offset) for partition, offset in offsets.items()}
        turn = self._turn

        def told(outcome: Any) -> None:
            if isinstance(outcome, frozenset):
                for partition in offsets.keys() - outcome:
                    positions[partition.partition] = max(positions.get(partition.partition, 0), offsets[partition])
                    self._cluster.truth.acknowledged.add((self._number, turn))

        return lambda coordinator: coordinator.group(GROUP).commit(member, commits), told


@dataclass
class GroupCluster(Cluster):
    """Three brokers, and a group whose members never give up."""

    broker_kind: type[Broker] = GroupBroker
    cleans = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told = Told()
        sequences = count()
        for broker in self.brokers.values():
            assert isinstance(broker, GroupBroker)
            broker.told, broker.sequences = self.told, sequences
        self._faults[self._leadership_moves] = self.world.random.random() ** 2
        self._faults[self._leader_sleeps] = self.world.random.random() ** 3
        self.clients = [NamedMember(self.world, number, self) for number in range(5)]  # type: ignore[misc]

    def _leadership_moves(self) -> None:
        """Another one is to lead, as when leadership is given back: the one before lives on, and may lead again."""
        item = self.etcd.items[PARTITION]
        state: PartitionState = item.value
        known = ((broker, self.etcd.items.get(f"broker/{broker}")) for broker in sorted(state.in_sync))
        alive = {broker: registration.created for broker, registration in known if registration is not None}
        able = [broker for broker in alive if broker != state.leader and alive[broker] == state.in_sync[broker]]
        if able:
            leader = self.world.random.choice(able)
            moved = PartitionState(state.replicas, state.in_sync, leader, alive[leader], state.epoch + 1)
            self.etcd.write([Guard(PARTITION, changed=item.changed)], {PARTITION: moved})
            self.world.note(f"broker {leader} is to lead epoch {moved.epoch}")

    def _leader_sleeps(self) -> None:
        """It does nothing for so long that another one leads, and has not heard of it when it wakes up."""
        leader = self.brokers.get(self.etcd.items[PARTITION].value.leader)
        if leader is not None:
            leader.pause(5.0)
            self.world.note(f"{leader.name} sleeps")

    def _read(self) -> None:
        super()._read()
        for broker in self.brokers.values():
            assert isinstance(broker, GroupBroker)
            broker.do(broker.look)
            if self.world.random.random() < 0.03:
                broker.do(broker.declare_dead)

    def _check(self) -> None:
        super()._check()
        log = self.brokers[0].log
        coordinator = Coordinator(ManualClock(), FOREVER)
        records = [record for entry in log.entries for record in getattr(entry, "records", ())]
        coordinator.replay(records)
        group = coordinator.groups.get(GROUP)
        self.told.check(
            None if group is None else group.describe(), self.told.positions, self.told.generation, "the log"
        )
        last: dict[bytes, Any] = {}
        for number in range(1, len(records) + 1):
            key, value = records[number - 1]
            if key.startswith(b"p") and value is not None:
                offset = int.from_bytes(value[8:16], "little", signed=True)
                if offset < last.get(key, 0):
                    raise Violation(f"back: {key!r} was at {last[key]}, and is at {offset} in the log")
                last[key] = offset
