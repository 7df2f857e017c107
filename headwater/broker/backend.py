"""The backend of a broker: everything that an edge, such as the gRPC service, needs of it.

An edge speaks a protocol: it knows its callers, checks their rights, bounds what they may take, and converts messages.
The backend does the work, in the words of the store. There are two, `headwater.broker.standalone` and
`headwater.broker.clustered`, and a broker chooses one when it starts. Nothing here knows gRPC, protobuf or rights.

A backend belongs to one event loop. Methods that may be called in any thread say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from headwater.broker.append_queue import AppendBatch
from headwater.broker.security.access import Rules
from headwater.broker.security.access_file import Rights
from headwater.broker.security.secrets import Secrets
from headwater.broker.security.tokens import Token
from headwater.cluster.control.forced_election import Outlook
from headwater.cluster.control.moves import PlannedMove
from headwater.core.address import Address
from headwater.core.config import Acks
from headwater.core.errors import FrameDamaged, HeadwaterError
from headwater.core.filter import Filter
from headwater.core.record import Record
from headwater.core.schema import RAW, Schema
from headwater.log import Appended, Bounds, Partition, SegmentFacts
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import GroupInfo
from headwater.streams.membership import Rebalanced
from headwater.streams.steward import StewardReport
from headwater.streams.topic import TopicPartition, TopicStatistics


class Refused(Exception):
    """The broker cannot do it now; the caller may ask again, here later or another broker."""


class NamedPartition(NamedTuple):
    """A partition as a caller names it."""

    topic: str
    partition: int
    topic_uuid: bytes = b""
    """The uuid of the topic, if the caller knows it: another topic may have the name by now."""

    @property
    def tp(self) -> TopicPartition:
        """The partition without the uuid."""
        return TopicPartition(self.topic, self.partition)


class RoutedAppend(NamedTuple):
    """The records of one request that go to one partition, on their way there."""

    partition: int
    numbers: Sequence[int]
    """The positions of these records in the request."""
    appended: asyncio.Future[Appended]


class PartitionLogs(Protocol):
    """The logs of the partitions that a broker serves."""

    # Reading.

    def visible(self, partition: NamedPartition, in_doubt: Collection[TopicPartition]) -> tuple[Partition, Bounds]:
        """In any thread: the log of a partition, and the offsets that readers may see. It may open files.

        In a cluster readers see records up to the high watermark, at the leader. `in_doubt` is what the method of this
        name has returned before. Raises UnknownTopic, PartitionDeleted, NotLeader and LeaderNotReady.
        """

    async def in_doubt(self, partitions: Iterable[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """The partitions that another broker may lead by now. It may wait for followers, `timeout` seconds at most."""

    def frame_filter(self, partition: NamedPartition, where: Filter) -> FrameFilter:
        """In any thread: a filter for the frames of a partition, bound to the schema that its topic has now.

        Raises InvalidFilter if it does not fit, UnknownTopic and PartitionDeleted.
        """

    def damage(self, partition: TopicPartition, error: FrameDamaged) -> HeadwaterError:
        """In any thread: the error for a reader that has met damage. In a cluster another replica may be whole."""

    def removed_tombstones(self, partition: TopicPartition) -> tuple[int, int]:
        """In any thread: the offset before which delete markers may be gone, and the state of the log.

        Both are 0 if all markers are there. See `headwater.cluster.replication.markers`. Raises NotLeader.
        """

    def end(self, partition: TopicPartition) -> int:
        """In any thread: the end of a partition that is served here, to notice changes; -1 if it is not."""

    # Writing.

    def append(self, partition: TopicPartition, batch: AppendBatch, acks: Acks) -> asyncio.Future[Appended]:
        """Queue frames for a partition. Raises NotLeader at once if this broker does not lead it.

        The future is done when the replicas have the frames that `acks` asks for: all in sync, or the leader. It fails
        with what is wrong with the frames or with the disk, with NotLeader, and with PartitionDeleted.
        """

    async def append_records(
        self, topic: NamedTopic, partition: int | None, records: Sequence[Record], acks: Acks, hop: RecordsHop
    ) -> list[RoutedAppend]:
        """Route records to partitions by their keys, and queue them. Without a key, all of them go to one partition.

        With `partition`, all of them go there. Records for partitions that other brokers lead are passed on to those.
        Values of typed topics are rows as JSON; a timestamp of 0 is now. Waits for a thread, and for leaders. Raises
        UnknownTopic, PartitionDeleted and InvalidRecord, and then nothing is written.
        """

    async def sync(self, partitions: Sequence[NamedPartition]) -> None:
        """Make everything durable that was appended to these partitions. Waits for the disk. Raises NotLeader."""


class NamedTopic(NamedTuple):
    """A topic as a caller names it."""

    name: str
    uuid: bytes = b""
    """Its uuid, if the caller knows it: another topic may have the name by now."""


class RecordsHop(NamedTuple):
    """A limit to the way of records."""

    timeout: float
    """The seconds that another broker may take to write them."""
    forwarded: bool = False
    """True if another broker has passed them on: then they go no further."""


class ServedTopic(NamedTuple):
    """A topic as a broker describes it."""

    info: TopicInfo
    replication: int = 0
    """The number of replicas of each partition; 0 if the broker is in no cluster."""
    min_insync: int = 0
    """The number of in-sync replicas that must have a record before it is acknowledged; 0 likewise."""


class PartitionPlacement(NamedTuple):
    """The brokers that have the replicas of a partition."""

    partition: int
    leader: int | None
    """The id of the broker that leads it; None if no broker does."""
    epoch: int = 0
    """The epoch of the leader."""
    replicas: Sequence[int] = ()
    in_sync: Sequence[int] = ()
    """The in-sync replicas (ISR)."""
    moving_to: Sequence[int] = ()
    """The brokers that the replicas move to, if they do."""


class BrokerInfo(NamedTuple):
    """A broker that clients can call."""

    id: int
    address: Address


Sees = Callable[[str], bool]
"""Returns whether a caller may know of a topic."""


class TopicService(Protocol):
    """The topics of a broker, and the brokers that serve them."""

    @property
    def cluster_id(self) -> str:
        """The name of the cluster; empty if the broker is in none."""

    @property
    def broker_id(self) -> int:
        """The id of this broker."""

    def brokers(self) -> list[BrokerInfo]:
        """The brokers that are alive."""

    async def topics(self, sees: Sees, *, internal: bool) -> list[ServedTopic]:
        """All topics that the caller sees, by name; with `internal`, also those of the broker itself."""

    async def named(self, names: Sequence[str], sees: Sees) -> list[ServedTopic]:
        """The topics of these names that the caller sees.

        Unknown topics are left out, or, in a cluster, raise UnknownTopic: clients that look for a leader rely on it.
        """

    async def describe(self, name: str) -> ServedTopic:
        """A topic; raises UnknownTopic."""

    def placements(self, topic: ServedTopic) -> list[PartitionPlacement]:
        """The leader, the epoch and the replicas of each partition of a topic."""

    async def create(self, topic: NewTopic) -> ServedTopic:
        """Create a topic; raises TopicExists, InvalidConfiguration and SchemaError."""

    async def alter(self, name: str, change: TopicChange) -> ServedTopic:
        """Change options of a topic, and the number of its partitions and replicas.

        Raises UnknownTopic and InvalidConfiguration. Replicas move in the background.
        """

    async def evolve(self, name: str, schema: Schema) -> ServedTopic:
        """Give a topic another schema; raises UnknownTopic and SchemaError."""

    async def delete(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic. Readers that wait for it are woken."""

    async def schema(self, name: str, schema_id: int | None) -> Schema:
        """A schema of a topic, by default its newest; raises UnknownTopic and SchemaError."""

    def schema_by_id(self, topic: TopicInfo, schema_id: int) -> Schema:
        """In any thread: a schema of the topic; raises UnknownSchema. It may read a file."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is to be created."""

    name: str
    partitions: int = 1
    schema: Schema = RAW
    options: Mapping[str, Any] = field(default_factory=dict)
    replication: int | None = None
    """The number of replicas; None is as the broker is configured. A broker in no cluster refuses more than one."""
    min_insync: int | None = None
    """The number of in-sync replicas that must have a record before it is acknowledged; None is 2 of 3, 1 of 2."""
    internal: bool = False
    """True for a topic of Headwater's own, with a name that begins with two underscores. It may exist."""
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A change of a topic. None leaves a number as it is."""

    partitions: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    replication: int | None = None
    min_insync: int | None = None


class NewPosition(NamedTuple):
    """A position that is to be set for a group."""

    partition: NamedPartition
    offset: int
    known_generation: int | None = None
    """For non-members: the generation of the position that they resume from."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """A consumer that wants to join a group."""

    topics: Sequence[str]
    """Names of topics, and patterns."""
    owner: str
    """The user whose member it is: nobody else can act as this member."""
    member_id: str = ""
    """Its id, if it has chosen one: then it may ask again. 16 bytes in hexadecimal."""
    client: str = ""
    """Its name, for people."""
    static: bool = False
    session_timeout: float = 0.0
    """It is taken out if it is silent for so many seconds; 0 is as the broker is configured."""


class JoinedMember(NamedTuple):
    """A member of a group. Times are in seconds."""

    member_id: str
    generation: int
    session_timeout: float
    heartbeat_interval: float


class NamedMember(NamedTuple):
    """A member of a group, and the user that acts as it."""

    group: str
    member_id: str
    owner: str


class PolledPartition(NamedTuple):
    """Records of one partition for a member that polls."""

    partition: NamedPartition
    records: Sequence[Record]
    next_offset: int
    lag: int


class PolledRecords(NamedTuple):
    """Records for a member that polls, and the generation of its group."""

    generation: int
    partitions: Sequence[PolledPartition]


class GroupService(Protocol):
    """The consumer groups of a broker. In a cluster all methods raise NotLeader if another broker coordinates a group.

    Methods that name a member raise StaleMember if it is none (any more), and StoreError if it is another user's.
    """

    async def names(self) -> list[str]:
        """The names of all groups."""

    async def describe(self, group: str) -> GroupInfo | None:
        """A group as it is; None if there is none. In a cluster it is confirmed that no other broker knows better."""

    async def topic_names(self, uuids: Collection[bytes]) -> Mapping[bytes, str]:
        """The names of topics by their uuids, without topics that are gone."""

    async def join(self, group: str, member: NewMember) -> JoinedMember:
        """Add a member, and assign partitions anew. Joining again under the same id does nothing."""

    async def rebalance(
        self, member: NamedMember, max_poll_interval: float | None, holding: Collection[TopicPartition]
    ) -> tuple[int, Rebalanced]:
        """Give up and take on partitions, as the assignment says; return the generation and the outcome.

        `holding` are partitions that the member has yet to finish with. A member whose handler does not come back
        within the interval, in seconds, is taken out.
        """

    async def heartbeat(self, member: NamedMember, known: int, wait: float, *, polled: bool) -> int:
        """Note that a member lives, and with `polled` its handler too; return the group's generation.

        It waits up to `wait` seconds for another generation than the `known` one. Without a member's id it only looks.
        """

    async def leave(self, member: NamedMember) -> None:
        """Take a member out, and assign its partitions to the others. Leaving twice does nothing."""

    async def commit(self, member: NamedMember, positions: Sequence[NewPosition]) -> Collection[TopicPartition]:
        """Set positions; return those that are refused. Without a member's id, non-members set them.

        Raises InvalidConfiguration for a position that is none.
        """

    async def reset(self, group: str, positions: Sequence[NewPosition], *, clamp: bool) -> None:
        """Set positions regardless of members; with `clamp` only those that are behind."""

    async def expire(self, group: str, before_ns: int, *, dry_run: bool) -> bool:
        """Forget a group that was not used since; return whether it was."""

    async def poll(
        self, member: NamedMember, max_records: int, wait: float, check: Callable[[str], None], *, again: bool
    ) -> PolledRecords:
        """Read the next records for a member, and wait for them up to `wait` seconds.

        `check` is called with the topics of the member before they are read: rights may have changed. With `again`,
        the member has not received the last answer, and goes on from the positions that are committed.
        """

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:
        """In any thread: note that a member has polled. Return the group's generation, or `known` if it is not here."""

    def generation(self, group: str) -> int:
        """In any thread: the generation of a group; 0 if it is not kept here."""

    def described(self) -> Mapping[str, GroupInfo]:
        """In any thread: the groups that are kept here. Groups that cannot be read now are left out."""


