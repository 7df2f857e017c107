"""Ports: the interfaces that a backend implements for what users hold.

Nothing here is specific to a directory, to memory or to a network. Every call may block for as long as a disk or a
broker takes, unless its description says that it does not, and raises HeadwaterError if the backend cannot do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from headwater.core.config import ConsumerConfig, StewardConfig
from headwater.core.filter import BoundFilter
from headwater.core.schema import Schema
from headwater.log import Appended, Bounds, Frame, Identity, Partition, Schemas, StoredFrame
from headwater.log.clock import Clock
from headwater.log.elapsed import Elapsed, IsOld

if TYPE_CHECKING:
    from headwater.streams.catalog import TopicInfo
    from headwater.streams.cursor import Cursor
    from headwater.streams.group import Assignment, Commit, GroupInfo, PartitionsOf, PositionClaim, TopicKey
    from headwater.streams.position import Position
    from headwater.streams.receipt import Outcome
    from headwater.streams.staging import Output, OutputKey, Staged, StagedExtent
    from headwater.streams.steward import StewardReport
    from headwater.streams.stopping import Stop
    from headwater.streams.store import Store
    from headwater.streams.topic import Topic, TopicPartition, TopicStatistics
    from headwater.streams.transaction import Named


class Appender(Protocol):
    """A producer sends frames through it: to a partition at once, to a transaction's stage, or to a broker."""

    identity: Identity | None
    """The identity of the producer, as its frames carry it."""
    prompt: bool
    """True if frames are where they belong when `append` returns; otherwise they are on their way there."""
    staging: bool
    """True if frames wait for the decision of a transaction, which publishes all of them or none."""

    def room(self, partition: int, timeout: float) -> bool:
        """Wait until there is room for one more frame, at most `timeout` seconds; whether there is."""

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        """Write one frame. The outcome is told its place in the log as soon as it has one."""

    @property
    def pending(self) -> int:
        """The number of records that are on their way."""

    def flush(self) -> None:
        """Return when all frames that are on their way have arrived, or have failed."""

    def sync(self, topic: Topic) -> None:
        """Make what was written durable."""

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with the error of each frame that fails after `append` has returned."""

    def close(self) -> None:
        """Nothing more comes."""


class Wakeup(Protocol):
    """Wakes a consumer when there may be something to poll: a thread by `wait`, an event loop by `fileno`.

        def readable():
            if wakeup.drain():
                event.set()

        loop.add_reader(wakeup.fileno(), readable)

    The descriptor becomes readable when there may be something new, and now and then for nothing. `drain` tells which,
    and makes it unreadable again. Look for records after the first call of `fileno`, and each time that `drain`
    returns True: then nothing falls between.
    """

    @property
    def complete(self) -> bool:
        """True if everything new wakes; if not, look in intervals."""

    def fileno(self) -> int:
        """A descriptor, the same one until `close`; -1 where there is none."""

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Block until `ready()`, at most `timeout` seconds; whether it was."""

    def drain(self) -> bool:
        """Forget the news so far; whether there were any."""

    def close(self) -> None:
        """Give the descriptors back. Closing twice does no harm."""


class Source(Protocol):
    """The source of a cursor: a partition, or what was fetched of one."""

    def bounds(self) -> Bounds:
        """Return the offsets that can be read now."""

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:
        """Frames from the one that holds `offset` on."""


