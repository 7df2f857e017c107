"""Transactions behind a broker: frames are staged there as they come, and one call decides and applies.

The client keeps what is not staged yet, a few megabytes at most. A call to stage that fails is made again with the same
frames; what it may have left behind is nobody's, and swept after a day. A commit whose answer is lost is asked for
again under the same number, and answered with what became of the first. In a cluster frames are staged at the leaders
of their partitions, and the coordinator of the writer, or of the consumer's group, decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from headwater.client.connection import Connection
from headwater.client.group import advances
from headwater.client.leaders import Leaders
from headwater.core.errors import (
    BrokerUnavailable,
    HeadwaterError,
    InvalidConfiguration,
    PartitionDeleted,
    StoreError,
    UnknownTopic,
)
from headwater.log import Appended, Frame
from headwater.log.elapsed import IsOld
from headwater.log.entropy import random_bytes
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import PositionClaim, TopicKey
from headwater.streams.staging import Output, OutputKey, Staged, StagedExtent
from headwater.streams.transaction import Named
from headwater.v1 import broker_pb2 as pb
from headwater.wire.deciding import coordinated

_AT_ONCE: Final = 8 * 1024 * 1024
"""So many bytes of frames are sent to the stage in one call."""
_UNKNOWN_EXTENT: Final = StagedExtent("", 0, 0)
"""The place of a frame in the stage: only the broker knows it."""
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

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:
        """Keep a frame, and stage what is kept when it is enough."""
        self._kept.append((topic, partition, frame))
        self._bytes += frame.length
        if self._bytes >= _AT_ONCE:
            self.send()
        return _UNKNOWN_EXTENT

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
        by_partition: dict[tuple[str, int], list[Kept]] = {}
        for entry in self._kept:
            by_partition.setdefault((entry[0].name, entry[1]), []).append(entry)
        work = [(self._leaders.of(*partition), kept) for partition, kept in by_partition.items()]
        if len(work) == 1:
            self.staged += self._send(*work[0])
            return
        with ThreadPoolExecutor(min(len(work), _LEADERS_AT_ONCE), "headwater-stage") as threads:
            sending = [threads.submit(self._send, connection, kept) for connection, kept in work]
        for future in sending:
            if future.exception() is None:
                self.staged += future.result()  # all that is staged is known, to be dropped if need be
        for future in sending:
            future.result()

    def _send(self, connection: Connection, kept: list[Kept]) -> list[pb.Staged]:
        """Stage these with one call, but what is for topics that are gone; none if that is all of them."""
        while kept:
            try:
                return [connection.stream("Stage", partial(_requests, kept))]
            except (PartitionDeleted, UnknownTopic):
                left = [entry for entry in kept if self._exists(entry[0])]
                if len(left) == len(kept):
                    raise
                kept = left
        return []

    def _exists(self, topic: TopicInfo) -> bool:
        try:
            described = self._connection.call("DescribeTopic", pb.DescribeTopicRequest(name=topic.name))
        except UnknownTopic:
            return False
        return bool(described.uuid == topic.uuid)

    def leave(self, outputs: Mapping[OutputKey, Sequence[StagedExtent]], records: int) -> Staged:
        self.send()
        staged, self.staged = self.staged, []
        tokens = tuple(stage.token for stage in staged)
        return Staged(tuple(Output(*key, ()) for key in outputs), records, tokens)

    def discard(self) -> None:
        self._kept.clear()
        staged, self.staged = self.staged, []
        drop_stages(self._connection, staged)


def _requests(kept: Iterable[Kept]) -> Iterator[pb.StageRequest]:
    for topic, partition, frame in kept:
        yield pb.StageRequest(topic=topic.name, topic_uuid=topic.uuid, partition=partition, frames=[frame.packed()])


def drop_stages(connection: Connection, staged: Iterable[pb.Staged]) -> None:
    """Have the broker remove stages that are not decided."""
    chosen = list(staged)
    if chosen:
        connection.call("DropStages", pb.DropStagesRequest(staged=chosen))


class RemoteTransaction:
    """A transaction that a broker decides."""

    identity = None

    def __init__(self, leaders: Leaders, named: Named | None) -> None:
        self._leaders = leaders
        self._connection = leaders.connection
        self._named = named
        self._stage = RemoteStage(leaders)
        self.unknown = False
        self.decided = False
        self.generation = 0

    def stage(self, topic: TopicInfo, partition: int, frame: Frame) -> StagedExtent:
        return self._stage.append(topic, partition, frame)

    def send(self) -> None:
        """Stage all frames that are kept here, durably."""
        self._stage.send()

    def check(self, staged: Staged) -> None:
        if staged.outputs and not staged.tokens:
            raise InvalidConfiguration("these records were staged in another store: stage them at this broker")

    def decide(
        self,
        outputs: Sequence[Output],  # noqa: ARG002 - the broker knows what it has staged
        adopted: Sequence[Staged],
        claim: PositionClaim | None,
    ) -> dict[TopicKey, Appended | None] | None:
        self._stage.send()
        staged = self._staged(adopted)
        if claim is None and not staged:
            return {}  # all of its topics are gone
        request = self._request(staged, claim)
        try:
            # A single broker has all of the time: there is nobody else to ask.
            response = self._coordinator(request).call(
                "CommitTransaction", request, slow=not self._leaders.clustered, on_repeat=lambda: None
            )
        except BrokerUnavailable:
            self.unknown = True
            raise
        self.decided = True
        self._stage.staged = []
        self.generation = response.generation
        return None if response.repeated else _applied(response.applied)

    def _staged(self, adopted: Sequence[Staged]) -> list[pb.Staged]:
        return [*self._stage.staged, *(pb.Staged(token=token) for staged in adopted for token in staged.tokens)]

    def _coordinator(self, request: pb.CommitTransactionRequest) -> Connection:
        """The connection to the broker that decides."""
        return self._leaders.coordinator(*coordinated(request)) if self._leaders.clustered else self._connection

    def _request(self, staged: list[pb.Staged], claim: PositionClaim | None) -> pb.CommitTransactionRequest:
        request = pb.CommitTransactionRequest(staged=staged, request_id=random_bytes(16))
        if self._named is not None:
            request.writer = self._named.writer
            request.sequence = self._named.number
            request.takeover = self._named.takeover
            if self._named.owner is not None:
                request.owner = self._named.owner
        if claim is not None:
            request.group = claim.group
            request.member_id = claim.member or ""
            request.inputs.extend(advances(claim.commits, claim.known))
        return request

    def end(self, adopted: Sequence[Staged], *, committed: bool) -> None:
        if committed or self.unknown:
            return
        with suppress(HeadwaterError):  # the broker is away: it sweeps stages that nobody decides over
            drop_stages(self._connection, self._staged(adopted))


class RemoteTransactionCoordinator:
    """The transactions of a store behind a broker."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._connection = leaders.connection

    def begin(self, named: Named | None, request: str) -> RemoteTransaction:  # noqa: ARG002 - each has an id of its own
        return RemoteTransaction(self._leaders, named)

    def stage(self) -> RemoteStage:
        return RemoteStage(self._leaders)

    def drop(self, staged: Iterable[Staged]) -> None:
        drop_stages(self._connection, [pb.Staged(token=token) for stage in staged for token in stage.tokens])

    def answered(self, request: str) -> bool:  # noqa: ARG002
        raise StoreError(f"{self._connection} answers requests for transactions itself")

    def roll_forward(
        self,
        *,
        writer: bytes | None = None,  # noqa: ARG002 - the broker does so by itself
        group: str | None = None,
        dry_run: bool = False,
    ) -> int:
        if group is not None and self._leaders.clustered:
            return 0  # a group's positions are set with the decision, and the rest is not waited for
        request = pb.RollForwardRequest(group=group or "", dry_run=dry_run)
        count: int = self._connection.call("RollForward", request, slow=True).transactions
        return count

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:  # noqa: ARG002
        """Do nothing: the broker sweeps stages when it cleans."""
        return 0

    def close(self) -> None:
        """Do nothing: the store closes the connection."""


def _applied(applied: Iterable[pb.Applied]) -> dict[TopicKey, Appended | None]:
    appends: dict[TopicKey, Appended | None] = {}
    for write in applied:
        known = write.HasField("base_offset")
        appends[write.topic_uuid, write.partition] = Appended(write.base_offset, write.base_offset) if known else None
    return appends
