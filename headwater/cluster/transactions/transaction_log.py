"""The transaction log of a coordinator: decided and finished transactions, and the numbers that are used.

It is a state machine and does nothing itself. Its keeper appends the records that it gives out to a replicated
log, and tells nobody of a decision before that is acknowledged; a successor takes the same records in, in their order,
and knows the same. The first decision under a writer's number counts, whichever client asks again.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.core.errors import Damaged
from headwater.core.names import WRITERS
from headwater.core.options import DAY
from headwater.streams.named_writer import NamedWriter, named_writer

REQUESTS_KEPT: Final = DAY
"""For how long it is known what became of a request. Seconds."""
_MOST_REQUESTS: Final = 100_000
_EPOCH: Final = 32
"""Decisions are numbered by the epoch of the log, and within it: a number never comes again."""
_WHERE: Final = Path(WRITERS)


class StageRange(NamedTuple):
    """Some frames of a stage log: from `start` up to, and without, `end`, all of them written in one epoch."""

    epoch: int
    start: int
    end: int


class PartitionWrites(NamedTuple):
    """The writes of a transaction to one partition, in this order, as one atomic group."""

    topic: str
    uuid: bytes
    partition: int
    ranges: tuple[StageRange, ...]


Bases = Mapping[tuple[bytes, int], int | None]
"""The offsets at which a transaction's writes begin in each partition; None if not known, or if the topic is gone."""


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """A transaction that a client wants to be decided."""

    request: bytes
    """A random request id, to recognise retries. Empty for callers that do not retry."""
    shares: tuple[PartitionWrites, ...]
    writer: str | None = None
    number: int = 0
    owner: str | None = None
    takeover: bool = False


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """A transaction that is decided. It will be done, by this coordinator or the next."""

    number: int
    request: bytes
    shares: tuple[PartitionWrites, ...]
    decided_ns: int = 0
    name: str | None = None
    """The writer that has numbered it, for clients that repeat it."""
    writer: NamedWriter | None = None
    """The progress of that writer with it."""

    def pack(self) -> bytes:
        """The record that decides."""
        content: dict[str, Any] = {
            "number": self.number,
            "request": self.request.hex(),
            "shares": [[topic, uuid.hex(), number, ranges] for topic, uuid, number, ranges in self.shares],
            "decided_ns": self.decided_ns,
        }
        if self.name is not None and self.writer is not None:
            content |= {"name": self.name, "writer": self.writer.pack().decode()}
        return _packed(content)

    @classmethod
    def unpack(cls, content: bytes) -> TransactionDecision:
        """The reverse; raises Damaged."""
        try:
            fields = json.loads(content)
            return cls(
                int(fields["number"]),
                bytes.fromhex(fields["request"]),
                tuple(
                    PartitionWrites(
                        topic, bytes.fromhex(uuid), int(number), tuple(StageRange(*bounds) for bounds in ranges)
                    )
                    for topic, uuid, number, ranges in fields["shares"]
                ),
                int(fields["decided_ns"]),
                fields.get("name"),
                NamedWriter.unpack(fields["writer"].encode(), _WHERE) if "writer" in fields else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"not a decided transaction: {error}") from error


class _Request(NamedTuple):
    number: int
    done_ns: int
    bases: Bases


