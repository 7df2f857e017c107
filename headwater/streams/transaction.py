"""Transactions: writes to several partitions and topics, and the positions of a consumer, all of them or none.

A transaction has three steps. *Stage*: its frames wait where no reader sees them. *Decide*: one step of the transaction
coordinator, after a check that the partitions are still the consumer's. *Apply*: the frames go to each partition as one
atomic group, and the positions are set. A decided transaction is applied by whoever comes across it, so a crash at any
point leaves all of it or nothing. Readers of several partitions can see one before the other.

This module is the part that users hold. A backend implements the steps (`TransactionCoordinator` in `ports.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from headwater.core.config import ProducerConfig
from headwater.core.errors import (
    HeadwaterError,
    InvalidConfiguration,
    PartitionForked,
    StoreError,
    TransactionAborted,
    TransactionUnfinished,
)
from headwater.core.limits import check_frame_size
from headwater.core.names import check_name
from headwater.log import Appended, Frame, Identity
from headwater.log.format.frame import MAX_SEQUENCE
from headwater.streams.appending import PromptAppender
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import Commit, PositionClaim, TopicKey
from headwater.streams.producer import Producer
from headwater.streams.receipt import Outcome
from headwater.streams.staging import Output, OutputKey, Staged, StagedExtent
from headwater.streams.topic import Topic, TopicPartition

if TYPE_CHECKING:
    from headwater.streams.store import Store

_Producer = TypeVar("_Producer", bound=Producer)
State = Literal["open", "committed", "aborted", "repeated"]

STAGES_KEPT: Final = 24 * 60 * 60.0
"""A stage that nobody writes to waits for its decision for so many seconds."""


class _StagedFrame(NamedTuple):
    """One frame in the stage, and the outcome that learns its place in the log."""

    extent: StagedExtent
    records: int
    outcome: Outcome


StageFrame = Callable[[TopicInfo, int, Frame], StagedExtent]
"""Stages a frame for a partition of a topic, and returns its place in the stage."""


class StageAppender(PromptAppender):
    """The appender of a transaction's producers: frames go to its stage. Thread-safe."""

    staging = True

    def __init__(self, stage: StageFrame, identity: Identity | None) -> None:
        self.identity = identity
        self._stage = stage
        self._mutex = threading.Lock()
        self.outputs: dict[OutputKey, list[_StagedFrame]] = {}

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        info = topic.info
        check_frame_size(info.config, frame.length, f"{info.name}/{partition}")
        with self._mutex:
            staged = _StagedFrame(self._stage(info, partition, frame), frame.last_offset_delta + 1, outcome)
            self.outputs.setdefault((info.name, info.uuid, partition), []).append(staged)

    def sync(self, topic: Topic) -> None:
        """Do nothing: the records of a transaction are durable, and visible, when it is committed."""

    def succeed(self, applied: dict[TopicKey, Appended | None]) -> None:
        """Give the receipts their offsets."""
        for (name, uuid, number), frames in self.outputs.items():
            appended = applied.get((uuid, number))
            offset = -1 if appended is None else appended.base_offset
            for frame in frames:
                if appended is None:
                    why = f"{name}/{number}: committed, but where is not known: deleted, or written by another process"
                    frame.outcome.fail(StoreError(why))
                else:
                    frame.outcome.succeed(Appended(offset, offset + frame.records))
                offset += frame.records

    def fail(self, error: BaseException) -> None:
        """Tell the error to everyone who still waits for a receipt."""
        for frames in self.outputs.values():
            for frame in frames:
                if not frame.outcome.done:
                    frame.outcome.fail(error)


