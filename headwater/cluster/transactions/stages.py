"""Stages: what transactions are to write waits beside the partitions that it is for, on the same replicas.

Each partition that transactions write to has a stage log, led and followed with it in the same epochs. Frames are
staged there, acknowledged by all that are in sync, and written to the partition when a decision over them has come.
The leader of the partition has them by then: each in-sync replica has both logs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.carrier import Portion
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.transaction_log import StageRange
from headwater.core.errors import (
    NotLeader,
    OffsetOutOfRange,
    PartitionPoisoned,
    StoreError,
    TransactionAborted,
    WriteFailed,
)
from headwater.core.options import HOUR
from headwater.log import Appended, Frame, Identity
from headwater.log.format.encode import signed
from headwater.log.maintain.retention import expired
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import STAGES_KEPT

_log = logging.getLogger(__name__)
_OPENING: Final = 10.0
"""A topic's first stage waits so many seconds until its stage logs are there."""
_LOOK: Final = 0.02
_MARGIN: Final = HOUR
"""Stages stay for so much longer than anybody decides over them: clocks differ. Seconds."""


class Known:
    """A stage log as it is known since it is led here. Nobody here knows the fate of what was staged before."""

    def __init__(self, epoch: int, end: int) -> None:
        self.epoch = epoch
        self.appending = 0
        """The number of appends that are under way: nobody knows yet where they are."""
        self._floor = end
        self._waiting: dict[int, StageRange] = {}
        self._held: set[StageRange] = set()
        self._dropped: set[StageRange] = set()

    def staged(self, staged: StageRange) -> None:
        """Something is staged, and nothing decided over it."""
        self._waiting[staged.start] = staged

    def hold(self, staged: StageRange) -> bool:
        """Keep it whatever is dropped from now on; whether it was not dropped before."""
        if staged in self._dropped or (staged.epoch == self.epoch and self._waiting.get(staged.start) != staged):
            return False
        self._held.add(staged)
        return True

    def drop(self, staged: StageRange) -> None:
        """Nobody wants it. A coordinator that is about to decide over it comes too late, or came before."""
        if staged in self._held:
            return
        self._dropped.add(staged)
        if self._waiting.get(staged.start) == staged:
            del self._waiting[staged.start]

    def done(self, staged: StageRange) -> None:
        """It is in the partition."""
        self._held.discard(staged)
        if self._waiting.get(staged.start) == staged:
            del self._waiting[staged.start]

    def needed_from(self, start: int, end: int) -> int:
        """The offset from which a log is needed. Stages under other leaders are, until they are too old."""
        if start < self._floor or self.appending:
            return start
        return min(self._waiting, default=end)

    def forget_before(self, offset: int) -> None:
        """It is gone from the log."""
        self._dropped = {staged for staged in self._dropped if staged.start >= offset}
        self._held = {staged for staged in self._held if staged.start >= offset}
        self._waiting = {start: staged for start, staged in self._waiting.items() if start >= offset}


Undone = Callable[[TopicPartition, bytes], Awaitable[Collection[StageRange] | None]]
"""Returns what is decided for a partition of a topic with a uuid, and not written yet; None if nobody knows."""


