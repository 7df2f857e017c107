"""Permissions that a cluster keeps: all brokers go by them, and of tokens there is nothing but hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater.broker.security.tokens import create_token, read_tokens, tokens_beside
from headwater.client.credentials import Credentials
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.support.etcd_server import needs_etcd
from tests.support.patience import Patience
from tests.support.processes import hw as command

pytestmark = needs_etcd


def look_again_and_again(address: str, token: str) -> None:
    """Until that is refused: another broker hears of it a moment later."""
    patience = Patience(PATIENCE)
    with hw.open(address, token=token) as store:
        while not patience.exhausted():
            store.topics()


def test_a_manifest_says_for_all_brokers_who_may_do_what(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(
        'users:\n  operator:\n    topics: {"*": [read, write, admin]}\n    broker: [read, admin]\n  nobody: {}\n'
    )
    operator = create_token(tokens_beside(access), "operator")
    elsewhere = tmp_path / "elsewhere.tokens"
    billing = create_token(elsewhere, "billing")
    ((identity, kept),) = read_tokens(elsewhere).items()
    with ClusterProcesses(tmp_path / "cluster", 2, "--access", str(access)) as cluster:
        file = tmp_path / "manifest.json"
        wanted: dict[str, Any] = {
            "topics": {"orders": {"partitions": 2, "replication": 2}, "secret": {}},
            "permissions": {
                "users": {
                    "billing": {"topics": {"orders": ["read", "write"]}},
                    "nobody": {"broker": ["admin"]},  # the file says otherwise, and goes first
                },
                "tokens": {identity: {key: value for key, value in kept._asdict().items() if key != "id"}},
            },
        }
        file.write_text(json.dumps(wanted))
        told = command("cluster", "apply", file, cluster.address, HEADWATER_CLIENT_TOKEN=operator)
        assert told.returncode == 0, told.stderr
        assert [(entry["kind"], entry["name"]) for entry in json.loads(told.stdout)["applied"]] == [
            ("topic", "orders"),
            ("topic", "secret"),
            ("user", "billing"),
            ("user", "nobody"),
            ("token", identity),
        ]
        for broker in cluster.brokers.values():
            with hw.open(f"hw://{broker.address}", token=billing) as store:
                patience = Patience(PATIENCE)
                while True:  # another broker hears of it a moment later
                    try:
                        with store.producer("orders") as out:
                            out.send(b"one")
                        break
                    except hw.Unauthenticated:
                        assert not patience.exhausted()
                with pytest.raises(hw.UnknownTopic):
                    store.topic("secret")
                with pytest.raises(hw.PermissionDenied):
                    store.delete_topic("orders")
        again = command("cluster", "apply", file, cluster.address, HEADWATER_CLIENT_TOKEN=operator)
        assert (again.returncode, json.loads(again.stdout)["applied"]) == (0, [])
        exported = command("cluster", "export", cluster.address, "--format", "json", HEADWATER_CLIENT_TOKEN=operator)
        manifest = json.loads(exported.stdout)
        assert set(manifest["brokers"]) == {"0", "1"}
        assert manifest["topics"]["orders"] == wanted["topics"]["orders"]
        assert manifest["permissions"]["users"] == wanted["permissions"]["users"]
        assert billing.split("_", 2)[2] not in exported.stdout, "of a token there is only a hash"
        refused = command("cluster", "export", cluster.address, HEADWATER_CLIENT_TOKEN=billing)
        assert refused.returncode == 1

        del wanted["permissions"]["tokens"][identity]
        file.write_text(json.dumps(wanted))
        pruned = command("cluster", "apply", file, cluster.address, "--prune", HEADWATER_CLIENT_TOKEN=operator)
        assert (pruned.returncode, "--yes" in pruned.stderr) == (1, True)
        command("cluster", "apply", file, cluster.address, "--prune", "--yes", HEADWATER_CLIENT_TOKEN=operator)
        for broker in cluster.brokers.values():
            with pytest.raises(hw.Unauthenticated):
                look_again_and_again(f"hw://{broker.address}", billing)


def test_nobody_writes_what_a_cluster_keeps_for_itself(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(
        'users:\n  operator:\n    topics: {"*": [read, write, admin], "__groups": [read, write, admin]}\n'
    )
    credentials = Credentials(token=create_token(tokens_beside(access), "operator"))
    with ClusterProcesses(tmp_path / "cluster", 1, "--access", str(access)) as cluster:
        (broker,) = cluster.brokers.values()
        with grpc.insecure_channel(broker.address) as channel:
            for topic, code in (
                ("__groups", grpc.StatusCode.PERMISSION_DENIED),
                ("orders", grpc.StatusCode.NOT_FOUND),
            ):
                request = pb.ProduceRequest(topic=topic, records=[pb.Record(value=b"forged")])
                with pytest.raises(grpc.RpcError) as refusal:
                    Stub(channel).Produce(request, metadata=credentials.metadata, wait_for_ready=True)
                assert isinstance(refusal.value, grpc.Call)
                assert refusal.value.code() is code
