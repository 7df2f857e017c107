"""Topics of a cluster whose mode is not `always`: what is acknowledged is on the disks of all replicas all the same."""

from __future__ import annotations

import pytest

from headwater.broker import Broker
from headwater.client.store import RemoteStore
from headwater.core.config import ClientConfig
from headwater.log.clock import REAL_CLOCK
from headwater.streams.topic import TopicPartition
from tests.support.backends import SharedCluster, clustered
from tests.support.etcd_server import needs_etcd

pytestmark = needs_etcd


def durable_end(broker: Broker, topic: str) -> int:
    """Before which offset a power loss takes nothing, at the replica of one broker."""
    store = broker._store
    return store.partition(store.describe_topic(topic), 0).bounds().durable_end


def durable_ends(cluster: SharedCluster, topic: str) -> list[int]:
    """The same at each of the replicas, the least first."""
    return sorted(durable_end(broker, topic) for broker in cluster.brokers)


@pytest.mark.parametrize("sync", ["never", 3600.0])
def test_what_is_acknowledged_is_durable_at_every_replica(cluster: SharedCluster, sync: str | float) -> None:
    """Each replica that appends also syncs: the leader, and each follower before it says what it has."""
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("numbers", sync=sync)
        with store.producer("numbers") as out:
            for number in range(5):
                receipt = out.send(b"%d" % number)
                out.flush()
                assert durable_ends(cluster, "numbers") == [receipt.offset + 1] * 3


def test_a_leader_has_synced_what_it_has_appended_when_it_answers(cluster: SharedCluster) -> None:
    """Also to who waits for nobody else: the others could not acknowledge anything before."""
    with RemoteStore([broker.address for broker in cluster.brokers], config=ClientConfig(acks="leader")) as store:
        store.create_topic("numbers", sync="never")
        with store.producer("numbers") as out:
            receipt = out.send(b"1")
            out.flush()
            (leader,) = (
                broker
                for broker in cluster.brokers
                if clustered(broker).node.leadership.leads(TopicPartition("numbers", 0))
            )
            assert durable_end(leader, "numbers") == receipt.offset + 1


def test_a_transaction_is_durable_at_every_replica(cluster: SharedCluster) -> None:
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("numbers", sync="never")
        with store.transaction() as transaction:
            transaction.producer("numbers").send(b"1")
        assert durable_ends(cluster, "numbers") == [1, 1, 1]