class Fetcher(Protocol):
    """One consumer reads and commits through it."""

    @property
    def watch(self) -> Wakeup:
        """Wakes the consumer when there may be something to poll."""

    def source(self, tp: TopicPartition, key: TopicKey, partition: Partition, where: BoundFilter | None) -> Source:
        """Return the source of a new cursor, which reads only records that match `where` if that is given.

        A frame without records stands for offsets that were passed over: see `log.format.frame_filter`.
        """

    def follow(self, cursors: Sequence[Cursor]) -> None:
        """Be woken by what is appended to these partitions, and by changes in the consumer's group."""

    def look(self, cursors: Sequence[Cursor], member: str | None, *, patiently: bool) -> bool:
        """Before records are taken: see what there is for these cursors by now; whether that took a call.

        With `patiently`, the caller waits for news anyway, so nothing need be asked for.
        """

    def taken(self, cursors: Sequence[Cursor]) -> None:
        """After records were taken: fetch the next ones, while the caller handles these."""

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        """Return whether there is something for one of these cursors."""

    def commit(
        self,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: dict[TopicKey, int] | None,
        *,
        patiently: bool,
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        """Set positions of the group: which are set by now, and which were refused.

        With `patiently`, the result may arrive with a later call, which is given all that is not known to be set.
        """

    def finish_commits(self) -> None:
        """Block until no commit is on its way."""

    def close(self) -> None:
        """Give everything back."""


class FrameStage(Protocol):
    """A place for frames that one process writes, and a transaction of another publishes. For one thread."""

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:
        """Keep a frame, and return its place in the stage."""

    def leave(self, outputs: Mapping[OutputKey, Sequence[StagedExtent]], records: int) -> Staged:
        """Make all frames durable and leave them to a transaction. `outputs` are their places by partition."""

    def discard(self) -> None:
        """Remove all frames, unless they were left to a transaction."""


class PendingTransaction(Protocol):
    """One transaction of a backend, from its first frame to its end. For one thread, but for `stage`."""

    @property
    def identity(self) -> Identity | None:
        """The identity that frames are encoded with; None if they get theirs with the decision."""

    def stage(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:
        """Keep a frame until the decision, and return its place. The caller serialises the calls."""

    def check(self, staged: Staged) -> None:
        """Raise InvalidConfiguration if these frames were staged in another store. Does not block."""

    def decide(
        self, outputs: Sequence[Output], adopted: Sequence[Staged], claim: PositionClaim | None
    ) -> dict[TopicKey, Appended | None] | None:
        """Decide the transaction, in one step, and apply it; return the places of its outputs.

        The place is None for a partition that is gone, and for outputs that were there already. The result itself is
        None if this writer has committed this sequence before. Raises StaleMember when a claimed position is no longer
        the consumer's, TransactionAborted when a stage is gone, and WriterTaken.
        """

    @property
    def decided(self) -> bool:
        """True if the decision was made, even if `decide` has raised since."""

    @property
    def unknown(self) -> bool:
        """True if the answer was lost, so that nobody can tell whether the decision was made."""

    @property
    def generation(self) -> int:
        """The generation of the group in which the positions are set; 0 before the decision."""

    def end(self, adopted: Sequence[Staged], *, committed: bool) -> None:
        """Give everything back, and remove the stages unless the transaction is `committed`."""


class TransactionCoordinator(Protocol):
    """Begins transactions, and carries out those that are decided. Thread-safe."""

    def begin(self, named: Named | None, request: str) -> PendingTransaction:
        """Begin a transaction, under a name and number that make it repeatable if it has one.

        A broker adds the id of the client's request: see `answered`.
        """

    def stage(self) -> FrameStage:
        """Return a new stage, for the transaction of another process."""

    def drop(self, staged: Iterable[Staged]) -> None:
        """Remove frames that were staged, where no decision names them."""

    def answered(self, request: str) -> bool:
        """Return whether the transaction of this request has been carried out. It is known for a day.

        Raises TransactionUnfinished when it is decided and cannot be carried out yet.
        """

    def roll_forward(self, *, writer: bytes | None = None, group: str | None = None, dry_run: bool = False) -> int:
        """Carry out every decided transaction, or those of one writer or group, and return their number.

        One that cannot be carried out does not keep the others from it; its error is raised in the end.
        """

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:
        """Drop undecided stages that nobody has written to for too long, and return their number."""

    def close(self) -> None:
        """Give everything back."""


class GroupCoordinator(Protocol):
    """Decides about the members and the positions of one group. Thread-safe."""

    @property
    def name(self) -> str:
        """The name of the group."""

    # Members.

    def join(self, topics: list[str], partitions_of: PartitionsOf, client: str = "", *, static: bool = False) -> str:
        """Become a member, and return the member's id. A `static` one gets no partitions: it has a fixed share."""

    def leave(self, member_id: str, partitions_of: PartitionsOf) -> None:
        """Stop being a member; its partitions go to the others."""

    def rebalance(
        self,
        member_id: str,
        partitions_of: PartitionsOf,
        max_poll_interval: float,
        holding: Iterable[TopicPartition] = (),
    ) -> Assignment:
        """Rebalance: take partitions that are free, let go those that are no longer the member's, take the dead out.

        A partition that the member is `holding` stays its own until it calls again without it: so it can commit what it
        has done before the next one begins there. Raises StaleMember when it was taken out: it may join again.
        """

    def touch(self, member_id: str) -> None:
        """Note that the member has polled, so its handler lives. Does not block."""

    def generation(self) -> int:
        """Return the present generation. Every poll calls it, so it takes one small read, or none."""

    def describe(self) -> GroupInfo:
        """Return the group as it is now."""

    # Positions.

    def committed(self) -> dict[TopicKey, Position]:
        """Return all positions."""

    def position(self, key: TopicKey) -> Position | None:
        """Return the position in one partition, None when there is none."""

    def commit(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> frozenset[TopicPartition]:
        """Set the positions of the partitions that the member owns; return the others, where nothing was set.

        Non-members pass in `known` the generation of each position they resume from. Nothing is set where it is of
        another one by now, because of a reset. Positions do not move back: raises CommitRefused when one of them would,
        and sets none then.
        """

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        """Set positions on purpose, forwards or backwards, under a new generation."""

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        """Bring positions back to the ends of their partitions: a power loss has taken records that were not synced."""

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        """Forget a group with no living member whose last commit was before that time; whether it was one."""

    def close(self) -> None:
        """Give the resources back; members that did not leave are dead from now on."""


class Cleaner(Protocol):
    """Cleans a store for a steward. Thread-safe."""

    @property
    def notes_history(self) -> bool:
        """True if the backend keeps the store's history itself, so that the steward need not."""

    def clean(self, config: StewardConfig, *, dry_run: bool, stop: Stop) -> StewardReport:
        """Make one pass over all topics and groups, and return what was done; with `dry_run`, what would be.

        Blocks for the whole pass, and ends early after the partition at hand when `stop` asks for it. A pass that finds
        another one under way does nothing and says so in the report.
        """


class Catalog(Protocol):
    """The topics of a store, and their schemas. Thread-safe."""

    def names(self) -> list[str]:
        """Return every topic's name, sorted, internal ones too."""

    def get(self, name: str) -> TopicInfo:
        """Return a topic as it is now, or as it was within the last second; raises UnknownTopic."""

    def recall(self, name: str) -> TopicInfo:
        """Return a topic as it was last described, however long ago; raises UnknownTopic.

        Does not block if the topic is known. Producers call it for every batch.
        """

    def refresh(self, name: str) -> TopicInfo:
        """Return a topic as it is now, whatever is remembered; raises UnknownTopic."""

    def schemas(self, info: TopicInfo) -> Schemas:
        """Return the schemas that a topic has or had. Does not block; reading one of them may."""

    def create(self, info: TopicInfo, schema: Schema) -> None:
        """Add a topic with its first schema, or raise TopicExists; of two callers at once, one succeeds.

        Raises InvalidConfiguration for more replicas than the store can keep.
        """

    def alter(
        self,
        name: str,
        partitions: int | None,
        options: Mapping[str, Any],
        replication: int | None = None,
        min_insync: int | None = None,
    ) -> TopicInfo:
        """Change options of a topic by name, and give it more partitions unless that is None; return it as it is then.

        In a cluster it gets another replication factor, and another minimum of in-sync replicas, unless that is None.
        Raises UnknownTopic, and InvalidConfiguration for unknown options, fewer partitions, and more replicas than the
        store can keep.
        """

    def evolve(self, name: str, schema: Schema) -> TopicInfo:
        """Give a typed topic a schema with more, nullable columns; raises UnknownTopic and SchemaError."""

    def delete(self, name: str) -> bytes | None:
        """Remove a topic with all its records; return its uuid if its partitions may be open here.

        Raises UnknownTopic.
        """

    def sweep(self, *, dry_run: bool = False) -> int:
        """Remove the remains of topics whose creator or deleter died in the middle; return the number of topics."""


class StoreBackend(Protocol):
    """All that a store needs of the place where its topics are. Thread-safe."""

    @property
    def catalog(self) -> Catalog:
        """The topics."""

    @property
    def clock(self) -> Clock:
        """The clock of new topics and of stewards."""

    @property
    def elapsed(self) -> Elapsed:
        """Tells the age of things by the time that was observed to pass."""

    def transactions(self, store: Store) -> TransactionCoordinator:
        """Return the transaction coordinator of a new store. Does not block."""

    def open_partition(self, info: TopicInfo, number: int) -> Partition:
        """Open a partition of a topic. The store keeps it open, and calls this once for each."""

    def holds_partition(self, info: TopicInfo, number: int) -> bool:
        """Return whether anything is kept of a partition, which may never have been used."""

    def coordinator(self, name: str) -> GroupCoordinator:
        """Return the coordinator of a group, the same for every call."""

    def has_group(self, name: str) -> bool:
        """Return whether there ever was a group of this name."""

    def group_names(self) -> list[str]:
        """Return the names of all groups that ever were, sorted."""

    def new_fetcher(self, config: ConsumerConfig, group: str | None) -> Fetcher:
        """Return the fetcher of a new consumer, which commits to a group if it has one."""

    def new_appender(self) -> Appender:
        """Return the appender of a new producer that is no part of a transaction."""

    def new_cleaner(self, store: Store) -> Cleaner:
        """Return the cleaner of a new steward. Does not block."""

    def stewarding(self) -> AbstractContextManager[None]:
        """The right to clean, for the length of a block; raises PartitionBusy when someone else is at it.

        Raises StoreError if the backend cleans by itself.
        """

    def statistics(self) -> list[TopicStatistics] | None:
        """Return all topics that users see in numbers, if one call tells; None if the store has to add them up."""

    def close(self) -> None:
        """Close the groups, and give everything else back. The store has closed the partitions before."""
