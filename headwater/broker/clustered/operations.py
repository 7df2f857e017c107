"""Operations of a broker in a cluster: it asks the leaders for the numbers of all topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.broker.backend import LocalTopic, NamedPartition, PartitionWork, Sees
from headwater.broker.clustered.gauges import cluster_gauges
from headwater.broker.clustered.peers import Peers
from headwater.broker.inspection import Inspection
from headwater.broker.runtime import Runtime
from headwater.cluster.node import ClusterNode
from headwater.core.errors import HeadwaterError, StoreError
from headwater.log import PartitionStatistics, SegmentFacts, no_statistics
from headwater.streams.scrubber import Scrubber
from headwater.streams.steward import StewardReport
from headwater.streams.topic import TopicStatistics

_NOTHING: Final = no_statistics()


class ClusterOperations:
    """Operations on the replicas of a broker, and numbers of the whole cluster. See `Operations`."""

    def __init__(self, runtime: Runtime, node: ClusterNode, peers: Peers) -> None:
        self._runtime = runtime
        self._node = node
        self._peers = peers
        self._inspection = Inspection(node.store, self._statistics_of)
        self.scrubber: Scrubber | None = None
        """Verifies replicas in the background, once the broker serves."""

    def topics(self) -> list[LocalTopic]:
        """See Operations."""
        return self._inspection.topics()

    def _statistics_of(self, name: str) -> TopicStatistics:
        """The numbers of a topic. Partitions that only other brokers have count as empty."""
        store = self._node.store
        info = store.describe_topic(name)
        return TopicStatistics.of(
            name,
            [
                store.partition(info, number).statistics() if store.holds_partition(info, number) else _NOTHING
                for number in range(info.partitions)
            ],
        )

    async def statistics(self, sees: Sees) -> list[TopicStatistics]:
        """See Operations.

        A topic is left out if one of its partitions has no leader, or one that does not answer: half of the numbers
        would be worse than none.
        """
        view = self._node.membership.view
        topics = [topic.info for name, topic in sorted(view.topics.items()) if not name.startswith("__")]
        keys = {(info.uuid, number) for info in topics for number in range(info.partitions)}
        leaders = {key: view.partitions[key][0].leader for key in keys if key in view.partitions}
        answers = await self._ask(set(leaders.values()) & set(view.members))
        statistics: list[TopicStatistics] = []
        for info in topics:
            partitions: list[PartitionStatistics] = []
            for number in range(info.partitions):
                known = answers.get(leaders.get((info.uuid, number), -1), {}).get(info.name)
                if known is not None and number < len(known.partitions):
                    partitions.append(known.partitions[number])
            if len(partitions) == info.partitions and sees(info.name):
                statistics.append(TopicStatistics.of(info.name, partitions))
        return statistics

    async def _ask(self, brokers: set[int]) -> dict[int, dict[str, TopicStatistics]]:
        """The numbers of each broker, by the names of topics. Brokers that do not answer are left out."""
        answers = await asyncio.gather(*map(self._ask_broker, brokers), return_exceptions=True)
        by_broker: dict[int, dict[str, TopicStatistics]] = {}
        for broker, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, BaseException):
                by_broker[broker] = {topic.name: topic for topic in answer}
            elif not isinstance(answer, HeadwaterError | OSError):
                raise answer
        return by_broker

    async def _ask_broker(self, broker: int) -> list[TopicStatistics]:
        if broker == self._node.broker:
            return await self.statistics_here((), lambda _: True)
        return await self._peers.statistics(broker)

    async def statistics_here(self, names: Sequence[str], sees: Sees) -> list[TopicStatistics]:
        """See Operations."""
        return await self._runtime.read(self._inspection.statistics, names, sees)

    async def segments(self, partition: NamedPartition) -> list[SegmentFacts]:
        """See Operations."""
        return await self._runtime.read(self._inspection.segments, partition)

    async def work_on(self, partition: NamedPartition, work: PartitionWork, offset: int | None) -> Any:  # noqa: ARG002
        """Raise StoreError: other brokers have the log too."""
        raise _not_offered("WorkOnPartition")

    async def run_steward(self, options: Mapping[str, Any], *, dry_run: bool) -> StewardReport:  # noqa: ARG002
        """Raise StoreError: leaders clean their logs by themselves."""
        raise _not_offered("RunSteward")

    def scrubbed(self) -> tuple[int, int]:
        """See Operations."""
        return (0, 0) if self.scrubber is None else (self.scrubber.segments, self.scrubber.bytes)

    def cluster_gauges(self) -> Mapping[str, float]:
        """See Operations."""
        return cluster_gauges(self._node)


def _not_offered(name: str) -> StoreError:
    return StoreError(
        f"{name} is not offered in a cluster yet: work on the log of a partition needs a broker on its own"
    )
