"""The console as the page asks it: what it answers, over every kind of store."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.console.charts import _spread
from headwater.console.messages import MOST
from headwater.console.watch import rest_after
from headwater.log.clock import REAL_CLOCK
from headwater.streams.history import HistoryWriter, Sample
from tests.support.backends import STORES
from tests.support.console import PATIENCE, Asking, served
from tests.support.patience import Patience

TRADES = pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC"))])


def until(condition: Callable[[], Any]) -> Any:
    patience = Patience(PATIENCE)
    while not (result := condition()):
        assert not patience.exhausted()
        time.sleep(0.02)
    return result


def filled(store: hw.Store) -> hw.Store:
    """A store with some of everything."""
    store.create_topic("orders", 3)
    store.create_topic("trades", schema=TRADES)
    store.create_topic("empty", retention_age=3600.0)
    with store.producer("orders") as out:
        for number in range(300):
            out.send(b'{"order": %d}' % number, key=b"customer-%d" % (number % 7), headers={"trace": b"%d" % number})
    with store.producer("trades") as out:
        for number in range(50):
            out.send({"symbol": "HW" if number % 2 else "WH", "price": number / 4, "at": number * 10**6})
    with store.consumer("orders", group="billing") as inbox:
        for record in inbox.poll(100, timeout=PATIENCE):
            inbox.ack(record)
    return store


@pytest.mark.parametrize(("took", "rest"), [(0.01, 2.0), (0.5, 5.0), (60.0, 15.0)])
def test_a_store_that_is_slow_to_look_at_is_looked_at_less_often_but_not_seldom(took: float, rest: float) -> None:
    assert rest_after(took, 2.0) == rest


KINDS = ("directory", "broker")


@pytest.fixture(scope="module", params=KINDS)
def console(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """A console whose store nobody changes."""
    with served(filled(STORES[request.param](tmp_path_factory.mktemp("console"), REAL_CLOCK))) as asking:
        until(lambda: asking.get("/api/overview")["ready"])
        yield asking


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Asking]:
    """A console whose store is the test's own."""
    with served(filled(STORES[request.param](tmp_path, REAL_CLOCK))) as asking:
        until(lambda: asking.get("/api/overview")["ready"])
        yield asking


def test_the_store_in_numbers(console: Asking) -> None:
    overview = console.get("/api/overview")
    assert (overview["topics"], overview["partitions"], overview["records"]) == (3, 5, 350)
    assert (overview["groups"], overview["members"], overview["lag"]) == (1, 0, 200)
    assert overview["behind"] == [{"name": "billing", "lag": 200, "members": 0}]
    assert [problem["text"] for problem in overview["attention"]] == ["group billing is 200 behind, and has no members"]
    assert overview["stewarded"] is False
    topics = {topic["name"]: topic for topic in console.get("/api/topics")["topics"]}
    assert list(topics) == ["empty", "orders", "trades"]
    assert (topics["orders"]["records"], topics["orders"]["lag"], topics["orders"]["groups"]) == (300, 200, 1)
    assert (topics["empty"]["records"], topics["empty"]["lag"], topics["empty"]["last"]) == (0, None, None)
    (group,) = console.get("/api/groups")["groups"]
    assert (group["name"], group["lag"], group["topics"], group["members"]) == ("billing", 200, ["orders"], 0)


def test_a_topic_with_all_that_belongs_to_it(console: Asking) -> None:
    topic = console.get("/api/topics/orders")
    assert [partition["end"] for partition in topic["partitions"]] == [
        bounds.end for bounds in console.store.topic("orders").bounds().values()
    ]
    assert topic["raw"]
    assert [(group["name"], group["lag"]) for group in topic["groups"]] == [("billing", 200)]
    typed = console.get("/api/topics/trades")
    assert [(column["name"], column["type"]) for column in typed["schemas"][-1]["columns"]] == [
        ("symbol", "string"),
        ("price", "double"),
        ("at", "timestamp[us, tz=UTC]"),
    ]
    kept = {option["name"]: option["value"] for option in console.get("/api/topics/empty")["config"]}
    assert kept["retention_age"] == "1h"
    (producer,) = console.get("/api/topics/orders/producers")["producers"]
    assert (producer["records"], sorted(producer["partitions"])) == (300, [0, 1, 2])
    assert console.ask("GET", "/api/topics/nothing").status == 404


