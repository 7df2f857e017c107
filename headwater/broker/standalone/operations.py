"""Operations of a broker that is in no cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headwater.broker.backend import AccessChanges, LocalTopic, NamedPartition, PartitionWork, Sees
from headwater.broker.inspection import Inspection
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import Rules
from headwater.broker.stored import partition_of
from headwater.cluster.control.forced_election import Outlook
from headwater.cluster.control.moves import PlannedMove
from headwater.core.config import StewardConfig
from headwater.core.errors import InvalidConfiguration, StoreError
from headwater.log import SegmentFacts
from headwater.streams.steward import Steward, StewardReport
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition, TopicStatistics


class StandaloneOperations:
    """Operations on a store, and its steward. See `Operations`."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        self._inspection = Inspection(store, lambda name: store.topic(name).statistics())
        self._stewards: dict[StewardConfig, Steward] = {}
        self.steward: Steward | None = None
        """The steward that works in the background, once the broker serves."""

    def topics(self) -> list[LocalTopic]:
        """See Operations."""
        return self._inspection.topics()

    async def statistics(self, sees: Sees) -> list[TopicStatistics]:
        """See Operations."""
        return await self.statistics_here((), sees)

    async def statistics_here(self, names: Sequence[str], sees: Sees) -> list[TopicStatistics]:
        """See Operations."""
        return await self._runtime.read(self._inspection.statistics, names, sees)

    async def segments(self, partition: NamedPartition) -> list[SegmentFacts]:
        """See Operations."""
        return await self._runtime.read(self._inspection.segments, partition)

    async def work_on(self, partition: NamedPartition, work: PartitionWork, offset: int | None) -> Any:
        """See Operations."""
        report = await self._runtime.write(self._work_on, partition, work, offset)
        self._runtime.arrivals.tell([partition.tp])
        return report

    def _work_on(self, partition: NamedPartition, work: PartitionWork, offset: int | None) -> Any:
        log = partition_of(self._store, partition)
        match work:
            case "roll":
                return log.roll()
            case "truncate":
                return log.truncate(_needed(offset))
            case "delete_before":
                return log.delete_before(_needed(offset))
            case "compact":
                return log.compact()
            case "retain":
                return log.retain(keep_from=offset)

    async def run_steward(self, options: Mapping[str, Any], *, dry_run: bool) -> StewardReport:
        """See Operations."""
        made = self._store.steward(**options)
        steward = self._stewards.setdefault(made.config, made)  # it remembers what it has compacted
        report = await self._runtime.write(steward.run_once, dry_run=dry_run)
        self._runtime.arrivals.tell_all()
        return report

    def scrubbed(self) -> tuple[int, int]:
        """See Operations."""
        return (0, 0) if self.steward is None else (self.steward.scrubber.segments, self.steward.scrubber.bytes)

    def cluster_gauges(self) -> Mapping[str, float]:
        """None: it is in no cluster."""
        return {}


def _needed(offset: int | None) -> int:
    if offset is None:
        raise InvalidConfiguration("this work needs an offset")
    return offset


class NoCluster:
    """Refuses what only a cluster can do. See `Administration`."""

    async def elect(self, partition: TopicPartition, broker: int, revision: int | None) -> tuple[Outlook, int]:  # noqa: ARG002
        """Raise StoreError."""
        raise StoreError("the broker is in no cluster: it leads all of its partitions")

    async def plan_moves(self, remove: Collection[int]) -> list[PlannedMove]:  # noqa: ARG002
        """Raise StoreError."""
        raise self._cannot_move()

    async def begin_moves(self, moves: Sequence[PlannedMove], remove: Collection[int]) -> int:  # noqa: ARG002
        """Raise StoreError."""
        raise self._cannot_move()

    async def cancel_moves(self, remove: Collection[int]) -> int:  # noqa: ARG002
        """Raise StoreError."""
        raise self._cannot_move()

    async def moves(self) -> list[PlannedMove]:
        """Raise StoreError."""
        raise self._cannot_move()

    def _cannot_move(self) -> StoreError:
        return StoreError("the broker is in no cluster: no other broker can take its partitions")

    async def access_rules(self) -> Rules | None:
        """None: the broker goes by its own file."""
        return None

    async def change_access(self, changes: AccessChanges) -> None:  # noqa: ARG002
        """Raise StoreError."""
        raise StoreError("this broker is in no cluster: change its access file, which says who may do what")