class StageToken(NamedTuple):
    """Frames that are staged: a token, sealed by the broker, and the number of records."""

    token: bytes
    records: int


class TransactionStage(Protocol):
    """Frames that wait for the decision of a transaction."""

    async def append(self, partition: NamedPartition, batch: AppendBatch, size: int) -> None:
        """Stage frames of so many bytes for a partition. Waits for the disk.

        Raises UntrustedFrame, InvalidRecord, UnknownTopic, PartitionDeleted and NotLeader.
        """

    async def seal(self) -> StageToken:
        """Make everything durable that was staged, and return its token. Waits for the disk, and for replicas."""

    async def discard(self) -> None:
        """Remove what was staged, unless it is sealed."""


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    """A transaction that is to be decided."""

    staged: Sequence[bytes]
    """Tokens of stages."""
    request_id: bytes = b""
    """16 random bytes, to recognise retries; empty if there are none."""
    progress: NamedMember | None = None
    inputs: Sequence[NewPosition] = ()
    """The positions that become true with the transaction, and whose they are."""
    writer: str | None = None
    sequence: int | None = None
    owner: str | None = None
    takeover: bool = False
    """The writer whose numbered transaction it is, and the owner of that writer."""


class AppliedWrite(NamedTuple):
    """The writes of a transaction to one partition."""

    partition: NamedPartition
    base_offset: int | None
    """The offset of the first record; None if it is not known any more."""


