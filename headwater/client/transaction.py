"""Transactions behind a broker: frames are staged there as they come, and one call decides and applies.

The client keeps what is not staged yet, a few megabytes at most. A call to stage that fails is made again with the same
frames; what it may have left behind is nobody's, and swept after a day. A commit whose answer is lost is asked for
again under the same number, and answered with what became of the first. In a cluster frames are staged at the leaders
of their partitions, and the coordinator of the writer, or of the consumer's group, decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headwater.client.connection import Connection
from headwater.client.group import advances
from headwater.client.leaders import Leaders
from headwater.core.errors import (
    BrokerUnavailable,
    HeadwaterError,
    InvalidConfiguration,
    PartitionDeleted,
    UnknownTopic,
)
from headwater.log import Appended, Frame
from headwater.log.elapsed import IsOld
from headwater.log.entropy import random_bytes
from headwater.log.format.verify import packed
from headwater.streams.catalog import TopicInfo
from headwater.streams.consumer import Consumer
from headwater.streams.decision import Extent, Output
from headwater.streams.group import Commit, TopicKey
from headwater.streams.staging import Staged, Staging
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import Named, Progress, StageAppender, Transaction, Transactions
from headwater.v1 import broker_pb2 as pb
from headwater.wire.deciding import coordinated

if TYPE_CHECKING:
    from headwater.streams.store import Store

_AT_ONCE: Final = 8 * 1024 * 1024
"""How many bytes of frames are sent to the stage in one call."""
_NOWHERE: Final = Extent("", 0, 0)
"""Where a frame is, only the broker knows."""
_LEADERS_AT_ONCE: Final = 8

Kept = tuple[TopicInfo, int, Frame]
"""A frame that is to be staged: its topic, its partition."""


class RemoteStage:
    """Frames that wait at the broker for a decision. Not thread-safe."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._connection = leaders.connection
        self._kept: list[Kept] = []
        self._bytes = 0
        self.staged: list[pb.Staged] = []

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> Extent:
        """Keep a frame, and stage what is kept when it is enough."""
        self._kept.append((topic, partition, frame))
        self._bytes += frame.length
        if self._bytes >= _AT_ONCE:
            self.send()
        return _NOWHERE

    def send(self) -> None:
        """Stage all that is kept, durably."""
        if self._kept and self._leaders.clustered:
            self._send_to_leaders()
        elif self._kept:
            self.staged += self._send(self._connection, self._kept)
        self._kept = []
        self._bytes = 0

    def _send_to_leaders(self) -> None:
        """Stage what is for each partition at the broker that leads it, at all of them at once."""
        places: dict[tuple[str, int], list[Kept]] = {}
        for one in self._kept:
            places.setdefault((one[0].name, one[1]), []).append(one)
        work = [(self._leaders.of(*place), kept) for place, kept in places.items()]
        if len(work) == 1:
            self.staged += self._send(*work[0])
            return
        with ThreadPoolExecutor(min(len(work), _LEADERS_AT_ONCE), "headwater-stage") as threads:
            sending = [threads.submit(self._send, *one) for one in work]
        for one_sent in sending:
            if one_sent.exception() is None:
                self.staged += one_sent.result()  # all that is staged is known, to be dropped if need be
        for one_sent in sending:
            one_sent.result()

    def _send(self, connection: Connection, kept: list[Kept]) -> list[pb.Staged]:
        """Stage these with one call, but what is for topics that are gone; none if that is all of them."""
        while kept:
            try:
                return [connection.stream("Stage", partial(_requests, kept))]
            except (PartitionDeleted, UnknownTopic):
                left = [one for one in kept if self._is_there(one[0])]
                if len(left) == len(kept):
                    raise
                kept = left
        return []

    def _is_there(self, topic: TopicInfo) -> bool:
        try:
            found = self._connection.call("DescribeTopic", pb.DescribeTopicRequest(name=topic.name))
        except UnknownTopic:
            return False
        return bool(found.uuid == topic.uuid)

    def drop(self) -> None:
        """Remove everything."""
        self._kept.clear()
        staged, self.staged = self.staged, []
        drop_stages(self._connection, staged)


def _requests(kept: Iterable[Kept]) -> Iterator[pb.StageRequest]:
    for topic, partition, frame in kept:
        yield pb.StageRequest(topic=topic.name, topic_uuid=topic.uuid, partition=partition, frames=[packed(frame)])


def drop_stages(connection: Connection, staged: Iterable[pb.Staged]) -> None:
    """Have the broker remove stages that are not decided."""
    chosen = list(staged)
    if chosen:
        connection.call("DropStages", pb.DropStagesRequest(staged=chosen))


class RemoteStaging(Staging):
    """Takes frames for any partitions, to be adopted by a transaction of any process."""

    def __init__(self, leaders: Leaders) -> None:
        self._remote = RemoteStage(leaders)
        self._outputs = {}
        self._records = 0
        self._sealed = False

    def _keep(self, topic: TopicInfo, partition: int, frame: Frame) -> Extent:
        return self._remote.append(topic, partition, frame)

    def seal(self) -> Staged:
        self._remote.send()
        self._sealed = True
        outputs = tuple(Output(*place, ()) for place in self._outputs)
        return Staged(outputs, self._records, tuple(one.token for one in self._remote.staged))

    def discard(self) -> None:
        if not self._sealed:
            self._remote.drop()


