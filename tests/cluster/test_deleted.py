"""A topic of a cluster is deleted while a broker is at work on it: that says nothing about the broker."""

from __future__ import annotations

import threading
import time

import pytest

import headwater as hw
from headwater.cluster.replication.durable_log import DurableLog
from tests.support.backends import SharedCluster, clustered
from tests.support.etcd_server import needs_etcd

pytestmark = needs_etcd
_PATIENCE = 300.0


def test_a_broker_that_was_about_to_lead_it_stays_who_it_is(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the directory gone in the middle of it, because another topic has got the name."""
    lead = DurableLog.lead
    removed, tried = threading.Event(), threading.Event()

    def late(log: DurableLog, epoch: int) -> None:
        if log.partition.path.parent.name != "orders" or tried.is_set():
            lead(log, epoch)
            return
        removed.wait(_PATIENCE)
        try:
            lead(log, epoch)
        finally:
            tried.set()

    monkeypatch.setattr(DurableLog, "lead", late)
    before = _incarnations(cluster)
    with hw.open(f"hw://{cluster.brokers[0].address}") as store:
        store.create_topic("orders")
        uuids = {store.describe_topic("orders").uuid}
        store.delete_topic("orders")
        store.create_topic("orders")
        uuids.add(store.describe_topic("orders").uuid)
        assert len(uuids) == 2
        removed.set()
        assert tried.wait(_PATIENCE)
        with store.producer("orders") as out:
            out.send(b"to the new one")
        time.sleep(0.5)  # whoever resigns does so in the meantime
        assert [record.value for record in store.topic("orders").partition(0).records()] == [b"to the new one"]
    assert _incarnations(cluster) == before


def _incarnations(cluster: SharedCluster) -> list[int]:
    return [clustered(broker).node.membership.registration.incarnation for broker in cluster.brokers]