class CommittedTransaction(NamedTuple):
    """The outcome of a transaction."""

    applied: Sequence[AppliedWrite] = ()
    generation: int = 0
    """The generation in which positions were set."""
    repeated: bool = False
    """True if a transaction of this writer with this sequence, or a later one, was committed before."""


Authorise = Callable[[str], None]
"""Called with each topic that is written, before anything is done; raises if the caller may not write it."""


class TransactionService(Protocol):
    """The transactions of a broker."""

    async def stage(self) -> TransactionStage:
        """Begin to stage frames."""

    async def drop(self, tokens: Sequence[bytes], authorise: Authorise, *, forwarded: bool) -> None:
        """Remove what is staged under tokens. Raises StoreError for a token that no broker has given out.

        With `forwarded`, another broker asks: then no others are asked.
        """

    async def commit(self, transaction: TransactionCommit, authorise: Authorise) -> CommittedTransaction:
        """Decide a transaction, and have its writes appended. A retry gets the first outcome.

        Raises TransactionAborted, StaleMember, NotLeader, StoreError, InvalidConfiguration, and then nothing is done.
        """

    async def roll_forward(self, group: str | None, *, dry_run: bool) -> int:
        """Append the writes of transactions that are decided; return how many there are or were."""


class LocalTopic(NamedTuple):
    """A topic in the store of a broker."""

    name: str
    uuid: bytes
    statistics: TopicStatistics | None
    """Its numbers; None if it cannot be opened. Partitions that are not here have zeros."""


