"""Transactions as a model: the real coordinator, carrier and book over logs whose leaders change at any moment.

Time is virtual and everything is drawn from one seed, so a history repeats. The logs keep what the replication of
`model.py` promises and no more: what is acknowledged stays, and of the rest a new leader has whatever it likes.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, NamedTuple

from headwater.cluster.replication.carrier import Carrier, Portion
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.deciding import Decider, Note, Verdict
from headwater.cluster.transactions.stages import Known
from headwater.cluster.transactions.transaction_log import (
    PartitionWrites,
    StageRange,
    TransactionLog,
    TransactionRequest,
)
from headwater.core.errors import HeadwaterError, NotLeader, TransactionAborted
from tests.cluster.model import Violation

UUID = bytes(16)
LOG = (b"t" * 16, 0)
PARTITIONS = 3
FAULTS = 6.0
"""For how long leaders change. Seconds."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Value(NamedTuple):
    """A record: whose, of which batch, in which attempt at it."""

    client: int
    batch: int
    attempt: int


class Entry(NamedTuple):
    """An append: all of it is there or nothing."""

    epoch: int
    content: Any


@dataclass
class Rules:
    """The rules that the model keeps to. Each rule can be taken away."""

    transaction_log: type[TransactionLog] = TransactionLog
    decider: type[Decider] = Decider
    carrier: type[Carrier] = Carrier
    stages_wait_for_all: bool = True
    decisions_wait_for_all: bool = True
    groups_are_whole: bool = True
    applies_once: bool = True
    successors_replay: bool = True
    holds_stages: bool = True

    @property
    def missing(self) -> str:
        """The name of what is taken away."""
        kinds = [kind.__name__ for kind in (self.transaction_log, self.decider, self.carrier)]
        kinds = [name for name in kinds if name not in ("TransactionLog", "Decider", "Carrier")]
        return " and ".join(kinds + [rule.name for rule in fields(self) if getattr(self, rule.name) is False])


