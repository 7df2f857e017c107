"""Repair: what is damaged in one replica is put in its place again from any other that has it intact, frame by frame.

Only what is acknowledged is repaired, since only that is the same everywhere. A frame of another replica is verified
like any that is read, has to be of the epoch that this replica knows to begin there, and takes the place of the damaged
one by a rename of the whole segment. So the replica keeps its role, to lead or to follow, and its place in the in-sync
set. Damage that nobody has intact stays as it is and is named to readers.

Where the others have compacted a damaged frame away, it becomes a gap here as well. Another replica's gap counts only
before its `compacted_until`, and only if everything up to there is acknowledged here and of the same epochs: then the
newer records because of which it was removed are here too.

One thing cannot be repaired in place: a compacted log from which delete markers are gone, here or there. Each replica
removes records together with the markers that delete them, so a mixture of two could bring a deleted record back. Such
a replica is copied anew. Before that nobody may count on it any more: it registers anew, as another incarnation, and
leaves the in-sync set on the way. It does so only where enough others are in sync, and one of those is intact as a
whole: what it throws away may else be the only copy there is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.cluster.link import Links
from headwater.cluster.replication.durable_log import DurableLog, EpochStart, Intact, OffsetSpan
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.core.errors import HeadwaterError
from headwater.log import ClosedSegment, StoredFrame
from headwater.log.files.segment import seed_of
from headwater.log.format.frame import stored_frame
from headwater.log.format.verify import verified
from headwater.log.recover.mending import Hole, Mending
from headwater.streams.catalog import partition_uuid
from headwater.v1 import broker_pb2 as pb

_log = logging.getLogger(__name__)
_BYTES: Final = 4 * 1024 * 1024
"""The bytes that are asked for at once."""
_ASKING: Final = 30.0
"""The longest that an answer may take. Seconds."""
_SOON: Final = 1.0
_SELDOM: Final = 60.0
"""The first and the longest pause until a failed repair is tried again. Seconds."""


def can_be_spared(state: PartitionState, broker: int, min_insync: int, alive: Members) -> bool:
    """Return whether enough others are in sync, and have lived on since, that a replica may begin anew."""
    others = [other for other, since in state.in_sync.items() if other != broker and alive.get(other) == since]
    return len(others) >= min_insync


def should_hand_over(state: PartitionState, broker: int, alive: Members) -> bool:
    """Return whether a damaged leader that cannot be repaired lets another one lead, for one that has to catch up."""
    behind = [replica for replica in state.replicas if replica not in state.in_sync and replica in alive]
    return state.leader == broker and bool(behind) and can_be_spared(state, broker, 1, alive)


def sources_of(state: PartitionState, broker: int, members: Mapping[int, BrokerMember]) -> list[BrokerMember]:
    """The other replicas that are alive: the leader first, then those in sync, then the rest."""
    others = [members[replica] for replica in state.replicas if replica != broker and replica in members]
    return sorted(
        others, key=lambda member: (member.id != state.leader, state.in_sync.get(member.id) != member.incarnation)
    )


class Repairs:
    """The results of the attempts to repair a broker's replicas. For the event loop, unless a method says otherwise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[PartitionKey, Repair] = {}
        self._pauses: dict[PartitionKey, float] = {}
        self._due: dict[PartitionKey, float] = {}

    def is_due(self, key: PartitionKey) -> bool:
        """Return whether it is time for another attempt."""
        return self._clock() >= self._due.get(key, 0.0)

    def ended(self, key: PartitionKey, repair: Repair) -> None:
        """An attempt is over. Where it has left something, the next one comes later than this one did."""
        self._last[key] = repair
        if repair.left:
            pause = self._pauses[key] = min(2 * self._pauses.get(key, _SOON / 2), _SELDOM)
            self._due[key] = self._clock() + pause
        else:
            self._pauses.pop(key, None)
            self._due.pop(key, None)

    def try_again(self, keys: Iterable[PartitionKey] | None = None) -> None:
        """Other brokers are there by now, or others lead or are in sync: what failed before may work now."""
        for key in list(self._due) if keys is None else keys:
            self._pauses.pop(key, None)
            self._due.pop(key, None)

    def is_left(self, key: PartitionKey, damage: OffsetSpan) -> bool:
        """In any thread: whether the last attempt could repair nothing of this."""
        last = self._last.get(key)
        return last is not None and any(span.start <= damage.start and damage.end <= span.end for span in last.left)

    def is_pending(self, key: PartitionKey, brokers: Iterable[int]) -> bool:
        """Return whether some of these brokers have not told yet what they have of what is damaged here."""
        last = self._last.get(key)
        return not (set(brokers) <= (set() if last is None else last.answered))

    def forget(self, key: PartitionKey) -> None:
        """The replica is no longer here."""
        self._last.pop(key, None)
        self.try_again([key])


