"""A ledger in memory: transactions of one process."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from headwater.embedded.decision import Decision
from headwater.embedded.ledger import Ledger, Slot, signed_for
from headwater.embedded.stage import MemoryStage, Stage
from headwater.log import Frame
from headwater.log.elapsed import IsOld
from headwater.log.entropy import random_bytes
from headwater.log.format.frame import SchemaOf
from headwater.streams.named_writer import NamedWriter
from headwater.streams.staging import Output


class MemoryLedger(Ledger):
    """Transactions in this process's memory."""

    def __init__(self) -> None:
        super().__init__()
        self._decided: dict[str, tuple[Decision, list[Frame]]] = {}
        self._writers: dict[bytes, NamedWriter] = {}
        self._left: dict[str, list[Frame]] = {}
        self._answered: set[str] = set()
        self._turn = threading.RLock()

    def _check_open(self) -> None:
        """It is open for as long as someone has it."""

    def _find_slot(self) -> Slot:
        return Slot(random_bytes(16), 0, 1 << 62)

    def _reserve(self, slot: Slot) -> None:
        """Nobody else can use them."""

    @contextmanager
    def writing_as(self, writer: bytes) -> Iterator[None]:  # noqa: ARG002 - one turn for all of them
        with self._turn:
            yield

    def writer(self, writer: bytes) -> NamedWriter:
        return self._writers.get(writer, NamedWriter(writer))

    def keep(self, writer: NamedWriter) -> None:
        self._writers[writer.id] = writer

    @contextmanager
    def changing_writers(self) -> Iterator[None]:
        with self._turn:
            yield

    def stage(self) -> Stage:
        return MemoryStage(self._left)

    def decide(self, stage: Stage, decision: Decision) -> None:
        assert isinstance(stage, MemoryStage)
        if not decision.files <= self._left.keys():
            raise FileNotFoundError
        self._decided[decision.name] = (decision, stage.frames)
        stage.discard()

    def make_durable(self) -> None:
        """Memory is all there is."""

    def decided(self, writer: bytes | None = None) -> list[Decision]:
        return [decision for decision, _ in list(self._decided.values()) if writer is None or decision.writer == writer]

    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:  # noqa: ARG002
        decided = self._decided.get(decision.name)
        if decided is None:
            return None
        frames = [self._left[file][at] if file else decided[1][at] for file, at, _ in output.extents]
        return [signed_for(frame, decision) for frame in frames]

    def finish(self, decision: Decision) -> None:
        if decision.named:
            self.use(decision.writer, decision.sequence)
        self._decided.pop(decision.name, None)
        if decision.request:
            self._answered.add(decision.request)
        for file in decision.files:
            self._left.pop(file, None)

    def answered(self, request: str) -> bool:
        return request in self._answered

    def drop(self, files: Collection[str]) -> None:
        needed = {file for decision in self.decided() for file in decision.files}
        for file in set(files) - needed:
            self._left.pop(file, None)

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:  # noqa: ARG002 - no stage outlives its owner
        return 0

    def close(self) -> None:
        """Nothing to give back."""
