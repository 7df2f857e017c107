"""A stage: three replicas that do what the script says, in its order, and nothing by themselves.

Some of what goes wrong needs so many coincidences that no die shows it in a thousand years. A script does at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from headwater.cluster.control.election import Election
from headwater.cluster.control.metadata import PartitionState, Proposal
from headwater.cluster.replication.replica import FollowerRequest, FollowerResponse, NotLeading, Replica
from tests.cluster.log import Entry, SimulatedLog
from tests.cluster.model import MIN_INSYNC, PATIENCE, Violation


@dataclass
class Rules:
    """The rules that the script's brokers keep to. Each rule can be taken away."""

    replica: type[Replica] = Replica
    election: type[Election] = Election
    lost_answers_are_unknown: bool = True
    proposals_name_the_living: bool = True
    short_logs_leave: bool = True
    repairs_register_anew: bool = True

    @property
    def missing(self) -> str:
        """The name of what is taken away."""
        kinds = [kind.__name__ for kind in (self.replica, self.election) if kind not in (Replica, Election)]
        return (kinds + [rule.name for rule in fields(self) if getattr(self, rule.name) is False])[0]


@dataclass
class Stage:
    """Brokers 0, 1 and 2, all in sync, led by 0 in epoch 1."""

    rules: Rules
    replicas: dict[int, Replica] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)
    seen: dict[int, Entry] = field(default_factory=dict)
    """The records that clients have been told of, by offset."""

    def __post_init__(self) -> None:
        self.now = 0.0
        self.revision = 0
        self.logs = {number: SimulatedLog() for number in range(3)}
        self.checkpoints = dict.fromkeys(range(3), 0)
        self.state = PartitionState((0, 1, 2), {0: 0, 1: 0, 2: 0})
        for number in range(3):
            self.start(number)
        self.elect({number: self.replicas[number].log_end for number in range(3)})

    # Lives.

    def start(self, broker: int) -> Replica:
        """A new incarnation. One that has less than it had leaves the in-sync set before anybody knows of it."""
        log = self.logs[broker]
        if broker in self.state.in_sync and log.end < self.checkpoints[broker] and self.rules.short_logs_leave:
            self.write(self.state.without(broker))
        self.checkpoints[broker] = min(self.checkpoints[broker], log.end)
        self.revision += 1
        self.alive[broker] = self.revision
        replica = self.replicas[broker] = self.rules.replica(
            broker,
            self.revision,
            log,
            min_insync=MIN_INSYNC,
            patience=PATIENCE,
            high_watermark=self.checkpoints[broker],
        )
        return replica

    def die(self, *brokers: int) -> None:
        """End them; their logs stay as they are."""
        for broker in brokers:
            self.checkpoints[broker] = self.replicas.pop(broker).high_watermark
            del self.alive[broker]

    def shorten(self, broker: int, end: int) -> None:
        """A disk has kept less than it promised."""
        self.logs[broker].truncate(end)

    def repair(self, broker: int, damaged: int) -> None:
        """Leave the in-sync set, and remove everything from the damage on: as another incarnation, by the rule."""
        self.write(self.state.without(broker))
        if self.rules.repairs_register_anew:
            self.die(broker)
            self.shorten(broker, damaged)
            self.start(broker)
        else:
            self.shorten(broker, damaged)
            self.replicas[broker].high_watermark = damaged
        self.tell(*self.alive)

    # etcd.

    def write(self, state: PartitionState) -> None:
        """The partition's key gets another value."""
        self.revision += 1
        self.state = state
        self.partition_revision = self.revision

    def tell(self, *brokers: int) -> None:
        """These hear of the partition's state."""
        for broker in brokers:
            self.replicas[broker].observe(self.state, self.partition_revision, self.now)
        self._look()

    def elect(self, ends: dict[int, object] | None = None) -> int:
        """Elect a leader as the controller does, among the living, tell all of them, and return the leader."""
        elected = self.rules.election(MIN_INSYNC).elect(self.state, self.alive, ends or {})  # type: ignore[arg-type]
        assert elected is not None, "nobody may lead"
        self.write(elected)
        self.tell(*self.alive)
        return elected.leader

    def propose(self, leader: int) -> Proposal:
        """Return the leader's proposal to etcd."""
        proposal = self.replicas[leader].propose(self.alive, self.now)
        assert proposal is not None, "the leader has nothing to propose"
        return proposal

    def take(self, proposal: Proposal) -> bool:
        """etcd gets a proposal, and takes it if its guards hold."""
        named = proposal.alive if self.rules.proposals_name_the_living else {}
        if proposal.revision != self.partition_revision or any(self.alive.get(b) != i for b, i in named.items()):
            return False
        self.write(proposal.state)
        return True

    def lose_answer(self, leader: int, proposal: Proposal) -> None:
        """The leader waits for etcd's answer in vain."""
        if not self.rules.lost_answers_are_unknown:
            self.replicas[leader].refused(proposal)

    # Records.

    def append(self, leader: int, count: int = 1) -> None:
        """Records of a client, durable at the leader."""
        log, replica = self.logs[leader], self.replicas[leader]
        for _ in range(count):
            log.add([Entry(replica.epoch, leader, log.end)])
        log.sync()
        replica.synced()
        self._look()

    def ask(self, follower: int) -> FollowerRequest:
        """Return the request that a follower sends its leader, now or later."""
        request = self.replicas[follower].request()
        assert request is not None
        return request

    def serve(self, leader: int, request: FollowerRequest) -> FollowerResponse | None:
        """The leader's answer; None when it refuses."""
        try:
            return self.replicas[leader].fetch(request, self.now)
        except NotLeading:
            return None
        finally:
            self._look()

    def answer(self, follower: int, response: FollowerResponse | None) -> None:
        """A follower gets an answer, and what is in it becomes durable."""
        if response is None:
            return
        replica = self.replicas[follower]
        replica.take(response)
        self.logs[follower].sync()
        if self.logs[follower].end < replica.high_watermark:
            raise Violation(f"cut: broker {follower} removed records below its high watermark")

    def fetch(self, follower: int, leader: int, times: int = 1) -> None:
        """Asked, served and answered."""
        for _ in range(times):
            self.answer(follower, self.serve(leader, self.ask(follower)))

    def _look(self) -> None:
        """Clients read whatever a leader shows."""
        for broker, replica in self.replicas.items():
            if replica.leads:
                for offset in range(replica.high_watermark):
                    if offset >= replica.log.end:
                        raise Violation(f"lost: broker {broker} leads, and has nothing at {offset}")
                    entry = self.logs[broker].entries[offset]
                    if self.seen.setdefault(offset, entry) != entry:
                        raise Violation(f"diverged: offset {offset} was {self.seen[offset]}, broker {broker}: {entry}")

    def check(self, leader: int) -> None:
        """The leader has everything that a client has seen."""
        entries = self.logs[leader].entries
        for offset, entry in self.seen.items():
            if offset >= len(entries) or entries[offset] != entry:
                raise Violation(f"lost: {entry} was seen at {offset}, and broker {leader} leads without it")
