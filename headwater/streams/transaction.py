"""Transactions: writes to several partitions and topics, and the positions of a consumer, all of them or none.

*Stage*: frames go into a file of the transaction's own. *Decide*: one rename, under the group's lock when a consumer's
positions are part of it, after a look whether the partitions are still the consumer's. *Apply*: to each partition as
one atomic group, then the positions, then the file goes. What was decided is applied by whoever comes across it, so a
crash at any point leaves all of it or nothing. Readers of several partitions can see one before the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from headwater.core.config import ProducerConfig
from headwater.core.errors import (
    HeadwaterError,
    InvalidConfiguration,
    PartitionDeleted,
    PartitionForked,
    StoreError,
    TransactionAborted,
    TransactionUnfinished,
    UnknownTopic,
)
from headwater.core.names import check_name
from headwater.log import Appended, Frame, Identity, Partition
from headwater.log.elapsed import IsOld
from headwater.log.format.frame import MAX_SEQUENCE
from headwater.streams.appending import PromptAppender
from headwater.streams.catalog import TopicInfo
from headwater.streams.decision import Decision, Extent, Input, Output
from headwater.streams.group import Commit, TopicKey
from headwater.streams.ledger import Ledger, Slot, named_writer
from headwater.streams.producer import Producer
from headwater.streams.receipt import Outcome
from headwater.streams.staging import Staged, Staging
from headwater.streams.topic import Topic, TopicPartition

if TYPE_CHECKING:
    from headwater.streams.store import Store

_Producer = TypeVar("_Producer", bound=Producer)
State = Literal["open", "committed", "aborted", "repeated"]

STAGES_KEPT: Final = 24 * 60 * 60.0
"""How long a stage that nobody writes to waits for its decision. Seconds."""


class _Staged(NamedTuple):
    """One frame in the stage, and who waits for its place in the log."""

    extent: Extent
    records: int
    outcome: Outcome


Keep = Callable[[TopicInfo, int, Frame], Extent]
"""Keeps a frame for a partition of a topic, and tells where."""


class StageAppender(PromptAppender):
    """Where the producers of a transaction write. Thread-safe."""

    def __init__(self, keep: Keep, identity: Identity | None) -> None:
        self.identity = identity
        self._keep = keep
        self._mutex = threading.Lock()
        self.outputs: dict[tuple[str, bytes, int], list[_Staged]] = {}

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        info = topic.info
        limit = info.config.max_frame_bytes
        if frame.length > limit:
            raise StoreError(f"a frame of {frame.length} bytes is over the limit of {limit} (max_frame_bytes)")
        with self._mutex:
            staged = _Staged(self._keep(info, partition, frame), frame.last_offset_delta + 1, outcome)
            self.outputs.setdefault((info.name, info.uuid, partition), []).append(staged)

    def sync(self, topic: Topic) -> None:
        """The records of a transaction are durable, and visible, when it is committed."""

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits."""
        for staged in self.outputs.values():
            for one in staged:
                if not one.outcome.done:
                    one.outcome.fail(error)


class Progress(Protocol):
    """The positions of a consumer, as far as a transaction needs it."""

    @property
    def store(self) -> Store:
        """The store that it reads from."""

    @property
    def group_name(self) -> str | None:
        """The group that keeps the positions."""

    def hold(self) -> None:
        """Commit nothing from now on but by the transaction."""

    def held(self) -> dict[TopicPartition, Commit]:
        """What is done since."""

    def deciding(self, commits: dict[TopicPartition, Commit]) -> AbstractContextManager[int]:
        """The right to decide that these positions will be set; gives the generation."""

    def let_go(self, *, committed: bool) -> None:
        """The transaction is over."""


class Named(NamedTuple):
    """The name and the number of a transaction that may be repeated, and who gives such numbers."""

    writer: str
    number: int
    owner: str | None = None
    takeover: bool = False