PartitionWork = Literal["roll", "truncate", "delete_before", "compact", "retain"]
"""Work that an operator can have done on the log of a partition."""


class Operations(Protocol):
    """Requests of operators to a broker."""

    def topics(self) -> list[LocalTopic]:
        """In any thread: the topics in the store of this broker. It reads files."""

    async def statistics(self, sees: Sees) -> list[TopicStatistics]:
        """The numbers of all topics that the caller sees; in a cluster, each partition as its leader has it."""

    async def statistics_here(self, names: Sequence[str], sees: Sees) -> list[TopicStatistics]:
        """The numbers of these topics as they are here; without names, of all that the caller sees.

        Raises UnknownTopic for a name that is none.
        """

    async def segments(self, partition: NamedPartition) -> list[SegmentFacts]:
        """The segments of a partition, the oldest first; raises UnknownTopic and PartitionDeleted."""

    async def work_on(self, partition: NamedPartition, work: PartitionWork, offset: int | None) -> Any:
        """Work on the log of a partition, and return a report. Waits for the disk.

        Raises InvalidConfiguration if the work needs an offset and has none, and StoreError in a cluster.
        """

    async def run_steward(self, options: Mapping[str, Any], *, dry_run: bool) -> StewardReport:
        """Let the steward (the log cleaner) pass over all topics. Waits for the disk. StoreError in a cluster."""

    def scrubbed(self) -> tuple[int, int]:
        """In any thread: the numbers of segments and of bytes that were verified in the background."""

    def cluster_gauges(self) -> Mapping[str, float]:
        """In any thread: this broker's part in its cluster in numbers; empty if it is in none."""