def test_messages_page_by_page_in_either_direction_miss_and_repeat_nothing(console: Asking) -> None:
    expected = {
        (p, o)
        for p, partition in enumerate(console.get("/api/topics/orders")["partitions"])
        for o in range(partition["end"])
    }
    for start, direction in (("latest", "older"), ("earliest", "newer")):
        page = console.get("/api/topics/orders/messages", **{"from": start, "direction": direction, "limit": 64})
        rows, looked_at = page["rows"], page["looked_at"]
        while not page["done"]:
            page = console.get("/api/topics/orders/messages", at=page["at"], direction=direction, limit=64)
            rows += page["rows"]
            looked_at += page["looked_at"]
        assert len(rows) == looked_at == 300  # none is counted twice, though pages look ahead
        assert {(row["p"], row["o"]) for row in rows} == expected
        times = [row["t"] for row in rows]
        assert times == sorted(times, reverse=direction == "older")


def test_messages_are_found_by_place_key_text_and_expression(console: Asking) -> None:
    def search(topic: str, **query: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = console.get(f"/api/topics/{topic}/messages", limit=MOST, **query)["rows"]
        return rows

    assert len(search("orders", key="customer-3")) == 43
    assert [row["v"]["text"] for row in search("orders", text='"ORDER": 17}')] == ['{"order": 17}']
    assert len(search("orders", where="key = 'customer-3' and partition in (0, 1, 2)")) == 43
    assert len(search("orders", partition=1)) == console.get("/api/topics/orders")["partitions"][1]["end"]
    newest = search("orders", partition=1, **{"from": -3, "direction": "newer"})
    assert len(newest) == 3
    assert search("orders", partition=0, **{"from": 5, "direction": "newer"})[0]["o"] == 5
    assert search("orders", **{"from": "2020-01-01", "direction": "older"}) == []
    assert len(search("orders", **{"from": "-1h", "direction": "newer"})) == 300
    assert len(search("orders", **{"from": f"-{'9' * 400}d", "direction": "newer"})) == 300
    rows = search("trades", where="symbol = 'HW' and price > 10")
    assert [json.loads(row["v"]["text"])["price"] for row in rows] == [12.25, 11.75, 11.25, 10.75, 10.25]
    assert [row["v"]["kind"] for row in rows] == ["row"] * 5
    assert len(search("trades", text="11.75")) == 1
    whole = console.get("/api/topics/orders/messages/0/5", decode="hex")
    assert (whole["v"]["kind"], bytes.fromhex(whole["v"]["text"])[:9]) == ("hex", b'{"order":')
    assert whole["h"][0][0] == "trace"


def test_what_is_wrong_with_a_question_is_told(tmp_path: Path) -> None:
    everywhere = ("messages", "tail", "download")
    store = hw.open(tmp_path / "store")
    store.create_topic("orders", 3)
    with served(store) as console:
        assert "is not there yet" in console.ask("GET", "/api/topics/orders/messages/0/0").json["error"]
        for query, says, paths in (
            ("where=price%20%3E%201", "there is no column", everywhere),
            ("where=key%20%3E", "a column is expected", everywhere),
            ("from=yesterday", "is no time", everywhere),
            ("from=0001-01-01", "no time that a record can have", everywhere),
            ("partition=x", "is not a list of partitions", everywhere),
            ("partition=77", "has", everywhere),
            ("text=" + "x" * 1001, "at most 1000 characters", everywhere),
            ("at=1:x", "is not a cursor", everywhere[:2]),
            ("at=-1:5", "is not a cursor", everywhere[:2]),
            ("decode=rot13", "is not a decoder", everywhere[:2]),
            ("limit=many", "limit must be a whole number", ("messages", "download")),
        ):
            for path in paths:
                answer = console.ask("GET", f"/api/topics/orders/{path}?{query}")
                assert (answer.status, says in answer.json["error"]) == (400, True), (path, query, answer.json)


def test_a_tail_goes_on_where_it_was_left(own: Asking) -> None:
    store = own.store
    seen: list[tuple[int, int]] = []

    def read(tail: Iterator[dict[str, Any]], wanted: int, *, whole: bool) -> str:
        """So many records at least; `whole`: until a poll was told to its end, else it is left in the middle of one."""
        event_id, ended = "", False
        while len(seen) < wanted or (whole and not ended):
            event = next(tail)
            if event["event"] == "records":
                seen.extend((row["p"], row["o"]) for row in event["data"]["rows"])
                event_id, ended = event["id"], not event["data"]["rows"]
        return event_id

    with store.producer("orders") as out:
        with own.tail("orders", **{"from": "latest"}) as tail:
            for number in range(700):
                out.send(b"first %d" % number, partition=number % 3)
            out.flush()
            event_id = read(tail, 400, whole=False)
        for number in range(900):  # nobody listens
            out.send(b"second %d" % number, partition=number % 3)
        out.flush()
        with own.tail("orders", at=event_id) as tail:
            event_id = read(tail, 1600, whole=True)
        for number in range(50):
            out.send(b"third %d" % number, partition=number % 3)
        out.flush()
        with own.tail("orders", at=event_id) as tail:
            read(tail, 1650, whole=True)
    ends = [partition["end"] for partition in own.get("/api/topics/orders")["partitions"]]
    assert len(seen) == len(set(seen)) == 1650
    assert {p: max(o for q, o in seen if q == p) + 1 for p in range(3)} == dict(enumerate(ends))


def test_a_tail_only_shows_what_is_wanted(console: Asking) -> None:
    with console.tail("trades", **{"from": "earliest", "where": "price >= 12"}) as tail:
        event = next(event for event in tail if event["event"] == "records")
    assert [json.loads(row["v"]["text"])["price"] for row in event["data"]["rows"]] == [12.0, 12.25]


def test_a_tail_of_one_partition_goes_on_without_reading_the_others_again(console: Asking) -> None:
    end = console.get("/api/topics/orders")["partitions"][1]["end"]
    with console.tail("orders", partition=1, at=f"1:{end - 2}") as tail:
        event = next(event for event in tail if event["event"] == "records")
    assert [(row["p"], row["o"]) for row in event["data"]["rows"]] == [(1, end - 2), (1, end - 1)]
    cursor = dict(pair.split(":") for pair in event["id"].split(","))
    assert cursor == {
        str(partition["number"]): str(partition["end"]) for partition in console.get("/api/topics/orders")["partitions"]
    }


def test_downloads_are_whole(console: Asking) -> None:
    answer = console.ask("GET", "/api/topics/orders/download?format=ndjson")
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.ndjson"'
    lines = [json.loads(line) for line in answer.content.splitlines()]
    assert len(lines) == 300
    assert lines[0].keys() == {"partition", "offset", "timestamp", "key", "value", "headers"}
    content = console.ask("GET", "/api/topics/trades/download?format=parquet&where=price%3E10&limit=5").content
    table = pq.read_table(io.BytesIO(content))
    assert table.column("price").to_pylist() == [10.25, 10.5, 10.75, 11.0, 11.25]
    assert table.schema.names[:3] == ["_partition", "_offset", "_timestamp"]
    assert console.ask("GET", "/api/topics/orders/download?format=exe").status == 400


def test_topics_are_made_changed_and_deleted(own: Asking) -> None:
    columns = [{"name": "id", "type": "int64"}, {"name": "at", "type": "timestamp"}]
    own.change(
        "POST", "/api/topics", {"name": "made", "partitions": 2, "columns": columns, "config": {"compact": "true"}}
    )
    own.change("PATCH", "/api/topics/made", {"partitions": 4, "config": {"retention_age": "7d"}})
    topic = own.get("/api/topics/made")
    options = {option["name"]: option["value"] for option in topic["config"]}
    assert (len(topic["partitions"]), options["retention_age"], options["compact"]) == (4, "7d", "true")
    receipt = own.change(
        "POST",
        "/api/topics/made/messages",
        {
            "key": {"as": "hex", "text": "00ff"},
            "value": {"as": "json", "text": '{"id": 7, "at": "2026-01-31T12:00:00Z"}'},
        },
    )
    row = own.get(f"/api/topics/made/messages/{receipt['partition']}/{receipt['offset']}")
    assert json.loads(row["v"]["text"]) == {"id": 7, "at": "2026-01-31 12:00:00.000000Z"}
    assert row["k"]["kind"] == "hex"
    assert own.ask("DELETE", "/api/topics/made", {"confirm": "orders"}).status == 400
    assert own.ask("DELETE", "/api/topics/made", {}).status == 400
    own.change("DELETE", "/api/topics/made", {"confirm": "made"})
    assert own.ask("GET", "/api/topics/made").status == 404
    until(lambda: "made" not in [topic["name"] for topic in own.get("/api/topics")["topics"]])


def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    store = hw.open(tmp_path / "store")
    store.create_topic("orders", 3)
    store.create_topic("trades", 1, pa.schema([("price", pa.float64())]))
    uuid = store.topic("orders").info.uuid.hex()
    with served(store) as console:
        for method, path, body, says in CASES:
            if body.get("uuid") == "{uuid}":
                body["uuid"] = uuid
            answer = console.ask(method, f"/api/{path}", body)
            assert answer.status in (400, 409), (path, body, answer)
            assert says in answer.json["error"], (path, body, answer.json)
        assert console.get("/api/topics/orders")["records"] == 0


CASES: list[tuple[str, str, Any, str]] = [
    ("POST", "topics", {"name": "../x", "partitions": 1}, "cannot name a topic"),
    ("POST", "topics", {"name": "__mine", "partitions": 1}, "reserved"),
    ("POST", "topics", {"name": "orders", "partitions": 1}, "orders"),
    ("POST", "topics", {"name": "a", "partitions": 0}, "partitions"),
    ("POST", "topics", {"name": "a", "partitions": True}, "partitions"),
    ("POST", "topics", {"name": "a", "partitions": 1, "columns": [{"name": "x", "type": "blob"}]}, "types"),
    ("POST", "topics", {"name": "a", "partitions": 1, "config": {"retention_age": "soon"}}, "retention_age"),
    ("POST", "topics", {"name": "a", "partitions": 1, "config": {"nothing": 1}}, "options of a topic"),
    ("POST", "topics", {"name": "a", "partitions": 1, "columns": 5}, "columns must be a list"),
    ("POST", "topics", {"name": "a", "partitions": 1, "columns": [{"name": "\ud800", "type": "bool"}]}, "types"),
    ("PATCH", "topics/orders", {"partitions": 1}, "can rise"),
    ("PATCH", "topics/orders", {"partitions": "9"}, "whole number"),
    ("DELETE", "topics/__history", {"confirm": "__history"}, "Headwater's own"),
    ("POST", "topics/orders/messages", {"value": {"as": "hex", "text": "xyz"}}, "not valid hex"),
    ("POST", "topics/orders/messages", {"value": {"as": "json", "text": "{"}}, "not valid json"),
    ("POST", "topics/orders/messages", {"value": {"as": "exe", "text": ""}}, "text, json or hex"),
    ("POST", "topics/orders/messages", {"value": "x"}, "wrong type"),
    ("POST", "topics/orders/messages", {"value": {"as": "json", "text": "[" * 100_000}}, "not valid json"),
    ("POST", "topics/orders/messages", {"value": None, "headers": [1]}, "headers must be an object"),
    *(
        ("POST", "topics/trades/messages", {"value": {"as": "json", "text": text}}, "an object with the columns price")
        for text in ("5", "null", '["price"]', '{"cost": 1}')
    ),
    ("POST", "topics/orders/messages", {"value": None}, "needs a key"),
    ("POST", "groups/billing/plan", {"topic": "orders", "to": "soon"}, "is no time"),
    ("POST", "groups/billing/reset", {"topic": "orders", "uuid": "00", "positions": {}}, "created again"),
    ("POST", "groups/billing/reset", {"topic": "orders", "uuid": "{uuid}", "positions": {"²": 1}}, "not a position"),
]


def test_a_reset_does_what_was_shown_before(own: Asking) -> None:
    plan = own.change("POST", "/api/groups/billing/plan", {"topic": "orders", "to": "earliest"})
    before = sum(row["before"] or 0 for row in plan["rows"])
    assert before == 100
    assert sum(row["change"] or 0 for row in plan["rows"]) == -100
    positions = {str(row["partition"]): row["after"] for row in plan["rows"]}
    own.change("POST", "/api/groups/billing/reset", {"topic": "orders", "uuid": plan["uuid"], "positions": positions})
    group = own.get("/api/groups/billing")
    assert [partition["offset"] for partition in group["partitions"]] == [0, 0, 0]
    assert group["lag"] == 300
    until(lambda: own.get("/api/overview")["lag"] == 300)


def test_a_topic_that_is_newer_than_the_last_look_is_not_called_deleted(tmp_path: Path) -> None:
    store = hw.open(tmp_path / "store")
    with served(store, interval=3600.0) as console:
        until(lambda: console.get("/api/topics")["ready"])
        store.create_topic("new")
        with store.producer("new") as out:
            out.send(b"first")
        with store.consumer("new", group="early") as inbox:
            (record,) = inbox.poll(1, timeout=PATIENCE)
            inbox.ack(record)
        (position,) = console.get("/api/groups/early")["partitions"]
        assert (position["topic"], position["deleted"], position["offset"]) == ("new", False, 1)
        store.delete_topic("new")
        (position,) = console.get("/api/groups/early")["partitions"]
        assert position["deleted"]


def test_members_and_what_they_have_are_shown(own: Asking) -> None:
    store = own.store
    with store.consumer("orders", group="billing") as inbox:
        inbox.poll(1, timeout=PATIENCE)
        group = own.get("/api/groups/billing")
        (member,) = group["members"]
        assert member["partitions"] == ["orders/0", "orders/1", "orders/2"]
        assert {partition["owner"] for partition in group["partitions"]} == {member["id"]}
    assert own.ask("GET", "/api/groups/nothing").status == 404


def test_charts_begin_with_the_history_of_the_store(tmp_path: Path) -> None:
    store = hw.open(tmp_path / "store")
    store.create_topic("a")
    writer = HistoryWriter(store, -1e9)  # whatever was written a moment ago
    now = time.time_ns()
    for number in range(20):
        with store.producer("a") as out:
            for _ in range(10):
                out.send(b"x")
        writer.note(now - (20 - number) * 10 * 10**9)
    with served(store) as console:
        until(lambda: len(console.get("/api/history", of="topic", name="a")["times"]) >= 2)
        history = console.get("/api/history", of="topic", name="a", minutes=60)
    assert history["recorded"]
    rates = {series["name"]: series["values"] for series in history["series"]}
    assert rates["records/s"][0] == pytest.approx(1.0)


def test_a_store_that_nobody_stewards_is_charted_from_now_on(tmp_path: Path) -> None:
    store = hw.open(tmp_path / "store")
    store.create_topic("a")
    with served(store) as console:
        history = console.get("/api/history")
        assert (history["recorded"], history["stewarded"]) == (False, False)
        until(lambda: len(console.get("/api/history")["times"]) >= 1)


def test_the_steward_tells_what_it_would_do_and_does_it(own: Asking) -> None:
    own.change("PATCH", "/api/topics/orders", {"config": {"retention_bytes": "0"}})
    store = own.store
    for partition in store.topic("orders").partitions():
        partition.roll()
    store.group("billing").reset(
        {
            hw.TopicPartition("orders", number): hw.Commit((store.topic("orders").info.uuid, number), bounds.end)
            for number, bounds in store.topic("orders").bounds().items()
        }
    )
    plan = own.get("/api/steward/plan")
    assert plan["segments"] == 3
    assert own.get("/api/topics/orders")["records"] == 300
    assert own.change("POST", "/api/steward/run", {})["segments"] == 3
    assert own.get("/api/topics/orders")["records"] == 0
    assert own.get("/api/steward")["stewarded"] is False


def test_pipelines_are_shown_by_their_journal(tmp_path: Path) -> None:
    from headwater.spark.pipeline import Pipeline
    from headwater.spark.pipeline.graph import Graph
    from headwater.spark.pipeline.journal import PipelineJournal
    from headwater.spark.pipeline.progress import BatchProgress, SinkSummary, Summary

    store = hw.open(tmp_path / "store")
    store.create_topic("orders")
    declared = Pipeline("revenue", store=str(tmp_path / "store"), checkpoint=str(tmp_path / "checkpoint"))
    declared.source("orders", topic="orders")
    declared.sql("totals", "select 1 from orders")
    declared.sink("lake", "totals", parquet=str(tmp_path / "lake"))
    journal = PipelineJournal(str(tmp_path / "store"), "revenue", Graph(declared.declaration()))
    journal.started(["lake"])
    facts: dict[str, Any] = {"rows": 10, "seconds": 0.5, "lag": 3, "state_rows": 0, "state_bytes": 0}
    journal.batch(BatchProgress(sink="lake", number=0, at="now", watermark=None, violations={"positive": 2}, **facts))
    journal.failed("lake", 1, "<b>no room</b>", 1.0)
    journal.ended(Summary("revenue", {"lake": SinkSummary()}, error="<b>no room</b>"))
    journal.close()
    with served(store) as console:
        (pipeline,) = console.get("/api/pipelines")["pipelines"]
    assert (pipeline["name"], pipeline["state"], pipeline["last_error"]) == ("revenue", "failed", "<b>no room</b>")
    assert [(node["kind"], node["name"], node["inputs"]) for node in pipeline["graph"]] == [
        ("source", "orders", []),
        ("step", "totals", ["orders"]),
        ("sink", "lake", ["totals"]),
    ]
    assert (pipeline["sinks"]["lake"]["rows"], pipeline["violations"]) == (10, {"positive": 2})


def test_a_damaged_segment_is_shown_as_such(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders")
        for number in range(10):
            with store.producer("orders") as out:
                out.send_batch([b"record %d of %d" % (index, number) * 10 for index in range(20)])  # one frame
        (base,) = [segment.base for segment in store.topic("orders").partition(0).segments()]
    (file,) = (tmp_path / "store" / "orders" / "0").glob("*.log")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with served(hw.open(tmp_path / "store")) as console:
        segment = console.get(f"/api/topics/orders/segments/0/{base}")
        assert (segment["damaged"], segment["frames"], segment["records"]) == (1, 9, 180)
        assert "d" in segment["cells"]
        assert segment["damage"][0]["reason"] == "the body of a frame does not match its checksum"
        page = console.get("/api/topics/orders/messages", limit=500)
        assert (len(page["rows"]), page["done"]) == (180, True)
        assert len(page["damage"]) == 1
        lines = console.ask("GET", "/api/topics/orders/download?format=ndjson").content.splitlines()
        assert len(lines) == 181
        told = json.loads(lines[-1])
        assert told["damaged"]["reason"] == "the body of a frame does not match its checksum"
        assert told["damaged"]["next_offset"] - told["damaged"]["offset"] == 20
        parquet = console.ask("GET", "/api/topics/orders/download?format=parquet").content
        facts = pq.ParquetFile(pa.BufferReader(parquet)).metadata
        assert facts.num_rows == 180
        assert json.loads(facts.metadata[b"headwater.damaged"]) == [told]
        until(lambda: [problem["level"] for problem in console.get("/api/overview").get("attention", [])] == ["bad"])
        assert console.ask("GET", "/api/topics/orders/segments/0/7").status == 404


def test_what_serves_the_store_is_shown(console: Asking) -> None:
    cluster = console.get("/api/cluster")
    if cluster["kind"] == "broker":
        assert cluster["status"]["state"] == "serving"
    else:
        assert cluster["kind"] == "embedded"
    segments = console.get("/api/topics/orders/segments/0")["segments"]
    assert [segment["base"] for segment in segments] == [0]
    if cluster["kind"] == "broker":
        assert console.get("/api/topics/orders/segments/0/0")["served"]


def test_a_chart_is_as_dense_where_the_console_looked_as_where_the_steward_did() -> None:
    minute, second = 60 * 10**9, 10**9
    noted = [Sample(number * minute) for number in range(60)]
    seen = [Sample(60 * minute + number * second // 3) for number in range(600)]
    chosen = _spread(noted + seen)
    times = [sample.time_ns for sample in chosen]
    assert times[:60] == [sample.time_ns for sample in noted]
    assert len(times) - 60 in (13, 14)  # 200 s, fifteen seconds apart
    assert min(after - before for before, after in pairwise(times)) > 5 * second
    later = [sample.time_ns for sample in _spread([*noted, *seen, Sample(60 * minute + 201 * second)])]
    assert later[: len(times) - 1] == times[:-1]
    assert _spread([]) == []
    assert _spread(noted[:2]) == noted[:2]