class RemoteTransaction(Transaction):
    """A transaction that a broker decides."""

    def __init__(
        self,
        store: Store,
        transactions: RemoteTransactions,
        consumer: Consumer | None,
        named: Named | None,
    ) -> None:
        self._leaders = transactions.leaders
        self._connection = transactions.leaders.connection
        self._reader = consumer
        self._unsure = False
        self._generation = 0
        super().__init__(store, transactions, consumer, named)

    def _begin(self) -> StageAppender:
        self._remote = RemoteStage(self._leaders)
        return StageAppender(self._remote.append, None)

    def adopt(self, staged: Staged) -> None:
        if staged.outputs and not staged.tokens:
            raise InvalidConfiguration("this was staged in another store: stage it at this broker")
        super().adopt(staged)

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def _decided(self) -> bool:
        return self.state in ("repeated", "committed")

    def _commit(self) -> None:
        commits = self._reader.held() if self._reader is not None else {}
        self._remote.send()
        staged = [*self._remote.staged, *(_message(token) for one in self._adopted for token in one.tokens)]
        if not commits and not staged:
            self.state = "committed"
            return
        request = self._asked(staged, commits)
        try:
            # A single broker has all of the time: there is nobody else to ask.
            response = self._decider(request).call(
                "CommitTransaction", request, slow=not self._leaders.clustered, on_repeat=lambda: None
            )
        except BrokerUnavailable:
            # Nobody knows whether it happened: the consumer must not go on from where it believes to be.
            self._unsure = True
            raise
        self.state = "repeated" if response.repeated else "committed"
        self._remote.staged = []
        self._generation = response.generation
        if self._reader is not None and commits:
            self._reader.decided(commits, response.generation)
        if not response.repeated:
            self._tell(_applied(response.applied))

    def _decider(self, request: pb.CommitTransactionRequest) -> Connection:
        """The way to who decides."""
        return self._leaders.coordinator(*coordinated(request)) if self._leaders.clustered else self._connection

    def _asked(self, staged: list[pb.Staged], commits: dict[TopicPartition, Commit]) -> pb.CommitTransactionRequest:
        request = pb.CommitTransactionRequest(staged=staged, request_id=random_bytes(16))
        if self._named is not None:
            request.writer = self._named.writer
            request.sequence = self._named.number
            request.takeover = self._named.takeover
            if self._named.owner is not None:
                request.owner = self._named.owner
        if self._reader is not None and commits:
            member_id, known = self._reader.deciding_as(commits)
            request.group = self._reader.group_name or ""
            request.member_id = member_id or ""
            request.inputs.extend(advances(commits, known))
        return request

    def _release(self, stack: ExitStack) -> None:
        if self._unsure and self._reader is not None:
            stack.callback(self._reader.begin_anew)
        if self.state == "committed" or self._unsure:
            return
        staged = [*self._remote.staged, *(_message(token) for one in self._adopted for token in one.tokens)]
        stack.callback(partial(_drop_quietly, self._connection, staged))

    def _give_slot_back(self) -> None:
        """There is none."""


class RemoteTransactions(Transactions):
    """The transactions of a store behind a broker."""

    def __init__(self, store: Store, leaders: Leaders) -> None:
        self._store = store
        self.leaders = leaders
        self._connection = leaders.connection

    def _transaction(self, consumer: Progress | None, named: Named | None, request: str) -> Transaction:  # noqa: ARG002
        assert consumer is None or isinstance(consumer, Consumer)
        return RemoteTransaction(self._store, self, consumer, named)

    def stage(self) -> Staging:
        return RemoteStaging(self.leaders)

    def drop(self, staged: Iterable[Staged]) -> None:
        drop_stages(self._connection, [_message(token) for one in staged for token in one.tokens])

    def roll_forward(
        self,
        *,
        writer: bytes | None = None,  # noqa: ARG002 - the broker does so by itself
        group: str | None = None,
        dry_run: bool = False,
    ) -> int:
        if group is not None and self.leaders.clustered:
            return 0  # a group's positions are set with the decision, and the rest is not waited for
        request = pb.RollForwardRequest(group=group or "", dry_run=dry_run)
        count: int = self._connection.call("RollForward", request, slow=True).transactions
        return count

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:  # noqa: ARG002
        """Stages are the broker's to sweep, when it cleans."""
        return 0

    def close(self) -> None:
        """Nothing to give back."""


def _message(token: bytes) -> pb.Staged:
    return pb.Staged(token=token)


def _applied(applied: Iterable[pb.Applied]) -> dict[TopicKey, Appended | None]:
    found: dict[TopicKey, Appended | None] = {}
    for one in applied:
        known = one.HasField("base_offset")
        found[one.topic_uuid, one.partition] = Appended(one.base_offset, one.base_offset) if known else None
    return found


def _drop_quietly(connection: Connection, staged: list[Any]) -> None:
    try:
        drop_stages(connection, staged)
    except HeadwaterError:
        return  # the broker is away: it sweeps what nobody decides over
