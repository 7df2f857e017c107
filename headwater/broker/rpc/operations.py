"""Operations over the wire: the store and the broker in numbers, and work on partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from headwater.broker.core import Core, memory_bytes, partition_of, statistics_of
from headwater.broker.rpc.call import Call
from headwater.broker.security.access import BROKER
from headwater.core.config import StewardConfig
from headwater.core.errors import HeadwaterError, InvalidConfiguration, UnknownTopic
from headwater.core.version import __version__
from headwater.log import Partition, PartitionStatistics
from headwater.streams.steward import Steward
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_from_text

_RENAMED: Final = {"start": "log_start", "end": "log_end"}


class Operations:
    """The methods for those who look after a broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._stewards: dict[StewardConfig, Steward] = {}

    async def get_statistics(self, request: pb.GetStatisticsRequest, call: Call) -> pb.Statistics:
        for name in request.topics:
            call.check("read", "topic", name)
        return await self._core.read(self._statistics, list(request.topics), call.sees)

    def _statistics(self, names: list[str], sees: Callable[[str], bool]) -> pb.Statistics:
        """Of these topics; without names, of all that are seen."""
        answer = pb.Statistics()
        for name in names or [name for name in self._store.topics() if sees(name)]:
            with suppress(*(() if names else (UnknownTopic,))):  # deleted since its name was read
                found = statistics_of(self._core, name)
                answer.topics.append(
                    pb.TopicStatistics(name=name, partitions=[pack_statistics(one) for one in found.partitions])
                )
        return answer

    async def list_segments(self, request: pb.ListSegmentsRequest, call: Call) -> pb.ListSegmentsResponse:
        call.check("read", "topic", request.partition.topic)
        found = await self._core.read(lambda: partition_of(self._store, request.partition).segments())
        return pb.ListSegmentsResponse(segments=[json.dumps(one._asdict()) for one in found])

    async def work_on_partition(self, request: pb.WorkOnPartitionRequest, call: Call) -> pb.WorkOnPartitionResponse:
        call.check("admin", "topic", request.partition.topic)
        report = await self._core.write(self._work, request)
        self._core.arrivals.tell([(request.partition.topic, request.partition.partition)])
        return pb.WorkOnPartitionResponse(report=_json(report))

    def _work(self, request: pb.WorkOnPartitionRequest) -> Any:
        offset = request.offset if request.HasField("offset") else None
        partition = partition_of(self._store, request.partition)
        works: dict[int, Callable[[Partition], Any]] = {
            pb.PARTITION_WORK_ROLL: lambda one: one.roll(),
            pb.PARTITION_WORK_TRUNCATE: lambda one: one.truncate(_needed(offset)),
            pb.PARTITION_WORK_DELETE_BEFORE: lambda one: one.delete_before(_needed(offset)),
            pb.PARTITION_WORK_COMPACT: lambda one: one.compact(),
            pb.PARTITION_WORK_RETAIN: lambda one: one.retain(keep_from=offset),
        }
        if request.work not in works:
            raise InvalidConfiguration(f"{request.work} is no work on a partition")
        return works[request.work](partition)

    async def run_steward(self, request: pb.RunStewardRequest, call: Call) -> pb.RunStewardResponse:
        call.check("admin", "broker", BROKER)
        options = options_from_text(request.options, StewardConfig)
        made = self._store.steward(**options)
        steward = self._stewards.setdefault(made.config, made)  # it remembers what it has compacted
        report = await self._core.write(steward.run_once, dry_run=request.dry_run)
        self._core.arrivals.tell_all()
        return pb.RunStewardResponse(report=_json(report))

    async def get_status(self, request: pb.GetStatusRequest, call: Call) -> pb.Status:  # noqa: ARG002
        call.check("read", "broker", BROKER)
        return await self.status()

    async def status(self) -> pb.Status:
        """The broker in numbers."""
        core = self._core
        topics, partitions, unhealthy = await core.read(self._health)
        return pb.Status(
            broker_id=core.config.broker_id,
            version=__version__,
            state="draining" if core.draining.is_set() else "serving",
            directory=str(self._store),
            started_ns=core.meters.started_ns,
            connections=len(core.connections),
            topics=topics,
            partitions=partitions,
            in_flight_bytes=core.requests.used + core.responses.used,
            produced_records=core.meters.produced_records,
            produced_bytes=core.meters.produced_bytes,
            fetched_bytes=core.meters.fetched_bytes,
            memory_bytes=memory_bytes(),
            unhealthy=unhealthy,
        )

    def _health(self) -> tuple[int, int, list[str]]:
        topics = partitions = 0
        unhealthy: list[str] = []
        for name in self._store.topics():
            try:
                found = statistics_of(self._core, name)
            except UnknownTopic:
                continue
            except HeadwaterError:
                unhealthy.append(name)
                continue
            topics += 1
            partitions += len(found.partitions)
            unhealthy += [f"{name}/{number}" for number in found.unhealthy]
        return topics, partitions, unhealthy


def pack_statistics(found: PartitionStatistics) -> pb.PartitionStatistics:
    """A partition's numbers as a message."""
    return pb.PartitionStatistics(**{_RENAMED.get(name, name): value for name, value in asdict(found).items()})


def _needed(offset: int | None) -> int:
    if offset is None:
        raise InvalidConfiguration("this work needs an offset")
    return offset


def _json(report: Any) -> str:
    return json.dumps(asdict(report) if is_dataclass(report) and not isinstance(report, type) else report)
