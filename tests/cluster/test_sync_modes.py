"""Topics of a cluster whose mode is not `always`: what is acknowledged is on the disks of all replicas all the same."""

from __future__ import annotations

import pytest

from headwater.log.clock import REAL_CLOCK
from tests.backends import SharedCluster
from tests.etcd_server import needs_etcd

pytestmark = needs_etcd


def durable_ends(cluster: SharedCluster, topic: str) -> list[int]:
    """Before which offset a power loss takes nothing, at each of the replicas."""
    found = []
    for broker in cluster.brokers:
        assert broker._core is not None
        store = broker._core.store
        found.append(store.partition(store.describe_topic(topic), 0).bounds().durable_end)
    return sorted(found)


@pytest.mark.parametrize("sync", ["never", 3600.0])
def test_what_is_acknowledged_is_durable_at_every_replica(cluster: SharedCluster, sync: str | float) -> None:
    """Whoever appends syncs: the leader, and each follower before it says what it has."""
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("numbers", sync=sync)
        with store.producer("numbers") as out:
            for number in range(5):
                receipt = out.send(b"%d" % number)
                out.flush()
                assert durable_ends(cluster, "numbers") == [receipt.offset + 1] * 3


def test_a_transaction_is_durable_at_every_replica(cluster: SharedCluster) -> None:
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("numbers", sync="never")
        with store.transaction() as transaction:
            transaction.producer("numbers").send(b"1")
        assert durable_ends(cluster, "numbers") == [1, 1, 1]
