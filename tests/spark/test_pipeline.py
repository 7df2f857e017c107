"""Pipelines, run: what they write is what a plain program would, once, whatever happens on the way."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import headwater as hw
from headwater.spark.pipeline.declaration import TableSink
from headwater.spark.pipeline.position import PipelinePosition
from headwater.spark.pipeline.progress import BatchProgress
from headwater.spark.pipeline.state import PipelineState
from headwater.spark.pipeline.status import PipelineStatus, streamed_stores
from tests.spark.pipelines import Pipelines, send, values

MINUTE = 60_000_000_000


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the sink's commit and before it noted that: the batch is done again."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)


def test_files_through_sql_and_python_to_a_topic_then_on_from_there_and_anew(
    store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("tea,2\ncoffee,3\n")
    (tmp_path / "names.json").write_text('{"item": "tea", "title": "Tea"}\n')
    (tmp_path / "shaping.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "def _suffixed(text):\n    return text + '!'\n"
        "def louder(frame, names):\n"
        "    joined = frame.join(names, 'item', 'left')\n"
        "    return joined.select(udf(_suffixed)('item').alias('item'), 'amount', 'title')\n"
    )
    pipeline = pipelines.load("""
sources:
  sold: {csv: in, schema: "item string, amount int"}
  names: {json: names.json, schema: "item string, title string", static: true}
steps:
  doubled: {sql: "SELECT item, amount * 2 AS amount FROM sold"}
  loud: {python: "shaping:louder", inputs: [doubled, names]}
sinks:
  out: {from: loud, topic: typed, partitions: 2}
""")
    summary = pipelines.run(pipeline)
    assert (summary.sinks["out"].rows, summary.sinks["out"].failures) == (2, 0)
    (tmp_path / "in" / "b.csv").write_text("milk,1\n")
    pipelines.run(pipeline)
    rows = store.topic("typed").scan(columns=["item", "amount", "title"]).read_all().to_pylist()
    expected = [("coffee!", 6, None), ("milk!", 2, None), ("tea!", 4, "Tea")]
    assert sorted((row["item"], row["amount"], row["title"]) for row in rows) == expected

    PipelineState(pipeline.declaration()).reset()
    pipelines.run(pipeline)
    assert store.topic("typed").scan().read_all().num_rows == 6


def test_windows_with_a_watermark_to_a_topic_and_to_parquet_as_a_plain_program_has_them(
    spark: SparkSession, store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    sales = store.create_topic("sales", 2, schema=pa.schema([("item", pa.string()), ("n", pa.int64())]))
    store.create_topic("totals")
    model: dict[tuple[int, str], int] = defaultdict(int)
    with store.producer("sales") as out:
        for number in range(60):
            at = (number * 17 % 600) * 1_000_000_000
            item = ("tea", "coffee", "milk")[number % 3]
            out.send({"item": item, "n": number}, key=item.encode(), timestamp=at)
            model[at // MINUTE, item] += number
        out.send({"item": "end", "n": 0}, timestamp=100 * MINUTE)  # closes every window before it
    pipeline = pipelines.load("""
sources:
  sales: {topic: sales, watermark: {column: _timestamp, delay: 30min}}
steps:
  totals:
    sql: >
      SELECT cast(unix_seconds(window.start) / 60 AS int) AS minute, item, sum(n) AS total
      FROM sales GROUP BY window(_timestamp, '1 minute'), item
  lines:
    sql: SELECT item AS key, concat_ws(' ', minute, item, total) AS value FROM totals
sinks:
  totals: {from: lines, topic: totals}
  table: {from: totals, parquet: table, partition_by: item}
""")
    summary = pipelines.run(pipeline)
    lines = sorted(f"{minute} {item} {total}" for (minute, item), total in model.items())
    assert values(store, "totals") == lines
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert {(row.minute, row["item"]): row.total for row in rows} == model
    assert len(rows) == len(model)

    status = PipelineStatus.of(pipeline.declaration())
    assert (status.lag, status.running, status.last_error) == (0, False, None)
    assert status.last_run is not None
    assert status.last_run["sinks"]["totals"]["rows"] == summary.sinks["totals"].rows
    ends = {number: bounds.end for number, bounds in sales.bounds().items()}
    committed = store.group("pipeline").committed()
    assert {number: committed[sales.info.uuid, number].offset for number in ends} == ends


RULES = """
sources:
  numbers: {{topic: numbers, limit: 10}}
