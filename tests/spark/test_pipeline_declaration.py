"""Declarations of pipelines: everything that is wrong is told before Spark starts, by file, line and key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw
from headwater.spark.pipeline.declaration import Declaration, TopicSink, TopicSource
from headwater.spark.pipeline.graph import Graph
from headwater.spark.pipeline.metrics import Metrics, MetricsFile, MetricsServer
from headwater.spark.pipeline.progress import BatchProgress, Summary
from headwater.spark.pipeline.sql import read_names

GOOD = """\
name: revenue
store: events
sources:
  orders:
    topic: orders
    start: latest
    limit: 1000
  prices: {csv: prices, schema: "item string, price double", static: true}
steps:
  parsed:
    sql: SELECT * FROM orders
    watermark: {column: timestamp, delay: 10 minutes}
    expect:
      keyed: {rule: "key IS NOT NULL", else: drop}
  priced:
    sql: |
      SELECT * FROM parsed p JOIN prices ON p.item = prices.item
sinks:
  totals:
    from: priced
    topic: totals
    mode: update
  archive: {from: parsed, parquet: archive}
trigger: 10s
retries: {times: 5, backoff: 500ms}
dead_letters: bad-orders
"""


def load(directory: Path, text: str, name: str = "revenue.yaml") -> Declaration:
    path = directory / name
    path.write_text(text)
    return hw.spark.Pipeline.load(path).declaration()


def problems(directory: Path, text: str, name: str = "revenue.yaml") -> list[str]:
    """Return the problems of a declaration, without the directory."""
    with pytest.raises(hw.InvalidPipeline) as caught:
        load(directory, text, name)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [str(problem).removeprefix(f"{directory}/") for problem in caught.value.problems]


def test_a_declaration_has_what_the_file_says(tmp_path: Path) -> None:
    declaration = load(tmp_path, GOOD)
    orders, totals = declaration.sources[0], declaration.sinks[0]
    assert isinstance(orders, TopicSource)
    assert isinstance(totals, TopicSink)
    assert (orders.store, orders.start) == (str(tmp_path / "events"), "latest")
    assert orders.options == {"topic": "orders", "maxOffsetsPerTrigger": "1000"}
    assert declaration.steps[1].inputs == ("parsed", "prices")
    assert (totals.topic, totals.mode, totals.line) == ("totals", "update", 19)
    assert (declaration.trigger.interval, declaration.retries.times, declaration.retries.pause(3)) == (10.0, 5, 2.0)
    assert declaration.checkpoint == tmp_path / "events" / "__checkpoints" / "revenue"
    assert (declaration.group, declaration.dead_letters) == ("revenue", "bad-orders")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("topic: totals", "topc: totals", "19: sinks.totals: needs one of the keys topic, by_topic, parquet"),
        ("from: priced", "form: priced", "19: sinks.totals: from is missing"),
        ("from: priced", "form: priced", "20: sinks.totals.form: there is no key 'form' here: did you mean from?"),
        (
            "from: priced",
            "from: prized",
            "20: sinks.totals.from: no source or step is named prized: did you mean priced?",
        ),
        ("trigger: 10s", "triger: 10s", "24: triger: there is no key 'triger' here: did you mean trigger?"),
        ("trigger: 10s", "trigger: often", "24: trigger: must be available-now, continuous, or a length of time"),
        ("FROM orders", "FROM ordrs", "11: steps.parsed.sql: no source or step is named ordrs: did you mean orders?"),
        ("FROM orders", "FROM priced", "11: steps.parsed.sql: priced is declared later: move this below it"),
        ("FROM orders", "FROM parsed", "11: steps.parsed.sql: a step cannot read itself"),
        ("limit: 1000", "limit: many", "7: sources.orders.limit: must be a whole number"),
        ("limit: 1000", "limit: 0", "7: sources.orders.limit: must be a whole number from 1"),
        ("start: latest", "start: lately", "6: sources.orders.start: a start"),
        ("topic: orders", "topic: orders\n    topics: [a]", "4: sources.orders: needs one of the keys topic, topics"),
        ("topic: orders", "topic: ''", "5: sources.orders.topic: must be text, and is empty"),
        (
            ', schema: "item string, price double"',
            "",
            "8: sources.prices: schema is missing: columns and types of the csv",
        ),
        ("static: true", "static: maybe", "8: sources.prices.static: must be true or false, not 'maybe'"),
        ("mode: update", "mode: updated", "22: sinks.totals.mode: cannot be 'updated': did you mean update?"),
        (
            "mode: update",
            "mode: complete",
            "22: sinks.totals.mode: cannot be complete: a topic can only be appended to",
        ),
        ("else: drop", "else: dropp", "14: steps.parsed.expect.keyed.else: cannot be 'dropp': did you mean drop?"),
        ("else: drop", "else: warn", "26: dead_letters: no row is ever dropped"),
        ('rule: "key IS NOT NULL", ', "", "14: steps.parsed.expect.keyed: rule is missing"),
        ("delay: 10 minutes", "dela: 10 minutes", "12: steps.parsed.watermark.dela: there is no key 'dela' here"),
        ("parquet: archive", "parquet: archive, mode: update", "23: sinks.archive.mode: cannot be update"),
        (
            "parquet: archive",
            "iceberg: archive, catalog: {warehouse: x}",
            "23: sinks.archive.iceberg: must be namespace.",
        ),
        ("parquet: archive", "iceberg: a.b", "23: sinks.archive: catalog is missing"),
        (
            "from: parsed, parquet: archive",
            "from: prices, parquet: archive",
            "23: sinks.archive.from: every source of prices is static",
        ),
        ("backoff: 500ms", "backoff: soon", "25: retries.backoff: must be a length of time such as"),
        ("topic: totals", "topic: __totals", "21: sinks.totals.topic: '__totals' cannot name a topic"),
        ("  priced:", "  priced-up:", "15: steps.priced-up: 'priced-up' cannot be a name here"),
        ("  priced:", "  orders:", "15: steps.orders: another source or step has this name already"),
        ("store: events\n", "", "3: sources.orders: store is missing"),
        ("store: events", "store: 'memory:'", "2: store: Spark's processes cannot see a store in memory"),
        ("name: revenue", "name: re/venue", "1: name: 're/venue' cannot name a pipeline"),
        (
            "dead_letters:",
            "checkpoint: s3://bucket/x\ndead_letters:",
            "26: checkpoint: must be a directory on this machine",
        ),
        ("    sql: SELECT * FROM orders", "    python: parse", "11: steps.parsed.python: must be module:function"),
        ("    sql: SELECT * FROM orders", "    python: m:parse", "10: steps.parsed: inputs is missing"),
        ("mode: update", "mode: update\n    mode: append", "23: sinks.totals.mode: is there twice, first in line 22"),
        ("steps:", "steps: [", ": is no YAML:"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert before in GOOD
    wrong = problems(tmp_path, GOOD.replace(before, after, 1))
    assert any(told in problem and problem.startswith("revenue.yaml:") for problem in wrong), wrong


def test_everything_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        GOOD.replace("limit: 1000", "limt: 1000").replace("FROM orders", "FROM ordrs").replace("topic: totals", "x: y")
    )
    lines = [int(problem.split(":")[1]) for problem in problems(tmp_path, text)]
    assert lines == sorted(lines)
    assert {7, 11, 19} <= set(lines)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "revenue.yaml:1: a pipeline is a mapping"),
        ("- a", "revenue.yaml:1: a pipeline is a mapping"),
        ("store: s", "revenue.yaml:1: sources is missing: a pipeline reads something and writes something"),
        ("sources: {a: {json: x, schema: i int}}\nsinks: {b: {from: a, console: true}}", ":1: checkpoint is missing"),
    ],
)
def test_what_is_no_pipeline_at_all(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in problem for problem in problems(tmp_path, text))


def test_toml_says_the_same(tmp_path: Path) -> None:
    text = """\