class Stages:
    """The stages of the partitions that are led here. For the event loop."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._known: dict[PartitionKey, Known] = {}

    def _of(self, stage: LocalReplica) -> Known:
        known = self._known.get(stage.key)
        if known is None or known.epoch != stage.led:
            known = self._known[stage.key] = Known(stage.led, stage.log.end)
        return known

    # Staging.

    async def open(self, partition: TopicPartition, uuid: bytes) -> None:
        """Have a stage log for a partition that is led here; raises NotLeader and UnknownTopic."""
        node = self._node
        deadline = time.monotonic() + _OPENING
        while True:
            try:
                _, stage = self._leading(partition, uuid)
            except NotLeader:
                node.leadership.check_leads(partition)
                if time.monotonic() > deadline:
                    raise
            else:
                self._of(stage)
                return
            topic = node.membership.view.topics.get(partition.topic)
            if topic is None or not topic.staged:
                await node.topics.change(partition.topic, _staged)
            await asyncio.sleep(_LOOK)

    async def append(self, partition: TopicPartition, uuid: bytes, frames: Sequence[Frame]) -> StageRange:
        """Stage frames, not acknowledged yet; raises NotLeader."""
        local, stage = self._leading(partition, uuid)
        epoch, known = stage.led, self._of(stage)
        known.appending += 1
        try:
            appended: Appended = await self._node.threads.write(_append, stage, epoch, frames)
            staged = StageRange(epoch, appended.base_offset, appended.end_offset)
            known.staged(staged)
        except NotLeading:
            raise self._node.leadership.not_leader(partition) from None
        except (WriteFailed, PartitionPoisoned) as error:
            if not self._node.leadership.resign(local, error):
                raise
            raise NotLeader(*partition, None) from error
        finally:
            known.appending -= 1
        stage.appended()
        return staged

    async def acknowledged(self, partition: TopicPartition, uuid: bytes, ranges: Iterable[StageRange]) -> None:
        """Return when every replica that is in sync has these; raises NotLeader."""
        _, stage = self._leading(partition, uuid)
        for staged in ranges:
            await self._acknowledged(stage, staged.epoch, staged.end)

    async def _acknowledged(self, local: LocalReplica, epoch: int, end: int) -> None:
        appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        appended.set_result(Appended(end, end))
        try:
            await local.acknowledged(appended, epoch, by_all=True)
        except NotLeading:
            raise self._node.leadership.not_leader(local.tp) from None

    def drop(self, partition: TopicPartition, uuid: bytes, ranges: Iterable[StageRange]) -> None:
        """Nobody wants these any more; raises NotLeader."""
        _, stage = self._leading(partition, uuid)
        for staged in ranges:
            self._of(stage).drop(staged)

    # Deciding.

    def hold(self, partition: TopicPartition, uuid: bytes, ranges: Iterable[StageRange]) -> None:
        """Keep these until they are written; raises NotLeader and TransactionAborted."""
        _, stage = self._leading(partition, uuid)
        known = self._of(stage)
        for staged in ranges:
            if not _is_in_log(stage, staged) or not known.hold(staged):
                raise TransactionAborted(
                    f"{partition.topic}/{partition.partition}: the records that the transaction has staged are gone: "
                    f"they were dropped, or staged more than a day ago"
                )

    async def apply(
        self, partition: TopicPartition, uuid: bytes, writer: bytes, portions: Sequence[Portion]
    ) -> list[int | None]:
        """Write what is decided, each portion as one atomic group: where it begins, None for what was there already.

        Returns when every replica that is in sync has it. Raises NotLeader.
        """
        local, stage = self._leading(partition, uuid)
        epoch, known = local.led, self._of(stage)
        bases: list[int | None]
        try:
            bases, end = await self._node.threads.write(_apply, local, stage, epoch, writer, portions)
        except NotLeading:
            raise self._node.leadership.not_leader(partition) from None
        local.appended()
        await self._acknowledged(local, epoch, end)
        for portion in portions:
            for staged in portion.ranges:
                known.done(staged)
        return bases

    def _leading(self, partition: TopicPartition, uuid: bytes) -> tuple[LocalReplica, LocalReplica]:
        """Both replicas of this very topic. A broker with another one may not have heard yet which is the newer."""
        local, stage = self._node.leadership.with_stage(partition)
        if local.key[0] != uuid:
            raise self._node.leadership.not_leader(partition)
        return local, stage

    # Cleaning.

    def aged(self, partition: TopicPartition) -> int:
        """In a thread: before which offset everything was staged so long ago that nobody decides over it any more."""
        _, stage = self._node.leadership.with_stage(partition)
        log = stage.log.partition
        facts = log.segments()
        config = replace(log.config, retention_age=STAGES_KEPT + _MARGIN)
        count = expired(facts, config, log.elapsed.age_ns, None)
        return facts[count].base if count else stage.log.start

    async def free(self, partition: TopicPartition, undone: Undone) -> None:
        """Remove what nobody needs: what is done or dropped, and what is too old, but nothing that may be undone."""
        local, stage = self._node.leadership.with_stage(partition)
        log, known = stage.log, self._of(stage)
        aged: int = await self._node.threads.read(self.aged, partition)
        offset = known.needed_from(log.start, stage.replica.high_watermark)
        if aged > offset:
            kept = await undone(partition, local.key[0])
            if kept is not None:
                offset = min([aged, *(staged.start for staged in kept)])
        offset = min(offset, stage.replica.high_watermark)
        if offset > log.start:
            await self._node.threads.write(log.partition.delete_before, offset)
            log.refresh()
            known.forget_before(offset)


def _staged(topic: ClusterTopic) -> ClusterTopic:
    return replace(topic, staged=True)


def _is_in_log(stage: LocalReplica, staged: StageRange) -> bool:
    """Return whether a range is in the log. Only an operator can have let something else in, in its partition."""
    log = stage.log
    return log.start <= staged.start < staged.end <= log.end and log.epoch_before(staged.end) == staged.epoch


def _append(stage: LocalReplica, epoch: int, frames: Sequence[Frame]) -> Appended:
    """In a thread."""
    with stage.log.leading(epoch):
        return stage.log.partition.append(list(frames))


def _apply(
    local: LocalReplica, stage: LocalReplica, epoch: int, writer: bytes, portions: Sequence[Portion]
) -> tuple[list[int | None], int]:
    """In a thread: append what is not there yet, durably; where each portion begins, and where the log ends then."""
    partition = local.log.partition
    bases: list[int | None] = []
    with local.log.leading(epoch):
        last = partition.writer_sequence(writer)
        for number, ranges in portions:
            base = None
            if number > last:
                identity = Identity(writer, 0, number, forever=True)
                frames = [signed(frame, identity) for frame in _frames(local, stage, ranges)]
                if frames:
                    base = partition.append(frames).base_offset
            bases.append(base)
        partition.sync()
        return bases, partition.bounds().end


def _frames(local: LocalReplica, stage: LocalReplica, ranges: Iterable[StageRange]) -> list[Frame]:
    """The frames that are staged there; none if an operator has let a broker lead that lacks them."""
    frames: list[Frame] = []
    for staged in ranges:
        if not _is_in_log(stage, staged):
            state = local.replica.state
            if state is None or state.forced_epoch <= staged.epoch:
                raise StoreError(
                    f"{stage}: offsets {staged.start} to {staged.end - 1} of epoch {staged.epoch} are gone"
                )
            _log.error("%s: %s was lost by an operator's election, and with it a transaction's share", stage, staged)
            return []
        try:
            frames += [frame.unstamped() for frame in stage.log.partition.frames(staged.start, staged.end)]
        except OffsetOutOfRange as error:
            raise StoreError(f"{stage}: {error}") from error
    return frames
