"""Following: a replica asks its leader for what is behind its end, writes that, and asks again.

Catching up after downtime goes the same way as keeping up. A follower tells its leader what is durable here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from headwater.cluster.etcd.keys import BrokerMember
from headwater.cluster.link import Link, Links
from headwater.cluster.replication.catch_up import CatchUp
from headwater.cluster.replication.durable_log import EpochStart, OffsetSpan
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.markers import Markers
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.cluster.replication.replica import EpochEnd, FollowerRequest, FollowerResponse, NotLeading, Replica
from headwater.core.errors import BrokerUnavailable, Damaged, HeadwaterError
from headwater.log import StoredFrame
from headwater.log.files.segment import seed_of
from headwater.log.format.frame import stored_frame
from headwater.log.format.verify import verified
from headwater.streams.catalog import partition_uuid
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error

_log = logging.getLogger(__name__)
_repeated = RepeatedLog(_log)
_BYTES: Final = 4 * 1024 * 1024
"""The bytes that are asked for at once, of one partition."""
WAIT: Final = 1.0
"""The time for which a leader that has nothing new keeps a question. Seconds."""
_AGAIN: Final = 0.05
_FAILED: Final = 1.0
_LOOK: Final = 0.1
"""The interval at which a follower that waits to catch up looks whether it is in sync. Seconds."""


class DiskThreads(Protocol):
    """The threads in which a broker does the work of its disk."""

    def read(self, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Do something that looks at files."""

    def write(self, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Do something that may wait for the disk."""


class Follower:
    """Keeps one replica up with its leader, for as long as it follows in one epoch."""

    def __init__(self, local: LocalReplica, links: Links, threads: DiskThreads, catch_up: CatchUp) -> None:
        self._local = local
        self._links = links
        self._threads = threads
        self._catch_up = catch_up
        self._expected = 0
        """The bytes that the next answer is likely to bring, while it is behind: as many as the last one."""
        self._told = 0
        """Up to where the leader has told who has written what, beyond the log's end."""
        self._seed = seed_of(partition_uuid(*local.key))
        self._ahead: asyncio.Task[pb.ReplicaFetched] | None = None
        """The answer to a question that was asked while the last answer was being written."""

    async def follow_as(self, replica: Replica, epoch: int, leader_of: Callable[[], BrokerMember | None]) -> None:
        """Follow, and let go of a leader that does not answer as soon as there is another one."""
        local = self._local
        following = asyncio.create_task(self.follow(epoch, leader_of))
        following.add_done_callback(lambda _: local.wake())
        try:
            while local.replica is replica and replica.epoch == epoch and not following.done():
                await local.changed()
        finally:
            following.cancel()
        (error,) = await asyncio.gather(following, return_exceptions=True)
        if isinstance(error, Exception):
            _log.error("%s has stopped following its leader, and starts again", local, exc_info=error)
            await asyncio.sleep(_FAILED)

    async def follow(self, epoch: int, leader_of: Callable[[], BrokerMember | None]) -> None:
        """Follow until the role changes. The log follows in this epoch already."""
        try:
            await self._follow(epoch, leader_of)
        finally:
            self._drop_ahead()

    async def _follow(self, epoch: int, leader_of: Callable[[], BrokerMember | None]) -> None:
        local, replica = self._local, self._local.replica
        while local.replica is replica and replica.epoch == epoch:
            # Acknowledgements wait for whoever is in sync: that one never waits itself.
            pause = 0.0 if replica.in_sync else self._catch_up.wait()
            if pause > 0:
                await local.changed(min(pause, _LOOK))
                continue
            request = replica.request()
            leader = leader_of()
            if request is None or leader is None:
                await local.changed(WAIT)
                continue
            try:
                await self._ask(request, leader)
            except BrokerUnavailable as error:
                _log.debug("%s: %s", local, error)
                await local.changed(_AGAIN)
            except NotLeading:
                await local.changed(_AGAIN)  # one of the two is behind, and will hear of it
            except (HeadwaterError, OSError) as error:
                _repeated.log(logging.ERROR, "%s does not keep up with its leader: %s", local, error)
                local.log.refresh()
                await asyncio.sleep(_FAILED)

    async def _ask(self, request: FollowerRequest, leader: BrokerMember) -> None:
        ahead, self._ahead = self._ahead, None
        link = self._links.to(leader)
        at_once = None if self._local.replica.in_sync else self._catch_up.at_once
        if ahead is not None:
            answer = await ahead
        elif at_once is None:
            answer = await link.ask(self._question(request, WAIT))
        else:
            answer = await self._ask_little(link, self._question(request, WAIT, at_once))
        if answer.HasField("error"):
            error = unpack_error(answer.error)
            raise error if isinstance(error, Damaged) else NotLeading
        self._local.replica.reach(answer.epoch, answer.mark)
        if answer.HasField("diverging"):
            await self._cut(answer, request.last_epoch)
            return
        if len(answer.frames) >= _BYTES and at_once is None:
            # Far behind: the leader reads what comes next while this is written. Durable is what is durable now.
            after = request._replace(end=answer.next_offset, last_epoch=answer.next_epoch, mark=answer.mark)
            self._ahead = asyncio.create_task(link.ask(self._question(after, 0.0, told=_told(answer))))
        try:
            await self._copy(answer, request.last_epoch)
        except BaseException:
            self._drop_ahead()
            raise
        if self._ahead is not None and self._local.log.end != answer.next_offset:
            self._drop_ahead()

    async def _ask_little(self, link: Link, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        """Ask within what all that are behind may fetch together.

        The expected bytes are spent before, so that many partitions do not all ask for the same rest.
        """
        expected, self._expected = self._expected, 0
        self._catch_up.spend(expected)
        try:
            answer = await link.ask(question)
        except BaseException:
            self._catch_up.spend(-expected)
            raise
        self._expected = len(answer.frames)
        self._catch_up.spend(self._expected - expected)
        return answer

    def _question(self, request: FollowerRequest, wait: float, most: int = _BYTES, *, told: int = 0) -> pb.ReplicaFetch:
        return pb.ReplicaFetch(
            topic_uuid=self._local.key[0],
            partition=self._local.key[1],
            high_watermark=self._local.replica.high_watermark,
            max_bytes=min(most, _BYTES),
            max_wait_ms=round(wait * 1000),
            producers_until=max(self._told, told),
            **request._replace(damaged=self._local.repairing)._asdict(),
        )

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()

    async def _cut(self, answer: pb.ReplicaFetched, last_epoch: int) -> None:
        """Remove what the leader does not have.

        The leader has everything that is acknowledged, or it would not lead; but for what is older than an operator's
        election.
        """
        local, replica = self._local, self._local.replica
        before = local.log.end
        diverging = EpochEnd(answer.diverging.epoch, answer.diverging.end)
        replica.take(FollowerResponse(answer.epoch, answer.end, last_epoch, (), answer.high_watermark, diverging))
        offset = local.log.end
        if offset == before:
            return
        forced = replica.state is not None and last_epoch < replica.state.forced_epoch
        if offset < replica.high_watermark and not forced:
            raise HeadwaterError(
                f"the leader lacks acknowledged records from offset {offset} to {replica.high_watermark - 1}; nothing "
                f"was removed here"
            )
        lost = max(replica.high_watermark - offset, 0)
        replica.high_watermark -= lost
        _log.warning(
            "%s: %d records that the leader does not have are removed; %d of them were acknowledged",
            *(local, before - offset, lost),
        )
        await self._threads.write(local.log.cut, answer.epoch, offset)
        local.log.refresh()
        replica.high_watermark = min(replica.high_watermark, local.log.end)

    async def _copy(self, answer: pb.ReplicaFetched, last_epoch: int) -> None:
        local = self._local
        if answer.end != local.log.end or answer.epoch != local.replica.epoch:
            return  # the answer to an earlier question
        if answer.log_start > local.log.end:
            await self._restart(answer)
            return
        local.log.forgettable = answer.markers_until
        if answer.frames and not local.log.fits_behind(_markers(answer)):
            await self._begin_anew(answer)
            return
        spans: tuple[OffsetSpan, ...] = ()
        if answer.frames:
            end = await self._threads.write(self._write, answer)
            self._told = max(self._told, _told(answer))
            spans = (OffsetSpan(answer.end, end),)
        local.replica.take(FollowerResponse(answer.epoch, answer.end, last_epoch, spans, answer.high_watermark))
        start = min(answer.log_start, local.replica.high_watermark)
        if start > local.log.start:
            await self._threads.write(local.log.partition.delete_before, start)
            local.log.refresh()

    async def _restart(self, answer: pb.ReplicaFetched) -> None:
        """Go on where the leader's log begins: what is before that is gone everywhere."""
        local = self._local
        _log.warning("%s goes on at offset %d: what was before it was deleted", local, answer.log_start)
        await self._threads.write(local.log.restart, answer.epoch, answer.log_start, answer.producers, _epochs(answer))
        self._told = 0
        local.log.refresh()

    async def _begin_anew(self, answer: pb.ReplicaFetched) -> None:
        """Copy all of the leader's log: what is here may have been deleted by markers that are gone from there."""
        local, replica = self._local, self._local.replica
        if replica.in_sync and local.log.end > local.log.start:
            raise HeadwaterError(
                "the replica is in sync, but lacks delete markers that its leader has removed; nothing was removed here"
            )
        _log.warning("%s is copied anew: delete markers that it lacks are gone from its leader's log", local)
        await self._threads.write(local.log.begin_anew, answer.epoch, _markers(answer))
        self._told = 0
        local.log.refresh()
        replica.high_watermark = min(replica.high_watermark, local.log.end)

    def _write(self, answer: pb.ReplicaFetched) -> int:
        """In a thread: verify the frames and put them into the log; where it ends then."""
        log = self._local.log
        schema_of = log.partition.schemas.get
        frames: list[StoredFrame] = [
            stored_frame(*located, schema_of) for located in verified(answer.frames, self._seed, answer.end)
        ]
        log.copy(
            answer.epoch,
            frames,
            epochs=_epochs(answer),
            compacted_until=answer.compacted_until,
            producers=answer.producers,
            markers=_markers(answer),
        )
        return frames[-1].header.next_offset


def _epochs(answer: pb.ReplicaFetched) -> list[EpochStart]:
    return [EpochStart(entry.epoch, entry.start) for entry in answer.epochs]


def _markers(answer: pb.ReplicaFetched) -> Markers:
    return Markers(answer.markers_until, answer.markers_state)


def _told(answer: pb.ReplicaFetched) -> int:
    """Up to where an answer tells who has written what."""
    return answer.compacted_until if answer.producers else 0
