"""The console in a real browser, as people use it. One browser and one console for all, and topics for each test."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.spark.pipeline import Pipeline
from headwater.spark.pipeline.graph import Graph
from headwater.spark.pipeline.journal import PipelineJournal
from headwater.spark.pipeline.progress import SinkSummary, Summary
from tests.support.browser import Browser, needs_browser
from tests.support.console import Opened
from tests.support.console_scene import go_on, play

pytestmark = needs_browser
SCRIPT = b"<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
PICTURES = os.environ.get("HEADWATER_CONSOLE_PICTURES")
"""A directory for pictures of the pages, which docs/console.md shows."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("downloads"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A console over a store in a directory, opened by its link."""
    opened = Opened(hw.open(tmp_path_factory.mktemp("console") / "store"), browser)
    with opened.serving:
        opened.launch()
        yield opened


def test_an_empty_store_says_so_and_a_topic_is_made_altered_and_deleted(opened: Opened) -> None:
    browser = opened.browser
    browser.find(".hint-box", "This store is empty.")
    assert "launch" not in browser.driver.current_url
    opened.go("topics")
    browser.click("button", "New topic")
    browser.type("dialog input[name=name]", "made")
    browser.click("dialog button[type=submit]")
    browser.find("h1", "made")
    assert opened.store.topics() == ["made"]
    browser.click("button", "Change")
    field = browser.find("dialog input[aria-label=retention_age]")
    field.clear()
    field.send_keys("7d")
    browser.click("dialog button[type=submit]")
    browser.find("td", "7d")
    opened.go("topics/unmade")
    browser.find("h1", "Not found")
    browser.find("#state", "live")  # that there is none was answered
    opened.go("topics/made")
    assert opened.store.topic("made").info.config.retention_age == 7 * 86400
    browser.click("button", "Delete")
    browser.type("dialog input", "mad")
    browser.click("dialog button[type=submit]")
    browser.find("dialog .problem", "type the name of the topic")
    browser.type("dialog input", "e")
    browser.click("dialog button[type=submit]")
    browser.find("h1", "Topics")
    assert opened.store.topics() == []
    assert browser.complaints() == []


