"""A world in which everything that can go wrong does, by the roll of one seeded die: time, processes and a network.

Nothing here knows of the protocol. Processes crash and come back, pause and wake; messages are late, lost, doubled and
out of order. The same seed gives the same history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

Call = Callable[[], None]


class World:
    """The clock, the die, and all that is yet to happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.calm = False
        """True if the faults are over: then messages arrive, and living processes stay alive."""
        self._events: list[tuple[float, int, Call]] = []
        self._number = 0
        self._cut: set[tuple[str, str]] = set()
        self.history: list[str] = []

    def note(self, event: str) -> None:
        """Keep a line of what happens, for whoever has to understand a failure."""
        self.history.append(f"{self.now:8.3f} {event}")

    def after(self, delay: float, call: Call) -> None:
        """Do this later."""
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, call))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = until

    def chance(self, probability: float) -> bool:
        """Return True with this probability while faults last, and False afterwards."""
        return not self.calm and self.random.random() < probability

    def delay(self, mean: float) -> float:
        """Return a random duration: mostly about `mean`, now and then much longer."""
        long = 20.0 if self.chance(0.02) else 300.0 if self.chance(0.002) else 1.0
        return min(self.random.expovariate(1 / mean) * long, 5.0)

    # The network.

    def cut(self, sender: str, receiver: str) -> None:
        """No message passes from one to the other; the other way they do."""
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        """All links work again."""
        self._cut.clear()

    def send(self, sender: str, process: Process, call: Call) -> None:
        """A message: it calls something at another process, later, perhaps not at all, perhaps twice."""
        if (sender, process.name) in self._cut or self.chance(0.02):
            return
        for _ in range(2 if self.chance(0.02) else 1):
            self.after(self.delay(0.005), lambda: process.do(call))


class Process:
    """Something that can crash and pause. It does nothing that it had planned in an earlier life."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.up = False
        self._asleep_until = 0.0

    def start(self) -> None:
        """Begin a new life."""
        self.life += 1
        self.up = True
        self._asleep_until = self.world.now

    def crash(self) -> None:
        """End this one: nothing that was planned happens any more."""
        self.life += 1
        self.up = False

    def pause(self, seconds: float) -> None:
        """Do nothing for a while, and then everything that has come meanwhile."""
        self._asleep_until = self.world.now + seconds

    def do(self, call: Call) -> None:
        """Do it now, in this life, or when the process wakes up."""
        if self.up:
            self._do(self.life, call)

    def _do(self, life: int, call: Call) -> None:
        if life != self.life:
            return
        left = self._asleep_until - self.world.now
        if left > 0:
            self.world.after(left, lambda: self._do(life, call))
        else:
            call()

    def after(self, delay: float, call: Call) -> None:
        """Do it later, if the process still lives then."""
        life = self.life
        self.world.after(delay, lambda: self._do(life, call))

    def every(self, mean: float, call: Call) -> None:
        """Do it again and again."""

        def again() -> None:
            call()
            self.after(self.world.delay(mean), again)

        self.after(self.world.delay(mean), again)

    def ask(self, other: Process, question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Ask another process something; the answer may never come."""
        me, life = self, self.life

        def answered() -> None:
            outcome = question()
            other.world.send(other.name, me, lambda: answer(outcome) if me.life == life else None)

        self.world.send(self.name, other, answered)