class Administration(Protocol):
    """Requests of operators to a cluster. A broker that is in none raises StoreError."""

    async def elect(self, partition: TopicPartition, broker: int, revision: int | None) -> tuple[Outlook, int]:
        """Let a broker lead a partition that no broker may lead any more; without a revision only look.

        Returns what is known of the replicas, and the epoch. Raises StoreError if nothing needs to be forced.
        """

    async def plan_moves(self, remove: Collection[int]) -> list[PlannedMove]:
        """The moves that balance the replicas, and take them off the brokers to remove."""

    async def begin_moves(self, moves: Sequence[PlannedMove], remove: Collection[int]) -> int:
        """Begin planned moves; return how many have begun."""

    async def cancel_moves(self, remove: Collection[int]) -> int:
        """Cancel moves that are under way; return how many."""

    async def moves(self) -> list[PlannedMove]:
        """The moves that are under way."""

    async def access_rules(self) -> Rules | None:
        """The users and tokens that the cluster keeps; None if the broker is in none."""

    async def change_access(self, changes: AccessChanges) -> None:
        """Change users and tokens for all brokers of the cluster."""


@dataclass(frozen=True, slots=True)
class AccessChanges:
    """Users and tokens to set and to remove."""

    users: Mapping[str, Rights]
    tokens: Sequence[Token]
    remove_users: Collection[str]
    remove_tokens: Collection[str]


class Backend(Protocol):
    """The part of a broker that does the work."""

    @property
    def logs(self) -> PartitionLogs:
        """Appends to partitions, and reads of them."""

    @property
    def catalog(self) -> TopicService:
        """Topics, and the brokers that serve them."""

    @property
    def groups(self) -> GroupService:
        """Consumer groups."""

    @property
    def transactions(self) -> TransactionService:
        """Transactions."""

    @property
    def operations(self) -> Operations:
        """Numbers of the broker, and work on partitions."""

    @property
    def administration(self) -> Administration:
        """Elections, moves and access in a cluster."""

    @property
    def secrets(self) -> Secrets:
        """Signs producer ids and tokens. All brokers of a cluster have the same."""

    @property
    def reserved_topics(self) -> frozenset[str]:
        """The topics that brokers alone write, and administrators alone read."""

    @property
    def ready(self) -> bool:
        """True if it serves. A broker does not before it has joined its cluster: it does not know the rights yet."""

    def is_peer(self, password: str) -> bool:
        """Return whether a caller that gives this password is another broker of the cluster."""

    async def start(self, address: Address) -> None:
        """Begin to serve. Clients and other brokers reach this one at `address`.

        Raises EtcdUnavailable, EtcdRefused and StoreInUse.
        """

    async def drain(self) -> None:
        """Let other brokers lead, as far as there are any, before this one stops to answer."""

    async def stop(self) -> None:
        """End everything that it does in the background. Also if it has not started."""