def test_a_live_tail_at_10_000_a_second_misses_nothing_over_pauses(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("fast", 4, sync="never")
    opened.go("topics/fast/messages")
    browser.find(".tail-status", "live")
    browser.until(lambda: browser.attribute(".tail-status", "data-open") == "true")
    stop, sent = threading.Event(), 0

    def write() -> None:
        nonlocal sent
        begun = time.monotonic()
        with store.producer("fast") as out:
            while not stop.is_set():
                while sent < (time.monotonic() - begun) * 10_000:
                    out.send(b'{"n": %d}' % sent)
                    sent += 1
                time.sleep(0.005)

    def seen() -> int:
        return int(browser.attribute(".tail-status", "data-seen"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        browser.until(lambda: seen() > 1000)
        for _ in range(2):
            browser.click("button", "Pause")
            browser.find(".tail-status", "paused")
            at_pause, written = seen(), sent
            browser.until(lambda: sent > written + 3000)  # noqa: B023 - it is called at once
            assert seen() == at_pause
            browser.find(".tail-status", "waiting")
            browser.click("button", "Resume")
            browser.until(lambda: seen() > at_pause + 3000)  # noqa: B023
        first = int(browser.run("return document.querySelectorAll('.vt-row').length"))
        assert 10 < first < 80  # only what can be seen exists
    finally:
        stop.set()
        writer.join()
    # The tail began with what came first, so it has seen all of it.
    browser.until(lambda: seen() == sent)
    assert browser.attribute(".tail-status", "data-missing") == "0"


def test_a_hostile_message_is_shown_as_text(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("hostile")
    with store.producer("hostile") as out:
        out.send(SCRIPT, key=SCRIPT, headers={SCRIPT.decode(): SCRIPT})
    opened.go("topics/hostile/messages?mode=browse")
    assert SCRIPT.decode() in browser.find(".vt-row").text
    browser.click(".vt-row")
    assert browser.find(".drawer").text.count(SCRIPT.decode()) == 4
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
    assert browser.driver.title == "hostile, messages · Headwater"
    assert browser.complaints() == []


def test_a_message_is_produced_by_hand_and_found_by_filters(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("notes", 2)
    opened.go("topics/notes/messages")
    browser.find(".tail-status", "live")
    browser.click("button", "New record")
    browser.type("dialog textarea[name=value]", '{"hello": "wörld"}')
    browser.type("dialog input[name=key]", "me")
    browser.type("dialog textarea[name=headers]", "trace: 7")
    browser.click("dialog button[type=submit]")
    browser.find(".vt-row", '{"hello": "wörld"}')  # the tail was listening
    (record,) = store.topic("notes").recent()
    assert (record.key, json.loads(record.value), record.headers) == (b"me", {"hello": "wörld"}, {"trace": b"7"})
    browser.click(".segmented button", "Browse")
    browser.find(".tail-status", "1 message, that is all")
    browser.type("input[aria-label=Filter]", "key = 'you'\n")
    browser.find(".vt-empty", "No messages.")
    browser.find("input[aria-label=Filter]").clear()
    browser.type("input[aria-label=Filter]", "key =\n")
    browser.find(".problem", "a column is expected, not the end, at character 6")
    browser.find("input[aria-label=Filter]").clear()
    browser.type("input[aria-label=Filter]", "nonsense = 1\n")
    browser.find(".problem", "there is no column 'nonsense'")


def test_a_tail_begins_with_the_newest_and_the_address_keeps_what_is_asked_for(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("recent", 2)
    with store.producer("recent") as out:
        for number in range(200):
            out.send(b"message %d" % number, partition=number % 2, timestamp=10**18 + number * 10**6)
        out.send(b"", key=b"", timestamp=10**18 + 10**9)
        out.flush()
        opened.go("topics/recent/messages")
        browser.until(lambda: browser.attribute(".tail-status", "data-seen") == "50")
        first = ["empty", "message 199", "message 198"]
        browser.until(lambda: browser.texts(".vt-row .vt-cell:last-child")[:3] == first)
        out.send(b"message 200")
        out.flush()
        browser.find(".vt-row", "message 200")
        assert browser.attribute(".tail-status", "data-missing") == "0"
    browser.choose("select[aria-label=Partition]", "1")
    browser.type("input[aria-label=Filter]", "value ends with '9'\n")
    browser.until(lambda: browser.attribute(".tail-status", "data-seen") == "20")
    browser.click(".segmented button", "Browse")
    browser.find(".tail-status", "20 messages of 100 looked at, that is all")
    browser.driver.refresh()
    browser.find(".tail-status", "20 messages of 100 looked at, that is all")
    assert browser.attribute("input[aria-label=Filter]", "value") == "value ends with '9'"
    assert browser.complaints() == []


def test_the_list_is_in_line_with_its_head_and_a_long_number_is_not_rounded(opened: Opened) -> None:
    browser = opened.browser
    written = '{"id": 12345678901234567890123, "price": 1.0, "tags": [], "at": {"x": [1, 2]}}'
    browse_one(opened, "numbers", written.encode())
    edges = "return [...document.querySelectorAll('%s > *')].map((one) => one.getBoundingClientRect().left)"
    browser.find(".vt-row")
    assert browser.run(edges % ".vt-head") == browser.run(edges % ".vt-row")
    assert browser.run("return document.documentElement.scrollHeight <= innerHeight")  # only the list scrolls
    browser.type("body", "j\n")  # the keys lead into the list
    shown = browser.find(".drawer pre").text
    assert shown == json.dumps(json.loads(written), indent=2)


def test_a_million_messages_are_paged_through_sought_in_and_downloaded(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("many", 2)
    with store.producer("many") as out:
        for start in range(0, 1_000_000, 10_000):
            values = [b"message %d" % number for number in range(start, start + 10_000)]
            out.send_batch(values, partition=start // 10_000 % 2)
    opened.go("topics/many/messages?mode=browse")
    browser.find(".vt-row", "message ")
    rows = "return document.querySelectorAll('.vt-row').length"
    assert browser.driver.execute_script(rows) < 200, "only what is seen is in the page"
    browser.choose("select[aria-label=Partition]", "1")
    browser.choose("select[aria-label='Where to begin']", "offset")
    browser.type("input[aria-label='Offset or time']", "345678\n")
    browser.find(".vt-row", "message 695678")  # 34 batches of the other partition, and one more, come before it
    for title, suffix in (("NDJSON", "ndjson"), ("Parquet", "parquet")):
        browser.click("button", "Download")
        browser.click("dialog button", title)
        browser.until(lambda suffix=suffix: next(browser.downloads.glob(f"*.{suffix}"), None))  # type: ignore[misc]
    (lines,) = browser.downloads.glob("*.ndjson")
    assert "message 695678" in lines.read_text().partition("\n")[0]
    (table,) = browser.downloads.glob("*.parquet")
    assert pq.read_table(table).column("value")[0].as_py() == b"message 695678"
    assert browser.driver.execute_script(rows) < 200
    assert browser.complaints() == []


def browse_one(opened: Opened, topic: str, value: bytes) -> None:
    """Make a topic of one message, and open the page of its messages."""
    opened.store.create_topic(topic)
    with opened.store.producer(topic) as out:
        out.send(value)
    opened.go(f"topics/{topic}/messages?mode=browse")


def test_a_value_is_copied_and_a_pipeline_shows_why_it_failed(opened: Opened, tmp_path: Path) -> None:
    browser, store = opened.browser, opened.store
    browse_one(opened, "copied", b"take me along")
    browser.click(".vt-row", "take me along")
    browser.click(".drawer button", "Copy")
    browser.find(".toast", "Copied.")
    declared = Pipeline("revenue", store=str(store), checkpoint=str(tmp_path / "checkpoint"))
    declared.source("copied", topic="copied")
    declared.sink("lake", "copied", parquet=str(tmp_path / "lake"))
    journal = PipelineJournal(str(store), "revenue", Graph(declared.declaration()))
    journal.started(["lake"])
    journal.ended(Summary("revenue", {"lake": SinkSummary()}, error="<b>no room</b>"))
    journal.close()
    opened.go("pipelines")
    browser.find(".problem", "<b>no room</b>")
    assert browser.complaints() == []


def test_messagepack_is_decoded_where_it_is_installed(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = opened.browser
    browse_one(opened, "packed", b"\x81\xa1a\x01")
    browser.find(".vt-row", "81 a1 61 01")
    browser.choose("select[aria-label='How values are shown']", "msgpack")
    browser.find(".vt-row", '{"a": 1}')
    monkeypatch.setitem(sys.modules, "msgpack", None)  # as if it were not
    browser.driver.refresh()
    browser.find(".vt-row", "81 a1 61 01")
    assert browser.attribute("option[value=msgpack]", "disabled") == "true"
    assert "pip install msgpack" in browser.find("option[value=msgpack]").text


def test_a_group_is_reset_after_the_difference_was_shown(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("orders", 2)
    with store.producer("orders") as out:
        for number in range(100):
            out.send(b"%d" % number, partition=number % 2)
    with store.consumer("orders", group="billing") as inbox:
        for record in inbox.poll(100, timeout=300):
            inbox.ack(record)
    opened.go("groups/billing")
    browser.find(".figure .value", "0")
    browser.click("button", "Reset…")
    browser.click("dialog button", "Show the difference")
    browser.find("dialog .plan", "100 records will be handled again.")
    assert [position.offset for position in store.group("billing").committed().values()] == [50, 50]
    browser.click("dialog button", "Set these positions")
    browser.find(".toast", "2 positions of billing were set.")
    assert [position.offset for position in store.group("billing").committed().values()] == [0, 0]
    browser.find(".figure .value", "100")  # by itself


def test_a_store_is_cleaned_after_it_was_shown_what_goes(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("short", segment_bytes=4096, retention_bytes=8192, compression="none")
    partition = store.topic("short").partition(0)
    with store.producer("short") as out:
        for _ in range(9):
            out.send(b"." * 3000)
            out.flush()
    assert partition.bounds().start == 0
    opened.go("steward")
    browser.click("button", "Clean now")
    browser.find("dialog .plan", "segments deleted")
    browser.find("dialog td", "short/0")
    assert partition.bounds().start == 0
    browser.click("dialog button", "Clean")
    browser.find(".toast", "segments deleted")
    assert partition.bounds().start > 0
    store.delete_topic("short")


def test_charts_move_and_keys_lead_around_in_light_and_dark(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("moving")
    opened.go("")

    def last() -> float:
        return float(browser.run("return document.querySelector('.chart')?.dataset.last || 0"))

    before = browser.until(last)
    browser.until(lambda: browser.run("return document.querySelectorAll('.chart canvas').length") == 4)
    browser.until(lambda: last() > before)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.type("body", "d")
    browser.until(lambda: browser.run(ground) != light)
    browser.driver.refresh()
    browser.find("h1", "Overview")
    assert browser.run(ground) != light  # it is remembered
    browser.type("body", "d")
    browser.until(lambda: browser.run(ground) == light)
    browser.type("body", "gt")
    browser.find("h1", "Topics")
    browser.type("body", "/")
    browser.type("input[type=search]", "movi")
    browser.until(lambda: len(browser.driver.find_elements("css selector", ".vt-row")) == 1)
    browser.type("input[type=search]", "\ue015")  # down, into the list
    browser.type(".vt-body", "\n")
    browser.find("h1", "moving")
    browser.look(390, 800)
    browser.until(lambda: browser.run("return document.documentElement.scrollWidth <= 390"))
    browser.look(1280, 860)
    assert browser.complaints() == []


def test_a_chart_has_no_line_where_nobody_has_looked(opened: Opened) -> None:
    """One value in a series may be missing at times when others are not: that is no gap."""
    browser = opened.browser
    opened.go("")
    drawn = r"""
        const { Chart } = await import('/chart.js');
        const chart = new Chart('a test', 'count');
        document.querySelector('main').prepend(chart.element);
        const times = [0, 15, 30, 45, 60, 75, 600, 615, 630, 645, 660, 675];
        chart.set(times, [{ name: 'one', values: times.map((time) => time === 30 ? null : 5) }]);
        await new Promise(requestAnimationFrame);
        const column = (time) => {
            const x = Math.round(chart.plot.valToPos(time, 'x', true));
            const { canvas } = chart.plot.ctx;
            const pixels = chart.plot.ctx.getImageData(x, 0, 1, canvas.height).data;
            const wanted = chart.colours[0].match(/\d+/g).map(Number);
            return [...pixels.keys()].some((at) => at % 4 === 0 && pixels[at + 3] > 200
                && wanted.every((part, index) => Math.abs(pixels[at + index] - part) < 12));
        };
        const found = [22, 38, 338, 638].map(column);
        chart.close();
        chart.element.remove();
        return found;
    """
    assert browser.run(f"return (async () => {{ {drawn} }})()") == [True, True, False, True]


def test_a_damaged_segment_is_shown(opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    store.create_topic("hurt")
    for number in range(5):
        with store.producer("hurt") as out:
            out.send_batch([b"record %d of %d" % (index, number) * 10 for index in range(20)])  # one frame
    (file,) = (Path(str(store)) / "hurt" / "0").glob("*.log")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    opened.go("topics/hurt/segments")
    browser.find(".card", "1 damaged stretch")
    browser.find("td", "the body of a frame does not match its checksum")
    assert browser.run("return document.querySelectorAll('.map .cell.damaged').length") > 0
    opened.go("topics/hurt/messages?mode=browse")
    browser.find(".tail-status", "1 stretch damaged")


def test_nobody_gets_in_without_the_link_and_a_console_that_ends_says_so(browser: Browser, tmp_path: Path) -> None:
    other = Opened(hw.open(tmp_path / "store"), browser)
    with other.serving:
        browser.driver.get("about:blank")
        other.go("topics")
        browser.find("h1", "Open the link in the terminal")
        other.launch()
    browser.find("#state", "not connected")


PAGES = {
    "topics": ("topics", ".vt-row"),
    "topic": ("topics/orders", ".grid"),
    "messages": ("topics/orders/messages?mode=browse", ".vt-row"),
    "files": ("topics/orders/segments", ".map"),
    "groups": ("groups", ".vt-row"),
    "group": ("groups/shipping", ".grid"),
    "pipelines": ("pipelines", ".graph"),
    "steward": ("steward", ".grid"),
    "no-cluster": ("cluster", ".empty"),
    "overview": ("", ".charts canvas"),
}


def test_every_page_is_drawn_and_fits_a_phone(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene = Opened(play(Path("shop")), browser)
    with scene.serving, go_on(scene.store) if PICTURES else nullcontext():
        browser.look(1280, 860)
        scene.launch()
        for name, (page, drawn) in PAGES.items():
            scene.go(page)
            browser.find(drawn)
            if name == "messages":
                browser.click(".vt-row:nth-child(3)")
                browser.find(".drawer pre")
            for mode, (width, height, dark) in {
                "": (1280, 860, False),
                "-dark": (1280, 860, True),
                "-phone": (390, 780, False),
            }.items():
                if mode == "-dark" and not PICTURES:
                    continue
                browser.look(width, height, dark=dark)
                browser.until(lambda: browser.run("return document.documentElement.scrollWidth <= innerWidth"))
                if PICTURES:
                    time.sleep(0.7)
                    browser.driver.save_screenshot(str(Path(PICTURES) / f"{name}{mode}.png"))
            browser.look(1280, 860)
    assert browser.complaints() == []
