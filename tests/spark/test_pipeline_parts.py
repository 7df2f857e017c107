"""Parts of pipelines: rows that choose their topic, that count once, that are remembered, that are shown, replaced."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import headwater as hw
from headwater.cli.spark import pipeline_display
from headwater.cli.spark.pipeline_display import JsonLines, LiveTable
from headwater.spark.pipeline import journal
from headwater.spark.pipeline.progress import BatchProgress
from headwater.spark.pipeline.state import PipelineState
from tests.spark.pipelines import Pipelines, send, values
from tests.spark.test_pipeline import forget_last_commit


def test_each_row_goes_to_the_topic_that_it_names(store: hw.Store, pipelines: Pipelines) -> None:
    for name in ("numbers", "odd", "even"):
        store.create_topic(name)
    send(store, "numbers", 0, 20)
    pipeline = pipelines.load("""
sources: {numbers: {topic: numbers, limit: 8}}
steps:
  routed: {sql: "SELECT key, value, if(offset % 2 = 0, 'even', 'odd') AS topic FROM numbers"}
sinks:
  routed: {from: routed, by_topic: true}
""")
    pipelines.run(pipeline)
    forget_last_commit(pipeline.declaration().checkpoint / "queries" / "routed")
    pipelines.run(pipeline)
    for name, first in (("even", 0), ("odd", 1)):
        assert values(store, name) == sorted(map(str, range(first, 20, 2)))


def test_equal_rows_count_once_for_ever_or_within_the_watermark(store: hw.Store, pipelines: Pipelines) -> None:
    for name in ("events", "ever", "lately"):
        store.create_topic(name)
    minute = 60 * 10**9

    def happen(*events: tuple[str, int]) -> None:
        with store.producer("events") as out:
            for value, at in events:
                out.send(value.encode(), timestamp=at * minute)

    pipeline = pipelines.load("""
sources: {events: {topic: events}}
steps:
  ever: {sql: "SELECT value FROM events", unique: [value]}
  timed: {sql: "SELECT value, timestamp FROM events"}
  lately:
    sql: SELECT value, timestamp FROM timed
    watermark: {column: timestamp, delay: 10 minutes}
    unique: value
sinks:
  ever: {from: ever, topic: ever}
  lately: {from: lately, topic: lately}
""")
    happen(("a", 0), ("b", 1), ("a", 2), ("a", 3))
    pipelines.run(pipeline)
    assert values(store, "ever") == values(store, "lately") == ["a", "b"]
    happen(("b", 5), ("c", 100))
    pipelines.run(pipeline)
    happen(("a", 101), ("c", 102))
    pipelines.run(pipeline)
    assert values(store, "ever") == ["a", "b", "c"]
    assert values(store, "lately") == ["a", "a", "b", "c"]  # the first "a" is forgotten by then


COUNTING = """
from typing import Iterator
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

class Count(StatefulProcessor):
    def init(self, handle):
        self._total = handle.getValueState("total", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        total = (self._total.get() or (0,))[0] + sum(len(frame) for frame in rows)
        self._total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "value": [f"{key[0]} {total}"]})

def counted(frame):
    grouped = frame.selectExpr("string(int(string(value)) % 2) AS parity").groupBy("parity")
    return grouped.transformWithStateInPandas(Count(), "key string, value string", "append", "None")
"""


def test_a_step_with_state_goes_on_from_it(store: hw.Store, tmp_path: Path, pipelines: Pipelines) -> None:
    for name in ("numbers", "totals"):
        store.create_topic(name)
    (tmp_path / "counting.py").write_text(COUNTING)
    pipeline = pipelines.load("""
spark:
  spark.sql.streaming.stateStore.providerClass: org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider
sources: {numbers: {topic: numbers, limit: 10}}
steps: {totals: {python: "counting:counted", inputs: numbers}}
sinks: {totals: {from: totals, topic: totals}}
""")
    for first, last in ((0, 10), (10, 15)):
        send(store, "numbers", first, last)
        pipelines.run(pipeline)
    assert values(store, "totals") == ["0 5", "0 8", "1 5", "1 7"]
    forget_last_commit(pipeline.declaration().checkpoint / "queries" / "totals")
    pipelines.run(pipeline)
    assert values(store, "totals") == ["0 5", "0 8", "1 5", "1 7"]


UPDATING = """
sources: {numbers: {topic: numbers, limit: 10}}
steps:
  totals:
    sql: >
      SELECT string(int(string(value)) % 2) AS key, concat_ws(' ', int(string(value)) % 2, count(*)) AS value
      FROM numbers GROUP BY int(string(value)) % 2
