"""A partition behind a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headwater.client.connection import Connection
from headwater.client.direct import read_extents
from headwater.client.sender import Sender
from headwater.core.config import PartitionConfig
from headwater.core.errors import (
    FrameDamaged,
    HeadwaterError,
    OffsetOutOfRange,
    PartitionClosed,
    PartitionDeleted,
    StoreError,
    UnknownTopic,
)
from headwater.core.machine import machine
from headwater.log import (
    Appended,
    Bounds,
    CompactionReport,
    Damage,
    Frame,
    Partition,
    PartitionStatistics,
    RetentionReport,
    Schemas,
    SegmentFacts,
)
from headwater.log.files.index import NEVER
from headwater.log.files.segment import seed_of
from headwater.log.format.frame import BASE_OFFSET, LAST_OFFSET_DELTA, Take, Taken
from headwater.log.format.frame_filter import FrameFilter
from headwater.log.format.verify import verified
from headwater.log.recover.report import OnDamage
from headwater.streams.catalog import TopicInfo, partition_uuid
from headwater.streams.receipt import Outcome
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from headwater.wire.statistics import unpack_statistics

_FETCH_BYTES: Final = 4 * 1024 * 1024


def partition_seed(topic: bytes, number: int) -> int:
    """Return the seed of a partition's stamp checksums."""
    return seed_of(partition_uuid(topic, number))


