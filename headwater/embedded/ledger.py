"""The ledger: where the frames of transactions wait, and which transactions are decided.

A transaction is one file. Frames go into it as they are produced; a description of all that is to be done goes behind
them; the file is synced; and one rename decides. From then on it is done by whoever comes across it, as often as it
takes: frames are known by their writer and its sequence, which partitions remember for ever, so nothing is done twice.

Writers are few. A transaction that names none borrows a slot, which nobody else has meanwhile, so the numbers of a slot
reach every partition in their order. The slots of dead processes are used again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from headwater.embedded.decision import Decision
from headwater.embedded.stage import Stage
from headwater.log import Frame
from headwater.log.elapsed import IsOld
from headwater.log.format.encode import signed
from headwater.log.format.frame import SchemaOf
from headwater.streams.named_writer import NamedWriter
from headwater.streams.staging import Output


@dataclass(slots=True)
class Slot:
    """A writer that one transaction at a time may borrow, and its next sequence."""

    writer: bytes
    next: int
    reserved: int
    number: int = 0
    lock_fd: int = -1


class Ledger(ABC):
    """The transactions that an embedded store keeps. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[Slot] = []

    def borrow(self) -> Slot:
        """A slot that nobody else has, with a sequence that nobody has used."""
        self._check_open()
        with self._mutex:
            slot = self._idle.pop() if self._idle else self._find_slot()
        if slot.next >= slot.reserved:
            try:
                self._reserve(slot)
            except BaseException:
                with self._mutex:
                    self._idle.append(slot)
                raise
        return slot

    def give_back(self, slot: Slot) -> None:
        """The slot's sequence was used, or will never be."""
        slot.next += 1
        with self._mutex:
            self._idle.append(slot)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise when the ledger cannot be used any more."""

    @abstractmethod
    def _find_slot(self) -> Slot: ...

    @abstractmethod
    def _reserve(self, slot: Slot) -> None:
        """Make sure that no one uses the slot's next sequences, not even after a crash."""

    @abstractmethod
    def writing_as(self, writer: bytes) -> AbstractContextManager[None]:
        """The right to decide for a named writer, for the length of a block."""

    @abstractmethod
    def writer(self, writer: bytes) -> NamedWriter:
        """A named writer, as far as its transactions are decided and done."""

    @abstractmethod
    def keep(self, writer: NamedWriter) -> None:
        """Keep what has changed of a named writer, durably."""

    @abstractmethod
    def changing_writers(self) -> AbstractContextManager[None]:
        """The right to read a named writer and keep it changed, for the length of a block."""

    def used(self, writer: bytes) -> int:
        """The last sequence of a named writer that is decided and done; -1 for none."""
        return self.writer(writer).used

    def use(self, writer: bytes, sequence: int) -> None:
        """Keep the last sequence of a named writer. A late caller, with an older one, must not set it back."""
        with self.changing_writers():
            known = self.writer(writer)
            if known.used < sequence:
                self.keep(replace(known, used=sequence))

    def claim(self, writer: bytes, name: str, owner: str | None, number: int, *, takeover: bool) -> int | None:
        """The sequence for an owner's number; None when it was done before. Raises WriterTaken."""
        with self.changing_writers():
            known = self.writer(writer)
            claimed = known.claimed(name, owner, number, takeover=takeover)
            if claimed != known:
                self.keep(claimed)
        return claimed.sequence(owner, number)

    @abstractmethod
    def stage(self) -> Stage:
        """A new stage, empty."""

    @abstractmethod
    def decide(self, stage: Stage, decision: Decision) -> None:
        """Decide, in one step: from now on it will be done, whatever happens.

        Raises FileNotFoundError when a stage that it needs is gone.
        """

    @abstractmethod
    def decided(self, writer: bytes | None = None) -> list[Decision]:
        """Everything that is decided and not done, or what one writer has decided. Damaged decisions are left out."""

    def is_damaged(self, decision: Decision) -> bool:  # noqa: ARG002 - what is in memory is not
        """True if a decision was found damaged, so that it cannot be carried out."""
        return False

    @abstractmethod
    def make_durable(self) -> None:
        """Return when what was decided is on the device: a power loss must not take back what is half done."""

    @abstractmethod
    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:
        """The frames for one partition, verified; None when another process has finished the transaction."""

    @abstractmethod
    def finish(self, decision: Decision) -> None:
        """Everything is done: forget the transaction, but not the sequence of a named writer."""

    @abstractmethod
    def answered(self, request: str) -> bool:
        """Return whether a transaction that was asked for under this id has been carried out. It is known for a day."""

    @abstractmethod
    def drop(self, files: Collection[str]) -> None:
        """Remove stages that were left to a transaction, unless it is decided; twice does no harm."""

    @abstractmethod
    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:
        """Drop the stages that nobody has written to for too long; how many."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


def signed_for(frame: Frame, decision: Decision) -> Frame:
    """A frame that was staged before its transaction was known gets the identity of that."""
    return frame if frame.identity is not None else signed(frame, decision.identity)
