"""Manifests: what is read, what is different, and that applying twice changes nothing; on a single broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.broker.manifest import ClusterManifest, Difference, ManifestTopic, differences, read_manifest
from headwater.cli.cluster.manifest import _Target, apply_manifest
from headwater.client.credentials import Credentials
from headwater.core.columns import read_columns, write_columns
from headwater.core.schema import Schema
from tests.support.broker import served
from tests.support.processes import hw as command

ORDERS = """
topics:
  orders:
    partitions: 2
    config:
      retention_age: 7d
    schema:
      id: int64 not null
      amount: decimal128(12, 2)
  plain: {}
permissions:
  users:
    billing:
      topics: {orders.*: read}
      broker: [admin, read]
brokers:
  1: {address: "10.0.0.1:6174"}
  2:
"""


def manifest(directory: Path, text: str, name: str = "cluster.yaml") -> ClusterManifest:
    (directory / name).write_text(text)
    return read_manifest(directory / name)


# Columns.


@pytest.mark.parametrize(
    "kind",
    [
        *(
            pa.int64(),
            pa.string(),
            pa.bool_(),
            pa.float32(),
            pa.date32(),
            pa.binary(),
            pa.large_string(),
            pa.binary(16),
        ),
        *(pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.time64("us"), pa.duration("s")),
        *(pa.decimal128(12, 2), pa.decimal256(50, -3), pa.list_(pa.int64()), pa.large_list(pa.string())),
        *(pa.list_(pa.float32(), 3), pa.map_(pa.string(), pa.list_(pa.int32()))),
        pa.list_(pa.field("item", pa.int64(), nullable=False)),
        pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.struct([("c", pa.timestamp("s"))]))]),
        pa.struct([("odd, <name>: here", pa.int64())]),
        pa.list_(pa.field("other name", pa.int64())),
    ],
    ids=str,
)
def test_a_schema_is_the_same_after_it_was_written(kind: Any) -> None:
    schema = Schema(pa.schema([pa.field("one", kind), pa.field("two", kind, nullable=False)]))
    written = write_columns(schema)
    assert read_columns(json.loads(json.dumps(written))) == schema
    assert written["two"].endswith(" not null") or written["two"].startswith("arrow:")


@pytest.mark.parametrize(
    "text", ["", "integer", "list<", "list<int64", "struct<>", "decimal128(1)", "int64 null", "map<int64>"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(hw.SchemaError, match="is no type"):
        read_columns({"one": text})


# Reading.


def test_a_manifest_is_the_same_in_yaml_and_json_and_after_it_was_written(tmp_path: Path) -> None:
    parsed = manifest(tmp_path, ORDERS)
    assert parsed.topics is not None
    assert parsed.topics["orders"].options == {"retention_age": "7d"}
    assert parsed.topics["orders"].schema is not None
    assert parsed.users == {"billing": {"topics": {"orders.*": ["read"]}, "broker": ["read", "admin"]}}
    assert parsed.brokers == {1: "10.0.0.1:6174", 2: None}
    (tmp_path / "same.json").write_text(json.dumps(parsed.document(), indent="\t"))
    assert read_manifest(tmp_path / "same.json") == parsed


def test_what_is_wrong_is_told_with_line_and_key_and_all_at_once(tmp_path: Path) -> None:
    wrong = """topics:
  orders:
    partitions: none
    confg: {}
    config:
      retention_age: long
      retention: 7d
    schema: {id: integer}
  bad name: {}
permissions:
  users:
    billing: {topics: {orders: own}}
  tokens: {abc: {user: x}}