steps:
  good:
    sql: SELECT key, cast(value AS string) AS value FROM numbers
    expect:
      even: {{rule: "value % 2 = 0", else: drop}}
      small: {{rule: "value < 15"}}
      sane: {{rule: "value < {most}", else: fail}}
sinks:
  out: {{from: good, topic: good}}
  more: {{from: good, topic: more}}
dead_letters: bad
retries: {{times: 1, backoff: 1ms}}
"""


def test_rows_that_break_rules_are_counted_dropped_to_dead_letters_or_end_the_pipeline(
    store: hw.Store, pipelines: Pipelines
) -> None:
    for name in ("numbers", "good", "more"):
        store.create_topic(name)
    send(store, "numbers", 0, 20)
    pipeline = pipelines.load(RULES.format(most=1000))
    seen: list[BatchProgress] = []

    class Seen:
        def started(self, sinks: list[str]) -> None: ...
        def batch(self, batch: BatchProgress) -> None:
            seen.append(batch)

        def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None: ...
        def ended(self, summary: object) -> None: ...

    summary = pipelines.run(pipeline, observers=[Seen()])
    even = sorted(str(number) for number in range(0, 20, 2))
    assert (values(store, "good"), values(store, "more")) == (even, even)
    assert summary.violations == {"good.even": 10, "good.small": 5, "good.sane": 0}
    counted = {batch.number: batch.violations["good.small"] for batch in seen if batch.sink == "out"}
    assert counted == {0: 0, 1: 5}
    letters = list(store.topic("bad").partition(0).records())
    assert sorted(int(json.loads(letter.value or b"")["value"]) for letter in letters) == list(range(1, 20, 2))
    assert {letter.headers["headwater-rules"] for letter in letters if letter.headers} == {b"even"}
    assert {letter.key for letter in letters} == {b"%d" % number for number in range(1, 20, 2)}

    send(store, "numbers", 20, 23)
    with pytest.raises(hw.ExpectationFailed, match=r"good\.sane: a row breaks the rule value < 21: .*\"21\""):
        pipelines.run(pipelines.load(RULES.format(most=21)))
    assert PipelineStatus.of(pipeline.declaration()).last_error is not None
    assert values(store, "good") == even
    pipelines.run(pipeline)
    assert values(store, "good") == sorted([*even, "20", "22"])
    assert store.topic("bad").bounds()[0].end == 11


def test_tables_and_topics_see_a_batch_that_is_done_again(
    store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog

    for name in ("numbers", "copies"):
        store.create_topic(name)
    send(store, "numbers", 0, 10)
    pipeline = pipelines.load("""
sources:
  numbers: {topic: numbers, limit: 6}
sinks:
  delta: {from: numbers, delta: lake}
  iceberg: {from: numbers, iceberg: db.numbers, catalog: {warehouse: ice}}
  copies: {from: numbers, topic: copies}
""")
    pipelines.run(pipeline)
    declaration = pipeline.declaration()
    for name in ("delta", "iceberg", "copies"):
        forget_last_commit(declaration.checkpoint / "queries" / name)
    summary = pipelines.run(pipeline)
    assert {name: sink.rows for name, sink in summary.sinks.items()} == {"delta": 4, "iceberg": 4, "copies": 4}
    assert DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().num_rows == 10
    sink = declaration.sinks[1]
    assert isinstance(sink, TableSink)
    catalog = load_catalog("default", **dict(sink.catalog))
    assert sorted(catalog.load_table("db.numbers").scan().to_arrow()["offset"].to_pylist()) == list(range(10))
    assert values(store, "copies") == sorted(map(str, range(10)))


def test_a_lost_checkpoint_is_an_error_and_a_reset_is_not(store: hw.Store, pipelines: Pipelines) -> None:
    for name in ("numbers", "copies"):
        store.create_topic(name)
    send(store, "numbers", 0, 3)
    pipeline = pipelines.load("""