class TransactionLog:
    """The decisions in one log, as one coordinator of it knows them. In one epoch of the log there may be several."""

    def __init__(self, epoch: int) -> None:
        self._next = epoch << _EPOCH
        self._writers: dict[str, NamedWriter] = {}
        self._open: dict[int, TransactionDecision] = {}
        self._requests: dict[bytes, int] = {}
        self._done: OrderedDict[bytes, _Request] = OrderedDict()

    # Records of predecessors.

    def take(self, records: Iterable[bytes]) -> None:
        """Take in what is in the log, in its order; raises Damaged."""
        for record in records:
            try:
                fields = json.loads(record)
                if "snapshot" in fields:
                    self._restore(fields["snapshot"])
                elif "done" in fields:
                    self._finish(int(fields["done"]), _bases_of(fields["bases"]), int(fields["done_ns"]))
                else:
                    self._add(TransactionDecision.unpack(record))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Damaged(f"not a record of transactions: {error}") from error

    def _add(self, ruling: TransactionDecision) -> None:
        self._next = max(self._next, ruling.number + 1)
        if not self._is_first(ruling):
            return
        self._open[ruling.number] = ruling
        if ruling.request:
            self._requests[ruling.request] = ruling.number
        if ruling.name is not None and ruling.writer is not None:
            self._writers[ruling.name] = ruling.writer

    def _is_first(self, ruling: TransactionDecision) -> bool:
        """Return whether nothing was decided under the same number of the same writer, nor for the same request."""
        if ruling.request and (ruling.request in self._requests or ruling.request in self._done):
            return False
        if ruling.name is None or ruling.writer is None:
            return True
        known = self._writers.get(ruling.name)
        return known is None or ruling.writer.used > known.used

    # Deciding.

    def ruling_on(self, request: bytes) -> int | None:
        """The number of what was decided on a request, if it is not done; None when it is, or nothing was."""
        return self._requests.get(request)

    def answer_to(self, request: bytes) -> Bases | None:
        """The offsets of everything that was decided on a request, once it is done."""
        finished = self._done.get(request)
        return None if finished is None else finished.bases

    def is_repeated(self, wanted: TransactionRequest) -> bool:
        """Return whether its writer's number was decided before. Raises WriterTaken if the writer is another's."""
        return self._claim(wanted) is not None and self._sequence(wanted) is None

    def _claim(self, wanted: TransactionRequest) -> NamedWriter | None:
        """The writer as it is once this is decided, but for the number; None where there is no writer."""
        if wanted.writer is None:
            return None
        known = self._writers.get(wanted.writer) or NamedWriter(named_writer(wanted.writer))
        return known.claimed(wanted.writer, wanted.owner, wanted.number, takeover=wanted.takeover)

    def _sequence(self, wanted: TransactionRequest) -> int | None:
        claimed = self._claim(wanted)
        return None if claimed is None else claimed.sequence(wanted.owner, wanted.number)

    def decide(self, wanted: TransactionRequest, now_ns: int) -> TransactionDecision | None:
        """Decide, if that was not done before: its record is the next to be appended. Raises WriterTaken.

        None for a writer's number that was decided before. It counts from when the record is acknowledged; should that
        fail, this object is of no use any more.
        """
        claimed = self._claim(wanted)
        writer = None
        if claimed is not None:
            sequence = claimed.sequence(wanted.owner, wanted.number)
            if sequence is None:
                return None
            writer = NamedWriter(claimed.id, sequence, claimed.owner, claimed.base, claimed.past)
        ruling = TransactionDecision(self._next, wanted.request, wanted.shares, now_ns, wanted.writer, writer)
        self._add(ruling)
        return ruling

    # Carrying out.

    def undone(self) -> list[TransactionDecision]:
        """The decisions that are not done, in the order in which they were made: in that order they are to be done."""
        return [self._open[number] for number in sorted(self._open)]

    def undone_of(self, writer: str | None) -> list[int]:
        """The same of one writer, by number."""
        return [number for number, ruling in self._open.items() if writer is not None and ruling.name == writer]

    def finish(self, number: int, bases: Bases, now_ns: int) -> bytes:
        """Everything of a decision is done: gives the record that says so. Losing it does no harm."""
        self._finish(number, bases, now_ns)
        return _packed({"done": number, "bases": _written(bases), "done_ns": now_ns})

    def _finish(self, number: int, bases: Bases, now_ns: int) -> None:
        ruling = self._open.pop(number, None)
        if ruling is None or not ruling.request:
            return
        self._requests.pop(ruling.request, None)
        self._done[ruling.request] = _Request(number, now_ns, bases)
        while self._done and (
            len(self._done) > _MOST_REQUESTS
            or next(iter(self._done.values())).done_ns < now_ns - REQUESTS_KEPT * 1_000_000_000
        ):
            self._done.popitem(last=False)

    # The state that stays when the log is cut.

    def snapshot(self) -> bytes:
        """A record that says all that is known: what is before it in the log is needed no more."""
        content = {
            "next": self._next,
            "undone": [ruling.pack().decode() for ruling in self.undone()],
            "writers": {name: writer.pack().decode() for name, writer in self._writers.items()},
            "done": [
                [request.hex(), finished.number, finished.done_ns, _written(finished.bases)]
                for request, finished in self._done.items()
            ],
        }
        return _packed({"snapshot": content})

    def _restore(self, content: Mapping[str, Any]) -> None:
        self._next = max(self._next, int(content["next"]))
        self._writers = {
            name: NamedWriter.unpack(packed.encode(), _WHERE) for name, packed in content["writers"].items()
        }
        undone = [TransactionDecision.unpack(packed.encode()) for packed in content["undone"]]
        self._open = {ruling.number: ruling for ruling in undone}
        self._requests = {ruling.request: ruling.number for ruling in undone if ruling.request}
        self._done = OrderedDict(
            (bytes.fromhex(request), _Request(int(number), int(done_ns), _bases_of(bases)))
            for request, number, done_ns, bases in content["done"]
        )


def _packed(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _written(bases: Bases) -> list[tuple[str, int, int | None]]:
    return [(uuid.hex(), number, base) for (uuid, number), base in bases.items()]


def _bases_of(written: Iterable[Sequence[Any]]) -> Bases:
    return {(bytes.fromhex(uuid), int(number)): base for uuid, number, base in written}
