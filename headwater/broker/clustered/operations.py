"""Operations over the wire, in a cluster: any broker tells the numbers of all topics, as those have them who lead."""

from __future__ import annotations

import asyncio
from typing import Final

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.rpc.operations import Operations
from headwater.cluster.node import ClusterNode
from headwater.core.errors import HeadwaterError
from headwater.v1 import broker_pb2 as pb

_ASKING: Final = 5.0


class ClusterOperations(Operations):
    """The methods for those who look after a broker of a cluster."""

    def __init__(self, core: Core, node: ClusterNode) -> None:
        super().__init__(core)
        self._node = node

    async def get_statistics(self, request: pb.GetStatisticsRequest, call: Call) -> pb.Statistics:
        """Of named topics, and for other brokers, what is here: who asks for those asks who leads them."""
        if call.by_broker or request.topics:
            return await super().get_statistics(request, call)
        return pb.Statistics(topics=[one for one in await self.led() if call.sees(one.name)])

    async def led(self) -> list[pb.TopicStatistics]:
        """All topics, each partition as its leader has it.

        A topic is left out when one of its partitions is led by nobody, or by one who does not answer: nothing is
        better than half of it.
        """
        view = self._node.membership.view
        topics = [topic.info for name, topic in sorted(view.topics.items()) if not name.startswith("__")]
        places = [(info, (info.uuid, number)) for info in topics for number in range(info.partitions)]
        leaders = {key: view.partitions[key][0].leader for _, key in places if key in view.partitions}
        answers = await self._ask(set(leaders.values()) & set(view.members))
        found = {info.name: pb.TopicStatistics(name=info.name) for info in topics}
        for info, (uuid, number) in places:
            known = answers.get(leaders.get((uuid, number), -1), {}).get(info.name)
            if known is None or number >= len(known.partitions):
                found.pop(info.name, None)
            elif info.name in found:
                found[info.name].partitions.append(known.partitions[number])
        return list(found.values())

    async def _ask(self, brokers: set[int]) -> dict[int, dict[str, pb.TopicStatistics]]:
        """What each of these has, by the names of topics. Who does not answer is left out."""
        answers = await asyncio.gather(*map(self._ask_one, brokers), return_exceptions=True)
        found: dict[int, dict[str, pb.TopicStatistics]] = {}
        for broker, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, HeadwaterError | OSError):
                    raise answer
                continue
            found[broker] = {one.name: one for one in answer.topics}
        return found

    async def _ask_one(self, broker: int) -> pb.Statistics:
        request = pb.GetStatisticsRequest()
        if broker != self._node.broker:
            found: pb.Statistics = await self._node.call_broker(broker, "GetStatistics", request, _ASKING)
            return found
        return await self._core.read(self._statistics, [], lambda _: True)