sources: {numbers: {topic: numbers}}
sinks:
  copies: {from: numbers, topic: copies}
retries: {times: 0}
""")
    pipelines.run(pipeline)
    declaration = pipeline.declaration()
    (declaration.checkpoint / "queries").rename(declaration.checkpoint / "lost")
    with pytest.raises(hw.PipelineFailed, match="WriterTaken"):
        pipelines.run(pipeline)
    assert values(store, "copies") == ["0", "1", "2"]
    PipelineState(declaration).reset()
    position = PipelinePosition(declaration.group, streamed_stores(declaration))
    position.rewind()
    position.close()
    assert PipelineStatus.of(declaration).lag == 3
    for _ in range(2):
        pipelines.run(pipeline)
    assert values(store, "copies") == ["0", "0", "1", "1", "2", "2"]
    assert PipelineStatus.of(declaration).lag == 0


def test_a_continuous_pipeline_ends_when_asked_to_and_only_one_runs(store: hw.Store, pipelines: Pipelines) -> None:
    for name in ("numbers", "copies"):
        store.create_topic(name)
    send(store, "numbers", 0, 3)
    pipeline = pipelines.load("""
sources: {numbers: {topic: numbers, start: latest}}
sinks:
  copies: {from: numbers, topic: copies}
trigger: continuous
""")
    stop, started, written = threading.Event(), threading.Event(), threading.Event()

    class Signals:
        def started(self, sinks: list[str]) -> None:  # noqa: ARG002
            started.set()

        def batch(self, batch: BatchProgress) -> None:
            if batch.rows:
                written.set()

        def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None: ...
        def ended(self, summary: object) -> None: ...

    summaries = []
    thread = threading.Thread(
        target=lambda: summaries.append(pipelines.run(pipeline, observers=[Signals()], stop=stop)), daemon=True
    )
    thread.start()
    try:
        assert started.wait(900)
        assert PipelineStatus.of(pipeline.declaration()).running
        with pytest.raises(hw.PipelineRunning):
            pipelines.run(pipeline)
        send(store, "numbers", 3, 6)
        assert written.wait(900)
    finally:
        stop.set()
        thread.join(900)
    assert not thread.is_alive()
    assert summaries[0].stopped
    assert values(store, "copies") == ["3", "4", "5"]
    assert not PipelineStatus.of(pipeline.declaration()).running


def test_a_sink_that_fails_is_started_again_and_others_go_on(
    store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    for name in ("numbers", "copies", "others"):
        store.create_topic(name)
    send(store, "numbers", 0, 5)
    gate = tmp_path / "gate"
    (tmp_path / "flaky.py").write_text(
        "from pathlib import Path\n"
        "from pyspark.sql.functions import udf\n"
        "def _passed(text):\n"
        f"    assert Path({str(gate)!r}).exists(), 'the gate is closed'\n"
        "    return text\n"
        "def gated(frame):\n"
        "    return frame.select('key', udf(_passed)(frame.value.cast('string')).alias('value'))\n"
    )
    pipeline = pipelines.load("""
sources: {numbers: {topic: numbers}}
steps: {gated: {python: "flaky:gated", inputs: numbers}}
sinks:
  copies: {from: gated, topic: copies}
  others: {from: numbers, topic: others}
retries: {times: 3, backoff: 1ms}
""")
    told: list[tuple[str, int]] = []

    class OpensTheGate:
        def started(self, sinks: list[str]) -> None: ...
        def batch(self, batch: BatchProgress) -> None: ...
        def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:  # noqa: ARG002
            told.append((sink, attempt))
            if attempt == 2:
                gate.touch()

        def ended(self, summary: object) -> None: ...

    summary = pipelines.run(pipeline, observers=[OpensTheGate()])
    assert told == [("copies", 1), ("copies", 2)]
    assert {name: sink.failures for name, sink in summary.sinks.items()} == {"copies": 2, "others": 0}
    assert values(store, "copies") == values(store, "others") == sorted(map(str, range(5)))