class Transaction:
    """A block whose writes, and a consumer's progress, count together or not at all. For one thread.

    Leaving the block commits; an error in it gives everything up, and the consumer goes back to where it was.
    """

    def __init__(
        self,
        store: Store,
        transactions: Transactions,
        consumer: Progress | None,
        named: Named | None,
        request: str = "",
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._consumer = consumer
        self._named = named
        self._request = request
        self._pid = os.getpid()
        self._adopted: list[Staged] = []
        self._producers: list[Producer] = []
        self.applied: dict[TopicKey, Appended | None] = {}
        """Where the outputs are, once it is committed; None for those that another process has applied."""
        self.state: State = "open"
        """Repeated: this writer has committed this sequence before, and that one counts."""
        self._appender = self._begin()
        if consumer is not None:
            try:
                consumer.hold()
            except BaseException:
                self._give_slot_back()
                raise

    def _begin(self) -> StageAppender:
        """Make what the transaction needs; gives the appender that its producers write through."""
        self._ledger = self._transactions.ledger
        self._decision: Decision | None = None
        self._stage = self._ledger.stage()
        self._slot: Slot | None = None
        named = self._named
        if named is None:
            self._slot = self._ledger.borrow()
            self._identity = Identity(self._slot.writer, 0, self._slot.next, forever=True)
        else:
            self._identity = Identity(named_writer(named.writer), 0, named.number, forever=True)
        # The sequence of an owner's number is known at the decision: until then its frames have no identity.
        identity = self._identity if named is None or named.owner is None else None
        return StageAppender(lambda _topic, _partition, frame: self._stage.append(frame), identity)

    def producer(self, topic: str, *, config: ProducerConfig | None = None, **options: Any) -> Producer:
        """A producer whose records are part of this transaction. Options are those of ProducerConfig, by name.

        Receipts tell their offsets once the transaction is committed.
        """
        self._check_open()
        return self.look_after(self._store._producer(topic, config, options, self._appender))

    @property
    def generation(self) -> int:
        """The generation of the consumer's group in which its positions were set; 0 before, and without a consumer."""
        return 0 if self._decision is None else self._decision.generation

    @property
    def appender(self) -> StageAppender:
        """Where its producers write."""
        return self._appender

    def look_after(self, producer: _Producer) -> _Producer:
        """Make what a producer has written part of the transaction."""
        self._check_open()
        self._producers.append(producer)
        return producer

    def adopt(self, staged: Staged) -> None:
        """Make what another process has staged part of the transaction. It goes when the transaction is given up."""
        self._check_open()
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
        """Even an interruption (Ctrl-C) right after the rename does not take the decision back."""
        return self.state == "repeated" or (self._decision is not None and not self._stage.waiting)

    def _commit(self) -> None:
        commits = self._consumer.held() if self._consumer is not None else {}
        if not commits and not self._appender.outputs and not any(one.outputs for one in self._adopted):
            self.state = "committed"
            return
        # What a power loss could take back must not have been done, or what comes in its place would be passed over.
        self._transactions.make_durable(commits)
        decision = self._describe(commits)
        turn = self._ledger.writing_as(decision.writer) if self._named is not None else nullcontext()
        with turn:
            # The numbers of a writer reach a partition in their order, or the earlier one would count as repeated.
            self._transactions.roll_forward(writer=decision.writer)
            if self._named is not None:
                sequence = self._number(decision.writer, self._named)
                if sequence is None:
                    self.state = "repeated"
                    return
                decision = replace(decision, sequence=sequence)
            self._stage.seal(decision)
            with self._inputs(commits) as generation:
                self._decision = replace(decision, generation=generation)
                self._decide(self._decision)
            self.applied = self._transactions.apply(self._decision)
            self._tell(self.applied)

    def _number(self, writer: bytes, named: Named) -> int | None:
        return self._ledger.claim(writer, named.writer, named.owner, named.number, takeover=named.takeover)

    def _describe(self, commits: dict[TopicPartition, Commit]) -> Decision:
        extents = {place: [one.extent for one in staged] for place, staged in self._appender.outputs.items()}
        for output in (output for staged in self._adopted for output in staged.outputs):
            extents.setdefault((output.topic, output.uuid, output.partition), []).extend(output.extents)
        outputs = tuple(Output(*place, found) for place, found in extents.items())
        inputs = tuple(Input(place.topic, *one.key, one.offset) for place, one in commits.items())
        group = self._consumer.group_name if self._consumer is not None and commits else None
        identity, named = self._identity, self._named is not None
        return Decision(identity.producer_id, identity.sequence, named, outputs, group, inputs, request=self._request)

    def _inputs(self, commits: dict[TopicPartition, Commit]) -> AbstractContextManager[int]:
        """The right to decide over these positions, and the generation in which it is given."""
        if self._consumer is None or not commits:
            return nullcontext(0)
        return self._consumer.deciding(commits)

    def _decide(self, decision: Decision) -> None:
        try:
            self._ledger.decide(self._stage, decision)
        except FileNotFoundError:
            self._decision = None
            raise TransactionAborted("the transaction's stage is gone: it was dropped, or open for a day") from None

    def _tell(self, applied: dict[TopicKey, Appended | None]) -> None:
        """Give the receipts their offsets."""
        for (name, uuid, number), staged in self._appender.outputs.items():
            place = applied.get((uuid, number))
            offset = -1 if place is None else place.base_offset
            for one in staged:
                if place is None:
                    why = f"{name}/{number}: committed, but where is not known: deleted, or written by another process"
                    one.outcome.fail(StoreError(why))
                else:
                    one.outcome.succeed(Appended(offset, offset + one.records))
                offset += one.records

    def _end(self, state: State) -> None:
        self.state = state if self.state == "open" else self.state
        if self._pid != os.getpid():
            return  # a copy in a forked process: everything is its parent's
        with ExitStack() as stack:
            self._release(stack)
            if self._consumer is not None:
                stack.callback(self._consumer.let_go, committed=self.state != "aborted")
            for producer in self._producers:
                stack.callback(producer.discard)
            self._appender.fail(_without_a_place(self.state))

    def _release(self, stack: ExitStack) -> None:
        """Have the stack give back what the transaction needed."""
        stack.callback(self._give_slot_back)
        stack.callback(self._stage.discard)
        if self.state != "committed":
            stack.callback(self._ledger.drop, [file for staged in self._adopted for file in staged.files])

    def _give_slot_back(self) -> None:
        if self._slot is not None:
            self._ledger.give_back(self._slot)

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


def _without_a_place(state: State) -> StoreError:
    """What the receipts say that no place is known for."""
    match state:
        case "aborted":
            return TransactionAborted("the transaction of this record was given up")
        case "repeated":
            return StoreError("this writer has committed this sequence before: that one counts")
        case _:
            return TransactionUnfinished("the transaction of this record is decided, and not carried out yet")


class Transactions:
    """The transactions of a store: begins them, and carries out what is decided. Thread-safe."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self.ledger = ledger

    def begin(
        self,
        consumer: Progress | None = None,
        writer: str | None = None,
        sequence: int | None = None,
        owner: str | None = None,
        takeover: bool = False,
        request: str = "",
    ) -> Transaction:
        """A new transaction, with the progress of a consumer, or under a name and number that make it repeatable.

        A broker adds the id of the request that it does it for: see `answered`.
        """
        if (writer is None) != (sequence is None):
            raise InvalidConfiguration("a named transaction has a writer and a sequence: give both, or neither")
        if writer is None or sequence is None:
            if owner is not None or takeover:
                raise InvalidConfiguration("an owner numbers the transactions of a writer: name the writer")
            if consumer is not None and consumer.group_name is None:
                raise InvalidConfiguration("a consumer in a transaction needs a group, which keeps its positions")
            if consumer is not None and consumer.store is not self._store:
                raise InvalidConfiguration("the consumer was made by another store: use the transactions of that one")
            return self._transaction(consumer, None, request)
        if consumer is not None:
            raise InvalidConfiguration("a transaction has a consumer or a writer with a sequence, not both")
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE:
            raise InvalidConfiguration(f"a sequence is a number from 0 on, not {sequence!r}")
        if takeover and owner is None:
            raise InvalidConfiguration("a writer is taken over by an owner: name it")
        named = Named(check_name("writer", writer), sequence, owner, takeover)
        return self._transaction(None, named, request)

    def _transaction(self, consumer: Progress | None, named: Named | None, request: str) -> Transaction:
        return Transaction(self._store, self, consumer, named, request)

    def answered(self, request: str) -> bool:
        """Whether the transaction of this request has been carried out, by whomever.

        Raises TransactionUnfinished when it is decided and cannot be carried out yet.
        """
        if not request or self.ledger.answered(request):
            return bool(request)
        decided = [one for one in self.ledger.decided() if one.request == request]
        for decision in decided:
            try:
                self.apply(decision)
            except (HeadwaterError, OSError) as error:
                raise TransactionUnfinished(
                    f"the transaction is decided, but could not be carried out yet ({error}): do not repeat it"
                ) from error
        return bool(decided)

    def stage(self) -> Staging:
        """A new stage, for a transaction of another process."""
        return Staging(self.ledger.stage())

    def drop(self, staged: Iterable[Staged]) -> None:
        """Remove what was staged, where it is not decided."""
        self.ledger.drop([file for one in staged for file in one.files])

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:
        """Drop what nobody has written to for too long, undecided; how many."""
        return self.ledger.sweep(is_old, dry_run=dry_run)

    def close(self) -> None:
        """Give everything back."""
        self.ledger.close()

    def roll_forward(self, *, writer: bytes | None = None, group: str | None = None, dry_run: bool = False) -> int:
        """Carry out everything that is decided, or what one writer or one group has decided; how many transactions.

        One that cannot be carried out does not keep the others from it; its error is raised in the end.
        """
        chosen = [one for one in self.ledger.decided(writer) if group is None or one.group == group]
        failed: HeadwaterError | OSError | None = None
        for decision in sorted(chosen, key=lambda one: one.sequence) if not dry_run else ():
            try:
                self.apply(decision)
            except (HeadwaterError, OSError) as error:
                if not self.ledger.is_damaged(decision):
                    failed = failed or error
        if failed is not None:
            raise failed
        return len(chosen)

    def apply(self, decision: Decision) -> dict[TopicKey, Appended | None]:
        """Carry out a decision: as often as it is tried, it happens once. Returns where the outputs are.

        None stands for a partition that is gone, and for outputs that were there already.
        """
        self.ledger.make_durable()
        staged: list[tuple[TopicKey, Partition, list[Frame]]] = []
        for output in decision.outputs:
            partition = self._partition(output.topic, output.uuid, output.partition)
            if partition is not None:
                frames = self.ledger.frames(decision, output, partition.schemas.get)
                if frames is None:
                    return {}  # another process has carried it out meanwhile
                staged.append(((output.uuid, output.partition), partition, frames))
        # Only now, as all frames are known to be sound: of a damaged transaction nothing is to happen.
        applied = {key: _append(partition, frames) for key, partition, frames in staged}
        if decision.group is not None:
            commits = {
                TopicPartition(topic, at): Commit((uuid, at), offset) for topic, uuid, at, offset in decision.inputs
            }
            self._store.group(decision.group).carry_out(commits, decision.generation)
        self.ledger.finish(decision)
        return applied

    def make_durable(self, commits: dict[TopicPartition, Commit]) -> None:
        """Sync the partitions whose records before these positions are not durable yet."""
        for place, (key, offset) in commits.items():
            partition = self._partition(place.topic, *key)
            if partition is not None and partition.bounds().durable_end < offset:
                partition.sync()

    def _partition(self, topic: str, uuid: bytes, number: int) -> Partition | None:
        """A partition of this very topic, None when the topic was deleted."""
        try:
            info = self._store.describe_topic(topic)
            return self._store.partition(info, number) if info.uuid == uuid else None
        except (UnknownTopic, PartitionDeleted):
            return None


def _append(partition: Partition, frames: list[Frame]) -> Appended | None:
    try:
        appended = partition.append(frames)
        partition.sync()  # the decision is forgotten after this, whatever the topic promises on its own
    except PartitionDeleted:
        return None
    return appended if appended.base_offset >= 0 else None
