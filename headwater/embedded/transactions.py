"""The transaction coordinator of embedded stores.

Frames wait in a stage of the ledger, which is a file or memory. One rename decides, under the group's lock when a
consumer's positions are part of it, after a look whether the partitions are still the consumer's. Then the frames go to
their partitions, the positions are set, and the ledger forgets the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.core.errors import (
    HeadwaterError,
    PartitionDeleted,
    TransactionAborted,
    TransactionUnfinished,
    UnknownTopic,
)
from headwater.embedded.decision import Decision, Input
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.ledger import Ledger, Slot
from headwater.embedded.stage import Stage
from headwater.log import Appended, Frame, Identity, Partition
from headwater.log.elapsed import IsOld
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import Commit, PositionClaim, TopicKey
from headwater.streams.named_writer import named_writer
from headwater.streams.staging import Output, OutputKey, Staged, StagedExtent
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import Named

if TYPE_CHECKING:
    from headwater.streams.store import Store


class LedgerStage:
    """A stage of a ledger that is left to the transaction of another process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:  # noqa: ARG002 - a stage is for any
        return self._stage.append(frame)

    def leave(self, outputs: Mapping[OutputKey, Sequence[StagedExtent]], records: int) -> Staged:
        file = self._stage.leave()
        left = [
            Output(*key, tuple(extent._replace(file=file) for extent in extents)) for key, extents in outputs.items()
        ]
        return Staged(tuple(left), records)

    def discard(self) -> None:
        self._stage.discard()


class LedgerTransaction:
    """One transaction, from its first frame to its end."""

    unknown = False

    def __init__(self, coordinator: LedgerCoordinator, named: Named | None, request: str) -> None:
        self._coordinator = coordinator
        self._ledger = coordinator.ledger
        self._named = named
        self._request = request
        self._decision: Decision | None = None
        self._stage = self._ledger.stage()
        self._slot: Slot | None = None
        if named is None:
            self._slot = self._ledger.borrow()
            self._signature = Identity(self._slot.writer, 0, self._slot.next, forever=True)
        else:
            self._signature = Identity(named_writer(named.writer), 0, named.number, forever=True)
        # The sequence of an owner's number is known at the decision: until then its frames have no identity.
        self.identity = self._signature if named is None or named.owner is None else None

    def stage(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:  # noqa: ARG002 - a stage is for any
        return self._stage.append(frame)

    def check(self, staged: Staged) -> None:
        """Accept it: `decide` finds out if the files are not there."""

    @property
    def generation(self) -> int:
        return 0 if self._decision is None else self._decision.generation

    @property
    def decided(self) -> bool:
        # Even an interruption (Ctrl-C) right after the rename does not take the decision back.
        return self._decision is not None and not self._stage.waiting

    def decide(
        self,
        outputs: Sequence[Output],
        adopted: Sequence[Staged],  # noqa: ARG002 - the outputs name their files
        claim: PositionClaim | None,
    ) -> dict[TopicKey, Appended | None] | None:
        if claim is not None:
            # A record that a power loss could take back must not count as done: its successor would be passed over.
            self._coordinator.make_durable(claim.commits)
        decision = self._describe(outputs, claim)
        turn = self._ledger.writing_as(decision.writer) if self._named is not None else nullcontext()
        with turn:
            # The numbers of a writer reach a partition in their order, or the earlier one would count as repeated.
            self._coordinator.roll_forward(writer=decision.writer)
            if self._named is not None:
                sequence = self._claim_number(decision.writer, self._named)
                if sequence is None:
                    return None
                decision = replace(decision, sequence=sequence)
            self._stage.seal(decision)
            with self._deciding(claim) as generation:
                self._decision = replace(decision, generation=generation)
                self._decide(self._decision)
            return self._coordinator.apply(self._decision)

    def _claim_number(self, writer: bytes, named: Named) -> int | None:
        return self._ledger.claim(writer, named.writer, named.owner, named.number, takeover=named.takeover)

    def _describe(self, outputs: Sequence[Output], claim: PositionClaim | None) -> Decision:
        commits = {} if claim is None else claim.commits
        inputs = tuple(Input(partition.topic, *commit.key, commit.offset) for partition, commit in commits.items())
        return Decision(
            self._signature.producer_id,
            self._signature.sequence,
            self._named is not None,
            tuple(outputs),
            None if claim is None else claim.group,
            inputs,
            request=self._request,
        )

    def _deciding(self, claim: PositionClaim | None) -> AbstractContextManager[int]:
        """The right to decide over the positions, and the generation in which it is given."""
        return nullcontext(0) if claim is None else self._coordinator.deciding(claim)

    def _decide(self, decision: Decision) -> None:
        try:
            self._ledger.decide(self._stage, decision)
        except FileNotFoundError:
            self._decision = None
            raise TransactionAborted("the transaction's stage is gone: it was dropped, or open for a day") from None

    def end(self, adopted: Sequence[Staged], *, committed: bool) -> None:
        with ExitStack() as stack:
            if self._slot is not None:
                stack.callback(self._ledger.give_back, self._slot)
            stack.callback(self._stage.discard)
            if not committed:
                self._ledger.drop([file for staged in adopted for file in staged.files])


class LedgerCoordinator:
    """Begins the transactions of a store, and carries out what is decided. Thread-safe."""

    def __init__(self, store: Store, groups: Callable[[str], EmbeddedGroup], ledger: Ledger) -> None:
        self._store = store
        self._group = groups
        self.ledger = ledger

    def begin(self, named: Named | None = None, request: str = "") -> LedgerTransaction:
        return LedgerTransaction(self, named, request)

    def answered(self, request: str) -> bool:
        if not request or self.ledger.answered(request):
            return bool(request)
        decided = [decision for decision in self.ledger.decided() if decision.request == request]
        for decision in decided:
            try:
                self.apply(decision)
            except (HeadwaterError, OSError) as error:
                raise TransactionUnfinished(
                    f"the transaction is decided, but could not be carried out yet ({error}): do not repeat it"
                ) from error
        return bool(decided)

    def stage(self) -> LedgerStage:
        return LedgerStage(self.ledger.stage())

    def drop(self, staged: Iterable[Staged]) -> None:
        self.ledger.drop([file for stage in staged for file in stage.files])

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:
        return self.ledger.sweep(is_old, dry_run=dry_run)

    def close(self) -> None:
        self.ledger.close()

    def roll_forward(self, *, writer: bytes | None = None, group: str | None = None, dry_run: bool = False) -> int:
        chosen = [decision for decision in self.ledger.decided(writer) if group is None or decision.group == group]
        failed: HeadwaterError | OSError | None = None
        for decision in sorted(chosen, key=lambda decision: decision.sequence) if not dry_run else ():
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
            self._group(decision.group).carry_out(commits, decision.generation)
        self.ledger.finish(decision)
        return applied

    def deciding(self, claim: PositionClaim) -> AbstractContextManager[int]:
        """The right to decide that these positions will be set, for the length of a block; gives the generation."""
        return self._group(claim.group).deciding(claim.member, claim.commits, known=claim.known)

    def make_durable(self, commits: dict[TopicPartition, Commit]) -> None:
        """Sync the partitions whose records before these positions are not durable yet."""
        for tp, (key, offset) in commits.items():
            partition = self._partition(tp.topic, *key)
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
