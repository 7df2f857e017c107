"""Topics that were just made: a broker that has not heard of one yet takes plain records for it all the same."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from headwater.cluster.etcd.keys import ClusterTopic
from headwater.core.errors import UnknownTopic
from headwater.log.clock import REAL_CLOCK
from headwater.streams.catalog import TopicInfo
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.backends import SharedCluster, clustered
from tests.support.broker import refusal
from tests.support.etcd_server import needs_etcd

pytestmark = needs_etcd


@pytest.mark.parametrize("asked", [0, 2], ids=["a broker that forwards", "a broker that is late"])
def test_plain_records_wait_for_a_broker_that_has_yet_to_hear_of_their_topic(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    node = clustered(cluster.brokers[2]).node
    assert node is not None
    may_hear = asyncio.Event()
    adopt, describe_topic = node.replicas._holdings.adopt, node.store.describe_topic
    described = []

    async def adopt_later(topic: ClusterTopic) -> None:
        await may_hear.wait()
        await adopt(topic)

    def note_and_describe(name: str) -> TopicInfo:
        described.append(name)
        return describe_topic(name)

    monkeypatch.setattr(node.replicas._holdings, "adopt", adopt_later)
    monkeypatch.setattr(node.store, "describe_topic", note_and_describe)
    loop = cluster.brokers[2]._loop
    assert loop is not None
    records = [pb.Record(key=b"%d" % number, value=b"%d" % number) for number in range(30)]
    try:
        with (
            cluster.open(REAL_CLOCK) as store,
            grpc.insecure_channel(str(cluster.brokers[asked].address)) as channel,
            ThreadPoolExecutor() as threads,
        ):
            store.create_topic("numbers", partitions=3)
            stub: Any = Stub(channel)
            produce = threads.submit(stub.Produce, pb.ProduceRequest(topic="numbers", records=records), timeout=300)
            while "numbers" not in described:  # the records have come to it
                assert not produce.done(), produce.result()
            loop.call_soon_threadsafe(may_hear.set)
            positions = produce.result().places
            assert {position.partition for position in positions} == {0, 1, 2}
            for record, position in zip(records, positions, strict=True):
                (stored,) = (
                    store.topic("numbers").partition(position.partition).records(position.offset, position.offset + 1)
                )
                assert (stored.key, stored.value) == (record.key, record.value)
    finally:
        loop.call_soon_threadsafe(may_hear.set)


def test_plain_records_for_a_topic_that_nobody_made_are_refused_at_once(cluster: SharedCluster) -> None:
    with grpc.insecure_channel(str(cluster.brokers[0].address)) as channel:
        stub: Any = Stub(channel)
        _, error = refusal(stub.Produce, pb.ProduceRequest(topic="nowhere", records=[pb.Record(value=b"x")]))
        assert isinstance(error, UnknownTopic)
