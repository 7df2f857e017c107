"""The RPCs for operators: the broker in numbers, and work on partitions."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from headwater.broker.backend import PartitionWork
from headwater.broker.core import Core, memory_bytes
from headwater.broker.rpc.call import Call
from headwater.broker.rpc.messages import named_partition
from headwater.broker.security.access import BROKER
from headwater.core.config import StewardConfig
from headwater.core.errors import InvalidConfiguration
from headwater.core.version import __version__
from headwater.streams.topic import TopicStatistics
from headwater.v1 import broker_pb2 as pb
from headwater.wire.statistics import pack_statistics
from headwater.wire.topics import options_from_text

_WORK: Final[dict[int, PartitionWork]] = {
    pb.PARTITION_WORK_ROLL: "roll",
    pb.PARTITION_WORK_TRUNCATE: "truncate",
    pb.PARTITION_WORK_DELETE_BEFORE: "delete_before",
    pb.PARTITION_WORK_COMPACT: "compact",
    pb.PARTITION_WORK_RETAIN: "retain",
}


class OperationMethods:
    """The methods about the state of a broker and of its partitions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._operations = core.backend.operations

    async def get_statistics(self, request: pb.GetStatisticsRequest, call: Call) -> pb.Statistics:
        for name in request.topics:
            call.check("read", "topic", name)
        if request.topics or call.by_broker:  # a client that names topics asks the leaders by itself
            statistics = await self._operations.statistics_here(list(request.topics), call.sees)
        else:
            statistics = await self._operations.statistics(call.sees)
        return await self._core.runtime.read(_packed, statistics)

    async def list_segments(self, request: pb.ListSegmentsRequest, call: Call) -> pb.ListSegmentsResponse:
        call.check("read", "topic", request.partition.topic)
        segments = await self._operations.segments(named_partition(request.partition))
        return pb.ListSegmentsResponse(segments=[json.dumps(segment._asdict()) for segment in segments])

    async def work_on_partition(self, request: pb.WorkOnPartitionRequest, call: Call) -> pb.WorkOnPartitionResponse:
        call.check("admin", "topic", request.partition.topic)
        if request.work not in _WORK:
            raise InvalidConfiguration(f"the broker does not know the work {request.work} on a partition")
        offset = request.offset if request.HasField("offset") else None
        report = await self._operations.work_on(named_partition(request.partition), _WORK[request.work], offset)
        return pb.WorkOnPartitionResponse(report=_json(report))

    async def run_steward(self, request: pb.RunStewardRequest, call: Call) -> pb.RunStewardResponse:
        call.check("admin", "broker", BROKER)
        options = options_from_text(request.options, StewardConfig)
        report = await self._operations.run_steward(options, dry_run=request.dry_run)
        return pb.RunStewardResponse(report=_json(report))

    async def get_status(self, request: pb.GetStatusRequest, call: Call) -> pb.Status:  # noqa: ARG002
        call.check("read", "broker", BROKER)
        core = self._core
        topics = await core.runtime.read(self._operations.topics)
        unhealthy: list[str] = []
        for topic in topics:
            if topic.statistics is None:
                unhealthy.append(topic.name)
            else:
                unhealthy += [f"{topic.name}/{number}" for number in topic.statistics.unhealthy]
        opened = [topic.statistics for topic in topics if topic.statistics is not None]
        return pb.Status(
            broker_id=core.backend.catalog.broker_id,
            version=__version__,
            state="draining" if core.runtime.draining.is_set() else "serving",
            directory=core.directory,
            started_ns=core.meters.started_ns,
            connections=len(core.connections),
            topics=len(opened),
            partitions=sum(len(statistics.partitions) for statistics in opened),
            in_flight_bytes=core.requests.used + core.responses.used,
            produced_records=core.meters.produced_records,
            produced_bytes=core.meters.produced_bytes,
            fetched_bytes=core.meters.fetched_bytes,
            memory_bytes=memory_bytes(),
            unhealthy=unhealthy,
        )


def _packed(topics: list[TopicStatistics]) -> pb.Statistics:
    """In a thread: there may be many."""
    return pb.Statistics(
        topics=[
            pb.TopicStatistics(name=topic.name, partitions=map(pack_statistics, topic.partitions)) for topic in topics
        ]
    )


def _json(report: Any) -> str:
    return json.dumps(asdict(report) if is_dataclass(report) and not isinstance(report, type) else report)