class RemotePartition(Partition):
    """One partition of a topic, as its broker has it."""

    def __init__(
        self, connection: Connection, info: TopicInfo, number: int, config: PartitionConfig, schemas: Schemas
    ) -> None:
        self.config = config
        self.schemas = schemas
        self._connection = connection
        self._topic = info.name
        self._uuid = info.uuid
        self._number = number
        self._message = pb.TopicPartition(topic=info.name, partition=number, topic_uuid=info.uuid)
        self._seed = partition_seed(info.uuid, number)
        # Appending returns the offsets, with acks="none" too.
        self._appender = Sender(connection, "leader" if connection.config.acks == "none" else None)
        self._closed = False

    def __str__(self) -> str:
        return f"{self._connection}/{self._topic}/{self._number}"

    def configure(self, config: PartitionConfig) -> None:
        self.config = config

    def _call(self, method: str, request: Any, **options: Any) -> Any:
        if self._closed:
            raise PartitionClosed(self)
        try:
            return self._connection.call(method, request, **options)
        except UnknownTopic:
            raise PartitionDeleted(self) from None

    # Writing.

    def _append(self, group: tuple[Frame, ...]) -> Appended:
        if len(group) == 1 and group[0].identity is None:
            if self._closed:
                raise PartitionClosed(self)
            outcome = Outcome(self._number)
            self._appender.room(self._number, self._connection.config.timeout)
            self._appender.post(self._topic, self._uuid, self._number, group[0], outcome)
            outcome.wait(None)
            if outcome.error is not None:
                raise outcome.error
            assert outcome.appended is not None
            return outcome.appended
        # Frames with an identity of their own are known when they come twice. Of others that belong together nobody
        # could tell: they are sent once.
        request = pb.ProduceRequest(
            topic=self._topic, topic_uuid=self._uuid, partition=self._number, frames=[frame.packed() for frame in group]
        )
        response = self._call("Produce", request, repeatable=group[0].identity is not None)
        return Appended(response.base_offset, response.end_offset, response.duplicate)

    def sync(self) -> None:
        self._call("Sync", pb.SyncRequest(partitions=[self._message]))

    def writer_sequence(self, writer: bytes) -> int:  # noqa: ARG002
        raise StoreError(f"{self}: only the broker knows the writers of a partition")

    # Reading.

    def bounds(self) -> Bounds:
        offsets = self._offsets(None)
        return Bounds(offsets.log_start, offsets.log_end, offsets.durable_end)

    def markers(self) -> tuple[int, int]:
        """Before which offset delete markers may be gone, in a cluster, and of which state of the log that is true."""
        offsets = self._offsets(None)
        return offsets.markers_until, offsets.markers_state

    def _offsets(self, timestamp: int | None) -> pb.PartitionOffsets:
        request = pb.ListOffsetsRequest(partitions=[self._message], timestamp_ns=timestamp)
        (offsets,) = self._call("ListOffsets", request).partitions
        if offsets.HasField("error"):
            raise self._explained(unpack_error(offsets.error))
        return offsets  # type: ignore[no-any-return]

    def _explained(self, error: HeadwaterError) -> HeadwaterError:
        return PartitionDeleted(self) if isinstance(error, UnknownTopic) else error

    def _read(self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None = None) -> Iterator[Taken]:
        return self._fetch(start, end, take, on_damage, "")

    def _read_matching(
        self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None, where: FrameFilter
    ) -> Iterator[Taken]:
        return self._fetch(start, end, take, on_damage, where.condition.portable_text)

    def _fetch(
        self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None, where: str
    ) -> Iterator[Taken]:
        """Fetch frames; with `where`, the broker leaves out what does not match."""
        offset = start
        here = machine() if self._connection.config.direct and not where else b""
        while offset < end:
            position = pb.FetchPosition(partition=self._message, offset=offset, end=end, where=where)
            request = pb.FetchRequest(positions=[position], max_bytes=_FETCH_BYTES, machine=here)
            ((fetched, sent),) = self._call("Fetch", request).partitions
            frames = read_extents(fetched.extents) if fetched.extents else sent
            before = offset
            try:
                if frames is None:
                    raise FrameDamaged("a file of the broker cannot be read")
                for fields, buffer, at in verified(frames, self._seed, offset):
                    taken = take(fields, buffer, at)
                    offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
                    if taken is not None:
                        yield taken
            except FrameDamaged:
                if not fetched.extents:
                    raise
                here = b""  # the broker says what is wrong, if anything is
                continue
            offset = max(fetched.next_offset, before)
            if fetched.HasField("error"):
                offset = self._pass_over(unpack_error(fetched.error), offset, end, on_damage)
            elif offset == before:
                raise OffsetOutOfRange(offset, fetched.log_start, fetched.log_end, str(self))

    def _pass_over(self, error: HeadwaterError, offset: int, end: int, on_damage: OnDamage | None) -> int:
        """Go on behind damage, where that is wanted; the offset where it ends."""
        if not isinstance(error, FrameDamaged) or error.next_offset is None or on_damage is None:
            raise self._explained(error)
        after = min(error.next_offset, end)
        on_damage(Damage(error.file or Path(str(self)), error.position or 0, offset, after, error.reason))
        return max(after, offset + 1)

    def offset_at(self, timestamp: int) -> int | None:
        if timestamp >= 1 << 63:
            return None
        offsets = self._offsets(max(timestamp, NEVER))
        return offsets.offset_at if offsets.HasField("offset_at") else None

    def _time_hint(self, timestamp: int) -> int | None:
        return self.offset_at(timestamp)

    # Cleaning.

    def segments(self) -> list[SegmentFacts]:
        response = self._call("ListSegments", pb.ListSegmentsRequest(partition=self._message))
        return [SegmentFacts(**json.loads(segment)) for segment in response.segments]

    def _work(self, work: pb.PartitionWork, offset: int | None = None) -> Any:
        request = pb.WorkOnPartitionRequest(partition=self._message, work=work, offset=offset)
        return json.loads(self._call("WorkOnPartition", request, slow=True).report or "null")

    def roll(self) -> bool:
        return bool(self._work(pb.PARTITION_WORK_ROLL))

    def truncate(self, offset: int) -> None:
        self._work(pb.PARTITION_WORK_TRUNCATE, offset)

    def delete_before(self, offset: int) -> None:
        self._work(pb.PARTITION_WORK_DELETE_BEFORE, offset)

    def compact(self) -> CompactionReport:
        return CompactionReport(**self._work(pb.PARTITION_WORK_COMPACT))

    def retain(self, *, keep_from: int | None = None) -> RetentionReport:
        return RetentionReport(**self._work(pb.PARTITION_WORK_RETAIN, keep_from))

    # The handle.

    def statistics(self) -> PartitionStatistics:
        response = self._call("GetStatistics", pb.GetStatisticsRequest(topics=[self._topic]))
        return unpack_statistics(response.topics[0].partitions[self._number])

    def close(self) -> None:
        self._closed = True
        self._appender.close()