brokers: {one: {}}
topic: {}
"""
    with pytest.raises(hw.InvalidFile) as raised:
        manifest(tmp_path, wrong)
    assert [(problem.line, problem.key) for problem in raised.value.problems] == [
        (3, "topics.orders.partitions"),
        (4, "topics.orders.confg"),
        (6, "topics.orders.config.retention_age"),
        (7, "topics.orders.config.retention"),
        (8, "topics.orders.schema.id"),
        (9, "topics.bad name"),
        (12, "permissions.users.billing.topics.orders"),
        (13, "permissions.tokens.abc"),
        (14, "brokers"),
        (15, "topic"),
    ]
    told = command("cluster", "apply", tmp_path / "cluster.yaml")
    assert told.returncode == 1
    assert told.stderr.splitlines() == [f"hw: {problem}" for problem in raised.value.problems], "a line for each"
    with pytest.raises(hw.InvalidFile) as raised:
        manifest(tmp_path, '{\n"topics": {\n\t"orders": {"partitions": 0}\n}\n}', "cluster.json")
    assert [(problem.line, problem.key) for problem in raised.value.problems] == [(3, "topics.orders.partitions")]


# Comparing.


def test_differences_are_named_and_what_cannot_be_done_says_why() -> None:
    narrow = read_columns({"id": "int64"})
    running = ClusterManifest(
        topics={
            "same": ManifestTopic(3, 2, {"retention_age": "7d", "sync": "always"}),
            "grows": ManifestTopic(3, 2, {"retention_age": "7d"}),
            "shrinks": ManifestTopic(3, 2),
            "typed": ManifestTopic(1, 2, {}, narrow),
            "other": ManifestTopic(1, 2),
        },
        users={"gone": {}, "changed": {"broker": ["read"]}},
        brokers={1: "a:1", 3: "c:1"},
    )
    wanted = ClusterManifest(
        topics={
            "same": ManifestTopic(options={"retention_age": "7d"}),
            "grows": ManifestTopic(6, 2, {"retention_age": "1d"}),
            "shrinks": ManifestTopic(2, 3),
            "typed": ManifestTopic(schema=read_columns({"id": "string"})),
            "new": ManifestTopic(2, 2),
            "more": ManifestTopic(2, 3),
        },
        users={"changed": {"broker": ["admin"]}},
        brokers={1: None, 2: None},
    )
    steps = differences(wanted, running)
    assert [(step.kind, step.name, step.action, bool(step.problem)) for step in steps] == [
        ("broker", "2", "add", True),
        ("topic", "grows", "change", False),
        ("topic", "shrinks", "change", True),
        ("topic", "typed", "change", True),
        ("topic", "new", "add", False),
        ("topic", "more", "add", True),
        ("user", "changed", "change", False),
        ("broker", "3", "remove", True),
        ("topic", "other", "remove", False),
        ("user", "gone", "remove", False),
    ]
    assert steps[1].details == ("partitions: 3 → 6", "retention_age: 7d → 1d")
    with pytest.raises(hw.InvalidConfiguration, match="describes cluster 'a', but this is cluster 'b'"):
        differences(ClusterManifest(cluster="a"), ClusterManifest(cluster="b"))


# A single broker.


def test_a_single_broker_becomes_what_a_manifest_says_and_is_exported_as_it_is(tmp_path: Path) -> None:
    wanted = manifest(tmp_path, ORDERS)
    with served(tmp_path / "store") as broker:
        broker.store.create_topic("old")

        def applied(which: ClusterManifest, **options: Any) -> list[Difference]:
            return apply_manifest(which, [broker.broker.address], Credentials(), confirm=False, **options)

        def exported() -> ClusterManifest:
            with _Target([broker.broker.address], Credentials()) as target:
                return target.running()

        before = exported()
        blocked = applied(wanted, dry_run=True)
        assert {(step.kind, step.name) for step in blocked} == {("broker", "1"), ("broker", "2"), ("user", "billing")}
        assert exported() == before, "a dry run does nothing"
        applied(wanted)
        once = exported()
        assert once.topics is not None
        assert set(once.topics) == {"orders", "plain", "old"}
        assert once.topics["orders"].schema == (wanted.topics or {})["orders"].schema
        assert once.users is None, "who keeps no permissions has none to tell of"
        document = once.document()["topics"]["orders"]
        assert document["config"] == {"retention_age": "7d"}
        applied(wanted)
        assert exported() == once
        assert not differences(manifest(tmp_path, json.dumps(once.document()), "again.json"), once)

        assert not applied(ClusterManifest(topics={"orders": ManifestTopic(4, schema=read_columns(
            {"id": "int64 not null", "amount": "decimal128(12, 2)", "note": "string"}))}), prune=True)  # fmt: skip
        assert broker.store.topics() == ["orders"]
        assert broker.store.describe_topic("orders").partitions == 4