@dataclass(slots=True)
class Repair:
    """One attempt to repair a replica, and what has come of it. For the event loop.

    It is for one attempt: who leads and who is in sync may be others in the next.
    """

    local: LocalReplica
    state: PartitionState
    sources: Sequence[BrokerMember]
    links: Links
    threads: DiskThreads
    mended: int = 0
    """The number of frames put in their places, and of holes made gaps."""
    helped: set[int] = field(default_factory=set)
    """The brokers that they came from."""
    answered: set[int] = field(default_factory=set)
    """The brokers that have answered every question."""
    left: list[OffsetSpan] = field(default_factory=list)
    """The spans that are still damaged."""
    anew: bool = False
    """True if the replica has to be copied anew, because of delete markers that are gone."""

    async def run(self) -> None:
        """Repair what can be repaired; raises HeadwaterError and OSError where that cannot be written here."""
        log, below = self.local.log, self.local.replica.high_watermark
        self.answered = {source.id for source in self.sources}
        agreed = await self._agree_on_epochs(below)
        for closed in await self.threads.write(log.damaged_segments, below):
            await self._mend(closed, below, agreed=agreed)
        known: list[OffsetSpan] = await self.threads.read(log.known_damage)
        self.left += [span for span in known if span.end > below]

    async def _agree_on_epochs(self, below: int) -> bool:
        """Learn from a replica in sync where epochs begin; whether there was one that agrees with what is here."""
        start = self.local.log.start
        for source in self.sources:
            if self.state.in_sync.get(source.id) == source.incarnation:
                answer = await self._ask(source, OffsetSpan(start, start))
                if answer is not None:
                    epochs = [EpochStart(entry.epoch, entry.start) for entry in answer.epochs]
                    agrees: bool = await self.threads.write(self.local.log.learn_epochs, epochs, below)
                    return agrees
        return False

    async def _mend(self, closed: ClosedSegment, below: int, *, agreed: bool) -> None:
        log = self.local.log
        mending: Mending = await self.threads.write(log.partition.mending, closed)
        try:
            left = [OffsetSpan(hole.offset, hole.next_offset) for hole in mending.holes]
            # Where a part of a hole may still be taken back, all of it is repaired when all of it is acknowledged.
            if not any(hole.offset < below < hole.next_offset for hole in mending.holes):
                for hole in mending.holes:
                    await self._fill(mending, hole, below)
            if mending.mended and await self.threads.write(mending.finish):
                self.mended += mending.mended
                left = [OffsetSpan(hole.offset, hole.next_offset) for hole in mending.left]
                log.forget_met(closed)
            elif agreed:  # readers may have noted what was repaired meanwhile
                await self.threads.write(log.note_holes, closed, mending.holes)
            self.left += left
        finally:
            await self.threads.write(mending.close)

    async def _fill(self, mending: Mending, hole: Hole, below: int) -> None:
        """Put into a hole what others have of it, from its beginning to its end; leave the rest."""
        before = mending.mended
        missing = hole.next_offset > below
        offset = hole.offset
        while offset < hole.next_offset <= below:
            intact = await self._find(OffsetSpan(offset, hole.next_offset), below)
            if intact.next_offset > offset:
                await self.threads.write(self._add, mending, intact, offset)
                offset = intact.next_offset
            else:
                missing = True
                part = hole._replace(offset=offset, next_offset=intact.damaged_until, position=0, until=0)
                await self.threads.write(mending.leave, part)
                offset = part.next_offset
        if mending.mended > before:
            return
        if missing:
            await self.threads.write(mending.leave, hole)
        else:
            mending.omit()

    async def _find(self, span: OffsetSpan, below: int) -> Intact:
        """Return what the first replica with the beginning of a span has of it, or the end of what nobody has."""
        damaged_until = span.end
        for source in self.sources:
            answer = await self._ask(source, span)
            if answer is None:
                continue
            if max(answer.markers_until, self.local.log.markers.until) > span.start:
                self.anew = True
                continue
            intact: Intact = await self.threads.read(self._checked, answer, span, below)
            if intact.next_offset > span.start:
                if answer.compacted_until > span.start:
                    until = min(answer.compacted_until, below)
                    await self.threads.write(self.local.log.note_compacted, until)
                self.helped.add(source.id)
                return intact
            damaged_until = min(damaged_until, max(intact.damaged_until, span.start + 1))
        return Intact([], span.start, damaged_until)

    def _checked(self, answer: pb.ReadReplicaResponse, span: OffsetSpan, below: int) -> Intact:
        """In a thread: what is good of an answer.

        Frames of another epoch than this replica knows are another leader's, and were never acknowledged. Offsets
        without a record are good only where gaps are.
        """
        log = self.local.log
        gaps_until = self._gaps_until(answer, below)
        seed, schema_of = seed_of(partition_uuid(*self.local.key)), log.partition.schemas.get
        frames: list[StoredFrame] = []
        reached = span.start
        try:
            for located in verified(answer.frames, seed, span.start):
                frame = stored_frame(*located, schema_of)
                header = frame.header
                if header.base_offset > max(reached, gaps_until):
                    return Intact(frames, reached, min(header.base_offset, span.end))
                is_thinned = header.record_count <= header.last_offset_delta
                is_another = header.leader_epoch != log.epoch_before(header.base_offset + 1)
                if is_another or (is_thinned and header.next_offset > gaps_until):
                    return Intact(frames, reached, min(header.next_offset, span.end))
                frames.append(frame)
                reached = min(header.next_offset, span.end)
        except HeadwaterError as error:
            _log.warning("%s: another broker has sent damaged frames for a repair: %s", self.local, error)
            return Intact(frames, reached, span.end)
        end = min(answer.next_offset, span.end)
        if end > max(reached, gaps_until):
            return Intact(frames, reached, end)
        return Intact(frames, end, min(answer.damaged_until or span.end, span.end))

    def _gaps_until(self, answer: pb.ReadReplicaResponse, below: int) -> int:
        """In a thread: before which offset another replica's gaps are good here as well; 0 where they are not.

        That one has removed records because of newer ones, which are before its `compacted_until`. So all of that has
        to be acknowledged here, and to be the same log: an operator may have given up those newer ones since.
        """
        until = answer.compacted_until
        epochs = [EpochStart(entry.epoch, entry.start) for entry in answer.epochs]
        return until if until <= below and self.local.log.had_the_same(epochs, until) else 0

    def _add(self, mending: Mending, intact: Intact, offset: int) -> None:
        """In a thread: put what was found into the hole, from an offset on."""
        for frame in intact.frames:
            mending.add(frame, offset, intact.next_offset)

    async def whole_elsewhere(self) -> bool:
        """Return whether a replica that is in sync has everything intact that is acknowledged."""
        log, below = self.local.log, self.local.replica.high_watermark
        for source in self.sources:
            offset = log.start
            while offset < below and self.state.in_sync.get(source.id) == source.incarnation:
                answer = await self._ask(source, OffsetSpan(offset, below), without_frames=True)
                if answer is None or answer.next_offset <= offset:
                    break
                offset = answer.next_offset
            if offset >= below:
                return True
        return False

    async def _ask(
        self, source: BrokerMember, span: OffsetSpan, *, without_frames: bool = False
    ) -> pb.ReadReplicaResponse | None:
        """Return what another replica has of a span; None if it does not tell."""
        if source.id not in self.answered:
            return None  # once is enough
        uuid, number = self.local.key
        request = pb.ReadReplicaRequest(
            topic_uuid=uuid,
            partition=number,
            start=span.start,
            end=span.end,
            max_bytes=_BYTES,
            without_frames=without_frames,
        )
        try:
            answer: pb.ReadReplicaResponse = await self.links.to(source).call("ReadReplica", request, _ASKING)
        except HeadwaterError as error:
            self.answered.discard(source.id)
            _log.debug("%s: broker %d does not send what it has: %s", self.local, source.id, error)
            return None
        return answer


def answer_replica(log: DurableLog, request: pb.ReadReplicaRequest) -> pb.ReadReplicaResponse:
    """In a thread: what a log has of the offsets that another replica lacks."""
    intact = log.intact(OffsetSpan(request.start, request.end), request.max_bytes)
    markers = log.markers  # after the frames were read, not before
    answer: dict[str, Any] = {"frames": b"".join(memoryview(frame.data) for frame in intact.frames)}
    if request.without_frames:
        answer = {}
    return pb.ReadReplicaResponse(
        **answer,
        next_offset=intact.next_offset,
        damaged_until=intact.damaged_until,
        epochs=[pb.EpochStart(epoch=epoch, start=start) for epoch, start in log.epochs_before(log.end)],
        compacted_until=log.compacted_until,
        markers_until=markers.until,
    )