sinks: {totals: {from: totals, topic: totals, mode: update}}
retries: {times: 0}
"""


def test_a_topic_takes_updates_and_has_each_once(store: hw.Store, pipelines: Pipelines) -> None:
    for name in ("numbers", "totals"):
        store.create_topic(name)
    pipeline = pipelines.load(UPDATING)
    send(store, "numbers", 0, 20)
    pipelines.run(pipeline)
    told = ["0 10", "0 5", "1 10", "1 5"]
    assert values(store, "totals") == told
    declaration = pipeline.declaration()
    forget_last_commit(declaration.checkpoint / "queries" / "totals")
    pipelines.run(pipeline)
    assert values(store, "totals") == told

    (declaration.checkpoint / "queries").rename(declaration.checkpoint / "lost")
    with pytest.raises(hw.PipelineFailed, match="WriterTaken"):
        pipelines.run(pipeline)
    assert values(store, "totals") == told
    PipelineState(declaration).reset()
    pipelines.run(pipeline)
    assert values(store, "totals") == sorted(told * 2)


def test_the_console_shows_rows_to_people_and_to_programs(
    store: hw.Store, pipelines: Pipelines, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("numbers")
    send(store, "numbers", 0, 5)
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system=None, width=100)
    monkeypatch.setattr(pipeline_display, "console", lambda: terminal)
    text = """
sources: {{numbers: {{topic: numbers, limit: 3}}}}
steps:
  shown: {{sql: "SELECT {columns} FROM numbers {rest}", expect: {{small: {{rule: "{rule}"}}}}}}
sinks: {{screen: {{from: shown, console: true, rows: 2, mode: {mode}}}}}
checkpoint: {checkpoint}
"""
    appended = text.format(columns="string(value) AS n", rest="", rule="n < 4", mode="append", checkpoint="for-people")
    people = LiveTable("pipeline")
    pipelines.run(pipelines.load(appended), observers=[people], show=people.show)
    said = screen.getvalue()
    assert "screen, batch 0\n+---+\n|  n|\n+---+\n|  0|\n|  1|\n+---+\nonly showing top 2 rows" in said
    assert "screen, batch 1\n+---+\n|  n|\n+---+\n|  3|\n|  4|\n+---+\n" in said
    table = said[said.rindex("sink") :].splitlines()
    assert table[0].split() == ["sink", "batch", "rows", "rows/s", "seconds", "lag", "state"]
    assert table[1].split()[:3] == ["screen", "1", "5"]
    assert table[1].split()[-2:] == ["0", "none"]
    assert "· 1 rows broke shown.small" in said
    assert "✓ done: 5 rows in" in said

    whole = text.format(columns="count(*) AS n", rest="", rule="n < 9", mode="complete", checkpoint="for-programs")
    programs = JsonLines()
    capsys.readouterr()
    pipelines.run(pipelines.load(whole), observers=[programs], show=programs.show)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"].split("|")[3].strip() for line in lines if line["kind"] == "rows"] == ["3", "5"]
    assert [line["kind"] for line in lines if line["kind"] != "rows"] == ["started", "batch", "batch", "summary"]


def test_the_live_table_tells_trouble_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, color_system=None, width=100)
    monkeypatch.setattr(pipeline_display, "console", lambda: terminal)
    table = LiveTable("pipeline")

    def drawn() -> str:
        paper = Console(file=io.StringIO(), color_system=None, width=100)
        with paper.capture() as captured:
            paper.print(table._table())
        return captured.get()

    table.started(["totals"])
    assert drawn().splitlines()[1].split() == ["totals", *"······"]
    table.failed("totals", 2, "no room\x1b[2J", 4.0)
    assert "✗ totals: failed 2 ×, again in 4 s: no room" in drawn()
    assert "\x1b[2J" not in drawn()
    batch: dict[str, Any] = {"number": 3, "at": "", "rows": 1500, "seconds": 0.5, "lag": 2000, "violations": {}}
    table.batch(BatchProgress(sink="totals", state_rows=7, state_bytes=2048, watermark=None, **batch))
    assert drawn().splitlines()[1].split() == ["totals", "3", "1,500", "3,000", "0.50", "2,000", "7", "(2.0", "KiB)"]
    assert "failed" not in drawn()


def test_a_directory_of_parquet_with_another_ones_output_is_refused(
    spark: SparkSession, store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    store.create_topic("numbers")
    send(store, "numbers", 0, 5)
    text = "sources: {numbers: {topic: numbers}}\nsinks: {table: {from: numbers, parquet: table}}\ncheckpoint: "
    pipelines.run(pipelines.load(text + "one"))
    with pytest.raises(hw.InvalidPipeline, match=r"pipeline\.yaml:4: sinks\.table: .*output of another checkpoint"):
        pipelines.run(pipelines.load(text + "other"))
    send(store, "numbers", 5, 8)
    pipelines.run(pipelines.load(text + "one"))
    assert spark.read.parquet(str(tmp_path / "table")).count() == 8


def test_the_journal_is_bounded_and_tells_the_newest(store: hw.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LIMITS", {"segment_bytes": 1 << 14, "retention_bytes": 1 << 16})
    monkeypatch.setattr(journal, "_CLEAN_EVERY", 50)
    book = journal.PipelineJournal(str(store), "pipeline")
    for number in range(1000):
        book.failed("totals", number, "no " * 3000, None)
    book.close()
    book = journal.PipelineJournal(str(store), "pipeline")  # a new run cleans before it writes
    book.started(["totals"])
    book.close()
    entries = journal.entries(str(store), "pipeline")
    assert (entries[-1]["kind"], entries[-2]["attempt"]) == ("started", 999)
    assert entries[0]["attempt"] > 900
    size = sum(path.stat().st_size for path in Path(str(store), journal.JOURNAL).rglob("*.log"))
    assert size < 2 * (1 << 16)
