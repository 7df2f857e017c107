"""The wall clock is set ahead and back while stewards clean: nothing unread, undecided or young goes.

A run lives through some hours of real time in which the wall clock is a year or a week ahead, a day or decades back,
and right again, in any order. Meanwhile records, delete markers, positions, stages and retries are written, stewards
make their passes, programs and brokers end and begin, and the machine is started again. After each pass all of it has
to be there. In the end the clock is right, weeks pass, and everything old has to go: a wrong clock keeps nothing for
ever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import headwater as hw
from headwater.core.options import DAY, HOUR, MINUTE
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Appended, Identity, elapsed, encode
from headwater.streams import Staged
from headwater.streams.steward import StewardReport
from headwater.testing import ManualClock
from tests.faults import Kind, Run, Violation, proof
from tests.support.backends import BrokerStore, inside

YEAR = 365 * DAY
OFFSETS = (0.0, 0.0, YEAR, 8 * DAY, -DAY, -50 * YEAR)
"""The lead of the wall clock."""
EPISODES = 8
PRODUCER = b"one that retries"
GROUPS = ("billing", "mail")
STEPS = 12
"""So often three days pass, in the end."""


@dataclass
class World:
    """A store, as it should be, and the clocks of its machine."""

    path: Path
    random: Random
    behind_broker: bool
    clock: ManualClock = field(default_factory=ManualClock)
    offset: float = 0.0
    sent: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    markers: int = 0
    staged: list[Staged] = field(default_factory=list)
    sequence: int = 0
    told: list[str] = field(default_factory=list)
    """The events so far, for the report."""

    def open(self) -> hw.Store:
        if self.behind_broker:
            return BrokerStore(self.path, self.clock, direct=False)
        return DirectoryStore(self.path, clock=self.clock)

    def set_clock(self) -> None:
        """Set the wall clock to something else than before."""
        offset = self.random.choice([one for one in OFFSETS if one != self.offset])
        self.clock.jump(offset - self.offset)
        self.offset = offset
        self.told.append(f"clock {offset / DAY:+.0f} d")

    def restart_machine(self) -> None:
        """Start the machine again after some minutes."""
        self.clock.reboot(off=self.random.uniform(0, 10 * MINUTE))
        self.clock.advance(self.random.uniform(1, MINUTE))
        self.told.append("restart")

    # The work of programs.

    def act(self, store: hw.Store) -> Iterator[Violation]:
        """Let some minutes pass, and something happen. All of it is less than a day: too short for anything to go."""
        self.clock.advance(self.random.uniform(0, 9 * MINUTE))
        action = self.random.choice([self.send, self.read, self.delete, self.stage, self.retry])
        self.told.append(action.__name__)
        yield from action(store)

    def send(self, store: hw.Store) -> Iterator[Violation]:
        """Append records, in a segment of their own."""
        with store.producer("log") as out:
            for _ in range(self.random.randrange(1, 6)):
                out.send(b"%d" % self.sent)
                self.sent += 1
        store.topic("log").partition(0).roll()
        yield from ()

    def read(self, store: hw.Store) -> Iterator[Violation]:
        """Let a group read a little, and leave."""
        group = self.random.choice(GROUPS)
        position = self.positions.get(group, 0)
        if position == self.sent:
            return
        with store.consumer("log", group=group) as inbox:
            found = inbox.poll(self.random.randrange(1, 4), timeout=60)
            for record in found:
                inbox.ack(record)
        if not found or found[0].offset != position:
            first = found[0].offset if found else "nothing"
            yield Violation(Kind.SKIPPED_BY_POLL, f"{group} got {first} and was at {position}: {self}")
        self.positions[group] = position + len(found)

    def delete(self, store: hw.Store) -> Iterator[Violation]:
        """Delete a key: the marker has to stay for as long as its grace."""
        key = b"%d" % self.markers
        with store.producer("state") as out:
            out.send(b"old", key)
            out.send(None, key)
        store.topic("state").partition(0).roll()
        self.markers += 1
        yield from ()

    def stage(self, store: hw.Store) -> Iterator[Violation]:
        """Stage a record for a transaction that is not decided yet."""
        with store.stage() as staging:
            staging.append(store.describe_topic("staged"), 0, encode([b"%d" % len(self.staged)]))
            self.staged.append(staging.seal())
        for path in (self.path / "__transactions").glob("*.stage"):
            if path.stat().st_ctime_ns == path.stat().st_mtime_ns:  # new: its time is that of the real clock
                os.utime(path, ns=(self.clock.now_ns(),) * 2)
        yield from ()

    def retry(self, store: hw.Store) -> Iterator[Violation]:
        """Append the next batch of an idempotent producer, or the last one once more, behind a roll."""
        partition = inside(store).topic("retried").partition(0)  # a broker gives out the ids of its clients
        again = self.sequence > 0 and self.random.random() < 0.7
        self.sequence += 0 if again else 1
        frame = encode([b"x"], identity=Identity(PRODUCER, 0, self.sequence - 1))
        appended: Appended = partition.append(frame)
        partition.roll()
        if appended.duplicate != again:
            yield Violation(Kind.DUPLICATE, f"batch {self.sequence - 1} is there twice: {self}")

    # The expected content.

    def clean(self, store: hw.Store) -> Iterator[Violation]:
        """Make a pass, and look whether everything is still there."""
        self.told.append("pass")
        report = store.steward(force_after=90 * DAY).run_once()
        for problem in report.errors:
            yield Violation(Kind.CRASH, f"{problem}: {self}")
        yield from self._check_report(report)
        for name in ("log", "state", "staged", "retried"):
            start = store.topic(name).bounds()[0].start
            if start:
                yield Violation(Kind.LOST_WRITE, f"{name} begins at {start}: {self}")
        for group, position in self.positions.items():
            found = [one.offset for one in store.group(group).committed().values()]
            if found != [position]:
                yield Violation(Kind.POSITION_MOVED_BACK, f"{group} was at {position} and is at {found}: {self}")
        markers = sum(record.value is None for record in store.topic("state").partition(0).records())
        if markers != self.markers:
            yield Violation(Kind.LOST_WRITE, f"{markers} of {self.markers} delete markers are there: {self}")

    def _check_report(self, report: StewardReport) -> Iterator[Violation]:
        if report.segments or report.expired_groups or report.dropped_stages or report.pruned_positions:
            gone = f"{report.segments} segments, {report.expired_groups}, {report.dropped_stages} stages"
            yield Violation(Kind.LOST_WRITE, f"a pass has removed {gone}: {self}")

    def decide(self, store: hw.Store) -> Iterator[Violation]:
        """Adopt half of what was staged: nothing of it is gone."""
        adopted = self.staged[::2]
        for one in adopted:
            with store.transaction() as block:
                block.adopt(one)
        found = store.topic("staged").partition(0).bounds().end
        if found != len(adopted):
            yield Violation(Kind.LOST_WRITE, f"{found} of {len(adopted)} staged records are there: {self}")

    def grow_old(self, store: hw.Store) -> Iterator[Violation]:
        """Weeks pass under the right clock: what is old goes, whatever clock it was written under."""
        for _ in range(STEPS):
            self.clock.advance(3 * DAY)
            store.steward(protect_unread=False).run_once()
        left = [name for name in GROUPS if store.has_group(name) and store.group(name).committed()]
        begins = store.topic("log").bounds()[0]
        stages = list((self.path / "__transactions").glob("*.stage"))
        if left or stages or begins.start != begins.end:
            yield Violation(Kind.BLOCKED, f"{left}, {stages} and {begins} stay for ever: {self}")

    def __str__(self) -> str:
        return ", ".join(self.told)


@proof(row=29, title="the clock jumps ahead and back under stewards, groups and transactions", runs=200, quick=3)
def clock_jumps(run: Run) -> Iterator[Violation]:
    """Set the clock again and again, while programs work and stewards clean."""
    logging.getLogger(elapsed.__name__).setLevel(logging.ERROR)  # that the clock was set is known here
    world = World(run.directory / "store", run.random, behind_broker=run.number % 3 == 2)
    restarts = run.number % 2 == 0
    if run.random.random() < 0.3:
        world.set_clock()
    with ExitStack() as stack:
        store = stack.enter_context(world.open())
        store.create_topic("log", retention_age=DAY)
        store.create_topic("state", compact=True, delete_grace=DAY)
        store.create_topic("staged")
        store.create_topic("retried", producer_expiry=DAY)
        world.clock.advance(3 * DAY)
        yield from world.clean(store)
        lasting = run.random.randrange(EPISODES)
        for episode in range(EPISODES):
            for _ in range(run.random.randrange(1, 4)):
                yield from world.act(store)
            # A clock that was ahead and is right again before anybody looks is known by what carries its time.
            if world.offset <= 0 or run.random.random() < 0.7:
                yield from world.clean(store)
            if episode == lasting and not restarts:
                world.clock.advance(2 * HOUR)  # a machine that runs is not told by its wall clock how long it runs
                yield from world.clean(store)
            changes = ("program", "machine") if restarts else ("program",)
            change = run.random.choice((*changes, "nothing", "nothing"))
            if change != "nothing":
                stack.pop_all().close()
                if change == "machine":
                    world.restart_machine()
                store = stack.enter_context(world.open())
            world.set_clock()
        yield from world.clean(store)
        yield from world.decide(store)
        world.clock.jump(-world.offset)
        world.offset = 0.0
        yield from world.grow_old(store)
