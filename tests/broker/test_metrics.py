"""A broker's metrics: what was done is counted, and the dashboard and the alerts ask for nothing that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

import headwater as hw
from headwater.broker import Broker
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\b(?:headwater|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that has done a bit of everything."""
    with hw.open("memory:") as store:
        store.create_topic("orders", partitions=2)
        store.create_topic('odd-"name"'.replace('"', ""))
        with Broker(store, BrokerConfig(broker_id=7), listen=Address("127.0.0.1", 0)) as broker:
            with grpc.insecure_channel(str(broker.address)) as channel:
                use(Stub(channel))
            yield broker


def use(stub: Any) -> None:
    records = [pb.Record(key=str(number).encode(), value=b"x" * 100) for number in range(10)]
    stub.Produce(pb.ProduceRequest(topic="orders", records=records), timeout=300)
    member = stub.JoinGroup(pb.JoinGroupRequest(group="billing", topics=["orders"]), timeout=300).member_id
    poll = pb.PollRequest(group="billing", member_id=member, max_records=100)
    polled = stub.Poll(poll, timeout=300).partitions
    positions = [pb.Advance(topic=partition.topic, partition=partition.partition, offset=1) for partition in polled]
    stub.Commit(pb.CommitRequest(group="billing", member_id=member, positions=positions), timeout=300)
    position = pb.FetchPosition(partition=pb.TopicPartition(topic="orders"), offset=0)
    stub.Fetch(pb.FetchRequest(positions=[position]), timeout=300)
    with pytest.raises(grpc.RpcError):
        stub.DescribeTopic(pb.DescribeTopicRequest(name="nothing"), timeout=300)


def values(text: str) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_calls_are_counted_by_method_and_code(broker: Broker) -> None:
    samples = values(broker.metrics())
    assert samples['headwater_broker_requests_total{method="Produce",code="OK"}'] == 1
    assert samples['headwater_broker_requests_total{method="DescribeTopic",code="NOT_FOUND"}'] == 1
    assert samples['headwater_broker_request_seconds_count{method="Produce"}'] == 1
    assert samples['headwater_broker_request_seconds_bucket{method="Produce",le="+Inf"}'] == 1
    assert samples['headwater_broker_request_seconds_sum{method="Produce"}'] > 0


def test_records_bytes_and_lag_are_told(broker: Broker) -> None:
    samples = values(broker.metrics())
    assert samples["headwater_broker_produced_records_total"] == 10
    assert samples["headwater_broker_produced_bytes_total"] >= 1000
    assert samples["headwater_broker_fetched_bytes_total"] > 0
    assert samples['headwater_topic_records_total{topic="orders"}'] == 10
    assert samples['headwater_topic_unhealthy{topic="orders"}'] == 0
    assert samples['headwater_group_lag_records{group="billing",topic="orders"}'] == 8
    assert samples['headwater_group_members{group="billing"}'] == 1
    assert samples['headwater_broker_in_flight_bytes{of="requests"}'] == 0
    assert samples["process_resident_memory_bytes"] > 1 << 20
    assert samples[f'headwater_broker_info{{version="{hw.__version__}",id="7"}}'] == 1


def test_every_line_is_one_that_prometheus_reads(broker: Broker) -> None:
    sample = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? -?[0-9.e+-]+')
    families: set[str] = set()
    for line in broker.metrics().splitlines():
        if line.startswith("# "):
            families.add(line.split()[2])
            continue
        assert sample.fullmatch(line), line
        assert re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0].split()[0]) in families


@pytest.mark.parametrize("file", sorted([*DEPLOY.glob("grafana/*.json"), *DEPLOY.glob("prometheus/*.yaml")]), ids=str)
def test_what_is_asked_for_is_told(broker: Broker, file: Path) -> None:
    content = file.read_text(encoding="utf-8")
    told = {name.partition("{")[0] for name in values(broker.metrics())}
    assert {name for name in NAME.findall(expressions(file, content)) if name not in told} == set()


def expressions(file: Path, content: str) -> str:
    """Everything in a file that asks for metrics."""
    if file.suffix == ".json":
        document = json.loads(content)
        asked = [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]
        return "\n".join([*asked, *(variable.get("definition", "") for variable in document["templating"]["list"])])
    return "\n".join(rule["expr"] for group in yaml.safe_load(content).get("groups", []) for rule in group["rules"])


def test_the_dashboard_shows_every_metric(broker: Broker) -> None:
    asked = {name for file in DEPLOY.glob("grafana/*.json") for name in NAME.findall(file.read_text(encoding="utf-8"))}
    asked |= {
        name for file in DEPLOY.glob("prometheus/*.yaml") for name in NAME.findall(file.read_text(encoding="utf-8"))
    }
    told = {line.split()[2] for line in broker.metrics().splitlines() if line.startswith("# TYPE")}
    unused = told - {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert unused == {
        "headwater_broker_started_seconds",
        "headwater_broker_draining",
        "headwater_broker_scrubbed_segments_total",
        "headwater_broker_scrubbed_bytes_total",
        "headwater_topic_damaged_total",
    }


def test_panels_of_the_dashboard_do_not_lie_over_one_another() -> None:
    for file in DEPLOY.glob("grafana/*.json"):
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            grid = panel["gridPos"]
            cells = {
                (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
            }
            assert not cells & taken
            assert grid["x"] + grid["w"] <= 24
            taken |= cells