class Progress(Protocol):
    """The positions of a consumer, as far as a transaction needs them."""

    @property
    def store(self) -> Store:
        """The store that the consumer reads from."""

    @property
    def group_name(self) -> str | None:
        """The name of the group that keeps the positions."""

    def hold(self) -> None:
        """Commit nothing from now on but by the transaction."""

    def claim(self) -> PositionClaim | None:
        """Return the positions that the transaction is to set, None if there are none.

        Raises StaleMember when a partition was taken away meanwhile.
        """

    def decided(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """Learn that these positions will be set, in this generation of the group."""

    def begin_anew(self) -> None:
        """Go on from the group's positions: nobody knows whether the transaction was decided."""

    def let_go(self, *, committed: bool) -> None:
        """Commit as usual again: the transaction is over."""


class Named(NamedTuple):
    """The name and the number of a transaction that may be repeated, and the owner of such numbers."""

    writer: str
    number: int
    owner: str | None = None
    takeover: bool = False


class Transaction:
    """A block whose writes, and a consumer's progress, count together or not at all. For one thread.

    Leaving the block commits; an error in it gives everything up, and the consumer goes back to where it was.
    """

    def __init__(self, store: Store, consumer: Progress | None, named: Named | None, request: str = "") -> None:
        self._store = store
        self._consumer = consumer
        self._pid = os.getpid()
        self._adopted: list[Staged] = []
        self._producers: list[Producer] = []
        self.applied: dict[TopicKey, Appended | None] = {}
        """The places of the outputs, once it is committed; None for those that another process has applied."""
        self.state: State = "open"
        """Repeated: this writer has committed this sequence before, and that one counts."""
        self._pending = store.transactions.begin(named, request)
        self._appender = StageAppender(self._pending.stage, self._pending.identity)
        if consumer is not None:
            try:
                consumer.hold()
            except BaseException:
                self._pending.end((), committed=False)
                raise

    def producer(self, topic: str, *, config: ProducerConfig | None = None, **options: Any) -> Producer:
        """A producer whose records are part of this transaction. Options are those of ProducerConfig, by name.

        Receipts tell their offsets once the transaction is committed.
        """
        self._check_open()
        return self.look_after(self._store._producer(topic, config, options, self._appender))

    @property
    def generation(self) -> int:
        """The generation of the consumer's group in which its positions were set; 0 before, and without a consumer."""
        return self._pending.generation

    @property
    def appender(self) -> StageAppender:
        """The appender of its producers."""
        return self._appender

    def look_after(self, producer: _Producer) -> _Producer:
        """Make what a producer has written part of the transaction."""
        self._check_open()
        self._producers.append(producer)
        return producer

    def adopt(self, staged: Staged) -> None:
        """Make what another process has staged part of the transaction. It goes when the transaction is given up."""
        self._check_open()
        self._pending.check(staged)
        self._adopted.append(staged)

    def commit(self) -> None:
        """Decide and apply. When this returns, everything is durable and visible.

        Raises what went wrong before the decision: then nothing has happened. StaleMember says that partitions were
        taken from the consumer meanwhile. After the decision it is TransactionUnfinished: it will happen.
        """
        self._check_open()
        try:
            self._store._check_open()
            for producer in self._producers:
                producer.close()
            self._commit()
        except (HeadwaterError, OSError) as error:
            if self._decided:
                raise TransactionUnfinished(
                    f"the transaction is decided, but could not be carried out yet ({error}): it will be when the "
                    f"store is next opened or stewarded; do not repeat it"
                ) from error
            raise
        finally:
            self._end("committed" if self._decided else "aborted")

    def abort(self) -> None:
        """Give everything up: nothing of it was ever visible. The consumer reads again what it has read here."""
        if self.state == "open":
            self._end("aborted")

    @property
    def _decided(self) -> bool:
        return self.state in ("committed", "repeated") or self._pending.decided

    def _commit(self) -> None:
        claim = self._consumer.claim() if self._consumer is not None else None
        outputs = self._outputs()
        if claim is None and not outputs:
            self.state = "committed"
            return
        try:
            applied = self._pending.decide(outputs, self._adopted, claim)
        finally:
            if self._consumer is not None and claim is not None and self._pending.decided:
                self._consumer.decided(claim.commits, self._pending.generation)
        if applied is None:
            self.state = "repeated"
        else:
            self.state = "committed"
            self.applied = applied
            self._appender.succeed(applied)

    def _outputs(self) -> list[Output]:
        """The frames of its own producers, and those that it has adopted."""
        extents = {key: [frame.extent for frame in frames] for key, frames in self._appender.outputs.items()}
        for staged in self._adopted:
            for output in staged.outputs:
                extents.setdefault((output.topic, output.uuid, output.partition), []).extend(output.extents)
        return [Output(*key, own) for key, own in extents.items()]

    def _end(self, state: State) -> None:
        self.state = state if self.state == "open" else self.state
        if self._pid != os.getpid():
            return  # a copy in a forked process: everything is its parent's
        with ExitStack() as stack:
            stack.callback(self._pending.end, self._adopted, committed=self.state == "committed")
            if self._consumer is not None:
                if self._pending.unknown:
                    stack.callback(self._consumer.begin_anew)
                stack.callback(self._consumer.let_go, committed=self.state != "aborted")
            for producer in self._producers:
                stack.callback(producer.discard)
            self._appender.fail(_without_an_offset(self.state))

    def _check_open(self) -> None:
        if self.state != "open":
            raise StoreError(f"the transaction is {self.state}: begin another one")
        if self._pid != os.getpid():
            raise PartitionForked("the transaction")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self.state == "open":
            self.commit()


def _without_an_offset(state: State) -> StoreError:
    """The error of receipts that learn no offset."""
    match state:
        case "aborted":
            return TransactionAborted("the transaction of this record was given up")
        case "repeated":
            return StoreError("this writer has committed this sequence before: that one counts")
        case _:
            return TransactionUnfinished("the transaction of this record is decided, and not carried out yet")


def begin_transaction(
    store: Store,
    consumer: Progress | None = None,
    writer: str | None = None,
    sequence: int | None = None,
    owner: str | None = None,
    takeover: bool = False,
    request: str = "",
) -> Transaction:
    """Begin a transaction, with the progress of a consumer, or under a name and number that make it repeatable.

    A broker adds the id of the request that it does it for: see `TransactionCoordinator.answered`.
    """
    if (writer is None) != (sequence is None):
        raise InvalidConfiguration("a named transaction has a writer and a sequence: give both, or neither")
    if writer is None or sequence is None:
        if owner is not None or takeover:
            raise InvalidConfiguration("owner and takeover need a writer: pass writer and sequence as well")
        if consumer is not None and consumer.group_name is None:
            raise InvalidConfiguration("a consumer in a transaction needs a group, which keeps its positions")
        if consumer is not None and consumer.store is not store:
            raise InvalidConfiguration("the consumer was made by another store: use the transactions of that one")
        return Transaction(store, consumer, None, request)
    if consumer is not None:
        raise InvalidConfiguration("a transaction has a consumer or a writer with a sequence, not both")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE:
        raise InvalidConfiguration(f"a sequence is a number from 0 on, not {sequence!r}")
    if takeover and owner is None:
        raise InvalidConfiguration("takeover needs an owner: pass owner as well")
    return Transaction(store, None, Named(check_name("writer", writer), sequence, owner, takeover), request)