class Log:
    """A replicated log: what its leader has, and how much of that is acknowledged."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.entries: list[Entry] = []
        self.epoch = 1
        self.acknowledged = 0

    def append(self, epoch: int, content: Any) -> int:
        """Append an entry, and return the new end of the log; raise NotLeading for a leader that is none any more."""
        self.check(epoch)
        self.entries.append(Entry(epoch, content))
        return len(self.entries)

    def check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise NotLeading

    async def wait_for(self, epoch: int, end: int) -> None:
        """Return when all replicas have it; raises NotLeading."""
        await asyncio.sleep(self._random.expovariate(200))
        self.check(epoch)
        self.acknowledged = max(self.acknowledged, end)

    def elect(self, *, whole: bool = True) -> None:
        """Another leader, which has everything that is acknowledged."""
        kept = self._random.randint(self.acknowledged, len(self.entries))
        last = self.entries[kept] if kept < len(self.entries) else None
        del self.entries[kept:]
        if not whole and last is not None and isinstance(last.content, Group) and len(last.content.values) > 1:
            part = self._random.randint(1, len(last.content.values) - 1)
            self.entries.append(Entry(last.epoch, last.content._replace(values=last.content.values[:part])))
        self.epoch += 1


class Group(NamedTuple):
    """The values that a decision has written to a partition."""

    number: int
    values: tuple[Value, ...]


class StagedPartition:
    """A partition and its stage log, which are led together."""

    def __init__(self, random: Random, rules: Rules) -> None:
        self._rules = rules
        self.log = Log(random)
        self.stage = Log(random)
        self.known = Known(1, 0)
        self.lost: list[StageRange] = []
        """The ranges that were decided and are not staged any more."""

    def elect(self) -> None:
        """Another leader, of both."""
        self.log.elect(whole=self._rules.groups_are_whole)
        self.stage.elect()
        self.stage.epoch = self.log.epoch
        self.known = Known(self.log.epoch, len(self.stage.entries))

    async def put(self, values: Sequence[Value]) -> StageRange:
        """Stage something, acknowledged by all."""
        epoch, known = self.stage.epoch, self.known
        end = self.stage.append(epoch, tuple(values))
        staged = StageRange(epoch, end - 1, end)
        known.staged(staged)
        if self._rules.stages_wait_for_all:
            await self.stage.wait_for(epoch, end)
        return staged

    def hold(self, ranges: Sequence[StageRange]) -> None:
        """Make sure that it is there."""
        for staged in ranges if self._rules.holds_stages else ():
            is_staged = staged.end <= len(self.stage.entries) and self.stage.entries[staged.start].epoch == staged.epoch
            if not is_staged or not self.known.hold(staged):
                raise TransactionAborted("gone")

    async def apply(self, portions: Sequence[Portion]) -> list[int | None]:
        """Write what is decided."""
        epoch, known = self.log.epoch, self.known
        last = max((entry.content.number for entry in self.log.entries), default=-1)
        bases: list[int | None] = []
        for number, ranges in portions:
            base = None
            if number > last or not self._rules.applies_once:
                values = [value for staged in ranges for value in self._staged(staged)]
                base = self.log.append(epoch, Group(number, tuple(values))) - 1
            bases.append(base)
        await self.log.wait_for(epoch, len(self.log.entries))
        for portion in portions:
            for staged in portion.ranges:
                known.done(staged)
        return bases

    def _staged(self, staged: StageRange) -> tuple[Value, ...]:
        if staged.end > len(self.stage.entries) or self.stage.entries[staged.start].epoch != staged.epoch:
            self.lost.append(staged)
            raise TransactionAborted("gone")
        values: tuple[Value, ...] = self.stage.entries[staged.start].content
        return values


class Journal:
    """The writes of a coordinator, in one epoch of its log."""

    def __init__(self, log: Log, rules: Rules) -> None:
        self._log = log
        self._rules = rules
        self.epoch = log.epoch
        self.failed = False

    @property
    def good(self) -> bool:
        return not self.failed and self._log.epoch == self.epoch

    def write(self, work: Callable[[Note], Any]) -> asyncio.Future[Any]:
        notes: list[bytes] = []
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        try:
            outcome = work(notes.append)
            end = self._log.append(self.epoch, tuple(notes))
        except (HeadwaterError, NotLeading) as error:
            done.set_exception(error)
            done.exception()
            return done
        if not self._rules.decisions_wait_for_all:
            done.set_result(outcome)
            return done
        return asyncio.ensure_future(self._wait(end, outcome))

    async def _wait(self, end: int, outcome: Any) -> Any:
        try:
            await self._log.wait_for(self.epoch, end)
        except NotLeading:
            self.failed = True
            raise
        return outcome


@dataclass
class History:
    """Clients that write in transactions, and leaders that change."""

    seed: int
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.log = Log(self.random)
        self.partitions = [StagedPartition(self.random, self.rules) for _ in range(PARTITIONS)]
        self.decider: Decider | None = None
        self._journal: Journal | None = None
        self.calm = False
        self.told: set[tuple[int, int]] = set()
        """Batches of which a client was told that they are done."""
        self.refused: set[Value] = set()
        """Attempts of which a client was told that nothing came of them."""
        self.wanted: dict[Value, dict[int, int]] = {}
        """The number of records that each attempt has staged, by partition."""

    def run(self) -> None:
        """Let it all happen, and look."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # of those that nobody waits for any more
        self._coordinate()
        faults = asyncio.create_task(self._go_wrong())
        clients = [asyncio.create_task(self._client(number)) for number in range(4)]
        done, left = await asyncio.wait(clients, timeout=300)
        for partition in self.partitions:
            if partition.lost:
                raise Violation(f"lost: {partition.lost[0]} is decided, and not staged any more")
        if left:
            raise Violation("stuck: a client does not get anywhere, though everything works")
        for task in done:
            task.result()
        faults.cancel()
        assert self.decider is not None
        for _ in range(100):
            if self._journal is not None and self._journal.good and not self.decider.undone:
                break
            await asyncio.sleep(1.0)
            if self._journal is not None and not self._journal.good:
                self._coordinate()
        else:
            raise Violation("stuck: what is decided is never done")
        self._check()
        for partition in self.partitions:
            partition.elect()
            partition.log.acknowledged = len(partition.log.entries)
        self._check()

    # The coordinator.

    def _coordinate(self) -> None:
        """Let the leader of the log take over. The leader before it may not have heard of that yet."""
        before = self.decider
        if before is not None:
            if self._journal is not None:
                self._journal.failed = self._journal.failed or self.random.random() < 0.5
            asyncio.get_running_loop().call_later(self.random.expovariate(5), before.end)
        journal = self._journal = Journal(self.log, self.rules)
        transaction_log = self.rules.transaction_log(journal.epoch)
        end = len(self.log.entries)
        decider = self.decider = self.rules.decider(
            LOG, transaction_log, journal, self._apply, self._hold, time.time_ns
        )
        decider._carrier = self.rules.carrier(bytes(16), self._apply)

        async def serve() -> None:
            try:
                await self.log.wait_for(journal.epoch, end)
            except NotLeading:
                return
            if self.rules.successors_replay:
                transaction_log.take(note for entry in self.log.entries[:end] for note in entry.content)
            decider.begin()

        self._serving = asyncio.create_task(serve())

    async def _network(self) -> None:
        """A call on its way: it takes its time, and is lost now and then."""
        await asyncio.sleep(self.random.expovariate(300))
        if not self.calm and self.random.random() < 0.05:
            raise NotLeader("somewhere", 0, None)

    async def _call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask, and hear the answer, or not."""
        await self._network()
        try:
            answer = await call()
        except NotLeading:
            raise NotLeader("elsewhere", 0, None) from None
        await self._network()
        return answer

    async def _hold(self, shares: tuple[PartitionWrites, ...]) -> None:
        for share in shares:

            async def hold(share: PartitionWrites = share) -> None:
                self.partitions[share.partition].hold(share.ranges)

            while True:
                try:
                    await self._call(hold)
                    break
                except NotLeader:
                    await asyncio.sleep(0.02)

    async def _apply(self, share: PartitionWrites, writer: bytes, portions: Sequence[Portion]) -> Sequence[int | None]:  # noqa: ARG002
        bases: list[int | None] = await self._call(lambda: self.partitions[share.partition].apply(portions))
        return bases

    # Clients.

    async def _client(self, number: int) -> None:
        """Writes batches, one after the other. Odd ones have no name: nobody repeats them but with the same request."""
        named = number % 2 == 0
        for batch in range(6):
            attempt = 0
            while not await self._attempt(Value(number, batch, attempt), named):
                attempt += 1
                if not named:
                    break  # nobody knows, and nobody tries again

    async def _attempt(self, value: Value, named: bool) -> bool:
        """Stage and commit; whether it is known to be done. A client dies now and then, and another begins anew."""
        random = self.random
        shares = []
        self.wanted[value] = {}
        for partition in random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)):
            ranges = [await self._stage(partition, [value] * 2) for _ in range(random.randint(1, 2))]
            shares.append(PartitionWrites("topic", UUID, partition, tuple(ranges)))
            self.wanted[value][partition] = 2 * len(ranges)
        request = random.randbytes(16)
        name = f"writer{value.client}" if named else None
        wanted = TransactionRequest(request, tuple(shares), name, value.batch)
        while True:
            if not self.calm and random.random() < 0.1:
                return False  # it dies: what it has asked for may have been done
            try:
                verdict: Verdict = await self._call(lambda: self._commit(wanted))
            except NotLeader:
                await asyncio.sleep(0.02)
                continue
            except TransactionAborted:
                self.refused.add(value)
                return False
            if verdict.repeated and not named:
                raise Violation(f"repeated: {value} has no number that could be repeated")
            self.told.add(value[:2])
            self._check_visible(value)
            return True

    async def _commit(self, wanted: TransactionRequest) -> Verdict:
        assert self.decider is not None
        if not self._serving.done() or self._journal is None or not self._journal.good:
            raise NotLeading
        try:
            async with asyncio.timeout(20):
                return await self.decider.commit(wanted)
        except TimeoutError:
            raise NotLeading from None

    async def _stage(self, partition: int, values: Sequence[Value]) -> StageRange:
        while True:
            try:
                staged: StageRange = await self._call(lambda: self.partitions[partition].put(values))
                return staged
            except NotLeader:
                await asyncio.sleep(0.02)

    # Faults.

    async def _go_wrong(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < FAULTS:
            await asyncio.sleep(self.random.expovariate(12))
            victim = self.random.randrange(PARTITIONS + 1)
            both = self.random.random() < 0.3
            if victim < PARTITIONS:
                self.partitions[victim].elect()
            if victim == PARTITIONS or both:
                self.log.elect()
                self._coordinate()
        self.calm = True
        while True:
            await asyncio.sleep(0.5)
            if self._journal is not None and not self._journal.good:
                self.log.elect()
                self._coordinate()

    # Invariants.

    def _visible(self) -> dict[int, Counter[Value]]:
        return {
            number: Counter(
                value for entry in partition.log.entries[: partition.log.acknowledged] for value in entry.content.values
            )
            for number, partition in enumerate(self.partitions)
        }

    def _check_visible(self, value: Value) -> None:
        """Check that a client can read the batch that it was told is done."""
        visible = self._visible()
        if not any(seen[:2] == value[:2] for counter in visible.values() for seen in counter):
            raise Violation(f"lost: {value} is told to be done, and cannot be read")

    def _check(self) -> None:
        visible = self._visible()
        attempts: dict[tuple[int, int], set[Value]] = {}
        for counter in visible.values():
            for value in counter:
                attempts.setdefault(value[:2], set()).add(value)
        for batch, values in attempts.items():
            if len(values) > 1:
                raise Violation(f"doubled: batch {batch} counts in several attempts: {sorted(values)}")
            self._check_whole(next(iter(values)), visible)
        for batch in self.told - attempts.keys():
            raise Violation(f"lost: batch {batch} was told to be done, and nothing of it can be read")
        for number, partition in enumerate(self.partitions):
            self._check_order(number, partition)

    def _check_whole(self, value: Value, visible: dict[int, Counter[Value]]) -> None:
        if value in self.refused:
            raise Violation(f"refused: {value} was told to be given up, and can be read")
        for partition in range(PARTITIONS):
            count, wanted = visible[partition][value], self.wanted[value].get(partition, 0)
            if count != wanted:
                raise Violation(f"partial: {value} is {count} times in {partition}, not {wanted}")

    def _check_order(self, number: int, partition: StagedPartition) -> None:
        last: dict[int, int] = {}
        for entry in partition.log.entries[: partition.log.acknowledged]:
            for value in entry.content.values:
                if value.batch < last.get(value.client, -1):
                    raise Violation(f"reordered: {value} in {number} comes behind {last[value.client]}")
                last[value.client] = value.batch