store = "events"

[sources]
orders = { topic = "orders" }

[steps.parsed]
sql = \"\"\"
SELECT *
FROM ordrs
\"\"\"
[sinks.copies]
from = "parsed"
tpic = "copies"
"""
    kinds = "topic, by_topic, parquet, delta, iceberg, console"
    assert problems(tmp_path, text, "revenue.toml") == [
        "revenue.toml:7: steps.parsed.sql: no source or step is named ordrs: did you mean orders?",
        f"revenue.toml:11: sinks.copies: needs one of the keys {kinds}: none of them is given",
    ]
    declaration = load(tmp_path, text.replace("ordrs", "orders").replace("tpic", "topic"), "revenue.toml")
    assert (declaration.name, declaration.sinks[0].line, declaration.steps[0].inputs) == ("revenue", 11, ("orders",))
    assert problems(tmp_path, "a = \n", "revenue.toml")[0].startswith("revenue.toml:1: is no TOML:")


def test_python_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # one file after the other, of one second and one size
    text = """\
import headwater as hw
pipeline = hw.spark.Pipeline("revenue", store="events")
pipeline.source("orders", topic="orders")

@pipeline.step("orders")
def parsed(orders):
    return orders

pipeline.sql("good", "SELECT * FROM parsed")
pipeline.sink("copies", "goood", topic="copies")
"""
    [problem] = problems(tmp_path, text, "revenue.py")
    assert problem == "revenue.py:10: sinks.copies.from: no source or step is named goood: did you mean good?"
    declaration = load(tmp_path, text.replace("goood", "good"), "revenue.py")
    assert [step.inputs for step in declaration.steps] == [("orders",), ("parsed",)]
    assert "must make exactly one Pipeline" in problems(tmp_path, "x = 1\n", "revenue.py")[0]
    assert problems(tmp_path, "x = (\n", "revenue.py")[0].startswith("revenue.py:1: is not valid Python:")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select x from `a` as y, b z where x in (select k from c)", ["a", "b", "c"]),
        ("WITH t AS (SELECT * FROM a) SELECT * FROM t LEFT JOIN b USING (k)", ["a", "b"]),
        ("SELECT extract(year FROM time), trim(BOTH 'x' FROM s) FROM a -- FROM b\n", ["a"]),
        ("SELECT x IS NOT DISTINCT FROM y, 'FROM c' FROM a /* JOIN b */", ["a"]),
        ("SELECT * FROM db.table JOIN range(3) JOIN a ON true", ["a"]),
        ("SELECT window(ts, '1 minute'), count(*) FROM (SELECT * FROM a) GROUP BY 1", ["a"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["a", "b"]),
    ],
)
def test_what_a_query_reads_is_found_without_spark(query: str, names: list[str]) -> None:
    assert read_names(query) == names


def test_the_graph_is_drawn(tmp_path: Path) -> None:
    graph = Graph(load(tmp_path, GOOD))
    assert [(gutter, vertex.name) for gutter, vertex in graph.text()] == [
        ("●", "orders"),
        ("└─○", "parsed"),
        ("  ├─▶", "archive"),
        ("  ├─▶", "__dead_letters"),
        ("● │", "prices"),
        ("└─┴─○", "priced"),
        ("    └─▶", "totals"),
    ]
    assert '"parsed" -> "sink archive";' in graph.dot()
    assert graph.mermaid().startswith('flowchart LR\n  n0[("orders<br/>topic orders, from latest")]')


def test_metrics_are_served_and_written(tmp_path: Path) -> None:
    from urllib.request import urlopen

    metrics = MetricsFile('re"venue', tmp_path / "metrics.prom")
    server = MetricsServer(metrics.text, 0)
    try:
        metrics.started(["totals"])
        batch = BatchProgress(
            sink="totals", number=3, at="", rows=7, seconds=0.5, lag=2, state_rows=1, state_bytes=9, watermark=None,
            violations={"parsed.keyed": 4},
        )  # fmt: skip
        metrics.batch(batch)
        metrics.batch(batch)
        metrics.failed("totals", 1, "no", 1.0)
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as response:
            served = response.read().decode()
        assert 'headwater_pipeline_rows_total{pipeline="re\\"venue",sink="totals"} 14\n' in served
        assert 'headwater_pipeline_violations_total{pipeline="re\\"venue",step="parsed",rule="keyed"} 8\n' in served
        assert 'headwater_pipeline_failures_total{pipeline="re\\"venue",sink="totals"} 1\n' in served
        assert 'headwater_pipeline_running{pipeline="re\\"venue"} 1\n' in served
        metrics.ended(Summary("revenue", {}))
        assert (tmp_path / "metrics.prom").read_text() == Metrics.text(metrics)
        assert 'running{pipeline="re\\"venue"} 0\n' in metrics.text()
    finally:
        server.close()


def test_a_store_that_is_not_there_is_told_before_spark_starts_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "revenue.yaml"
    path.write_text(GOOD)
    refused = hw_pipeline("run", str(path))
    assert refused.returncode == 1
    assert f"directory {tmp_path / 'events'} does not exist" in refused.stderr
    assert not (tmp_path / "events").exists()


WITHOUT_SPARK = """\
import sys
sys.modules["pyspark"] = None
from headwater.cli import main
sys.argv = ["hw", "pipeline", *sys.argv[1:]]
main()
"""


def hw_pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`hw pipeline` where PySpark cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_SPARK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_status_and_reset_need_no_spark(tmp_path: Path) -> None:
    path = tmp_path / "revenue.yaml"
    path.write_text(GOOD)
    with hw.open(tmp_path / "events") as store:
        orders = store.create_topic("orders")
        with store.producer("orders") as out:
            for _ in range(5):
                out.send(b"tea")
        partition = hw.TopicPartition("orders", 0)
        store.group("revenue").commit(None, {partition: hw.Commit((orders.info.uuid, 0), 3)})
        status = hw_pipeline("status", str(path))
        assert status.returncode == 0, status.stderr
        report = json.loads(status.stdout)
        assert (report["running"], report["lag"], report["last_run"]) == (False, 2, None)
        assert report["sinks"] == {"totals": None, "archive": None, "__dead_letters": None}
        declined = hw_pipeline("reset", str(path))
        assert "Give --yes to go ahead" in declined.stderr
        assert store.group("revenue").committed()[orders.info.uuid, 0].offset == 3
        done = hw_pipeline("reset", "--yes", str(path))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"reset": "revenue", "removed": []}
        for name in ("archive", ".archive.headwater"):
            (tmp_path / name).mkdir()
        assert hw_pipeline("reset", "--yes", "--tables", str(path)).returncode == 0
        assert not [entry for entry in tmp_path.iterdir() if "archive" in entry.name]
        assert store.group("revenue").committed()[orders.info.uuid, 0].offset == 0


def test_validate_and_explain_need_no_spark(tmp_path: Path) -> None:
    path = tmp_path / "revenue.yaml"
    path.write_text(GOOD)
    validated = hw_pipeline("validate", str(path))
    assert validated.returncode == 0, validated.stderr
    assert [len(json.loads(validated.stdout)[kind]) for kind in ("sources", "steps", "sinks")] == [2, 2, 2]
    drawn = hw_pipeline("explain", str(path))
    assert "└─▶ totals" in drawn.stdout
    parts = {
        (part["kind"], part["name"]) for part in json.loads(hw_pipeline("explain", "--json", str(path)).stdout)["parts"]
    }
    assert {("source", "orders"), ("step", "parsed"), ("sink", "totals")} <= parts
    path.write_text(GOOD.replace("FROM orders", "FROM ordrs").replace("limit", "limt"))
    refused = hw_pipeline("validate", str(path))
    assert refused.returncode == 1
    assert refused.stderr.replace(f"{tmp_path}/", "").splitlines() == [
        "revenue.yaml:7: sources.orders.limt: there is no key 'limt' here: did you mean limit?",
        "revenue.yaml:11: steps.parsed.sql: no source or step is named ordrs: did you mean orders?",
    ]
