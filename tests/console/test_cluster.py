"""The console over a cluster of real processes, in a real browser: what the brokers have together, and if one dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.names import HISTORY
from headwater.streams.history import entries
from tests.cluster.cluster import ClusterProcesses
from tests.support.browser import PATIENCE, Browser, needs_browser
from tests.support.console import Opened
from tests.support.etcd_server import needs_etcd
from tests.support.patience import Patience

pytestmark = [needs_browser, needs_etcd]
PICTURES = os.environ.get("HEADWATER_CONSOLE_PICTURES")
"""A directory for the picture of the cluster's page, which docs/console.md shows."""


def wait_for_history(store: hw.Store, since_ns: int, count: int) -> None:
    """Wait until so many entries were noted since then."""
    patience = Patience(PATIENCE)
    while len(list(entries(store, since_ns))) < count:
        assert not patience.exhausted(), "the history does not go on"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers that note their history often, with topics and a group that is behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_STEWARD_HISTORY", "300ms")
        with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as cluster:
            with hw.open(cluster.address) as store:
                store.create_topic("orders", 3)
                store.create_topic("trades", schema=pa.schema([("symbol", pa.string()), ("price", pa.float64())]))
                with store.producer("orders") as orders, store.producer("trades") as trades:
                    for number in range(300):
                        orders.send(b'{"order": %d}' % number, key=b"customer-%d" % (number % 10), partition=number % 3)
                    trades.send({"symbol": "HW", "price": 10.5})
                with store.consumer("orders", group="billing") as inbox:
                    done = 0
                    while done < 100:
                        for record in inbox.poll(100 - done, timeout=PATIENCE):
                            inbox.ack(record)
                            done += 1
                wait_for_history(store, 0, 4)
            yield cluster


@pytest.fixture(scope="module")
def opened(cluster: ClusterProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    browser = Browser(tmp_path_factory.mktemp("downloads"))
    try:
        opened = Opened(hw.open(cluster.address), browser)
        with opened.serving:
            opened.launch()
            yield opened
    finally:
        browser.close()


def test_all_pages_show_what_the_brokers_have_together(opened: Opened) -> None:
    browser = opened.browser
    browser.find(".figure", "301")
    browser.until(lambda: browser.run("return document.querySelectorAll('.chart canvas').length") == 4)
    # The charts began before the page did, and nobody has to be asked to keep their history.
    chart = "const one = document.querySelector('.chart'); return one && Number(one.dataset.first)"
    browser.until(lambda: (browser.run(chart) or opened.began) < opened.began)
    assert browser.find(".history").text.count("steward") == 0

    opened.go("topics")
    browser.find(".vt-row", "orders")
    browser.find(".vt-row", "200")  # its lag
    opened.go("topics/orders")
    browser.find(".grid td", "billing")
    browser.find(".figure", "300")
    opened.go("topics/orders/messages?mode=browse")
    browser.find(".vt-row", '{"order": 299}')
    opened.go("topics/trades/messages?mode=browse")
    browser.find(".vt-row", "10.5")
    opened.go("topics/orders/messages")
    browser.until(lambda: browser.attribute(".tail-status", "data-open") == "true")
    with opened.store.producer("orders") as out:
        out.send(b"a late one")
    browser.find(".vt-row", "a late one")

    opened.go("groups")
    browser.find(".vt-row", "billing")
    opened.go("groups/billing")
    browser.find(".figure .value", "201")
    opened.go("cluster")
    browser.find(".figure", "Brokers\n3")
    browser.find(".vt-row", "orders/2")
    browser.until(lambda: browser.run("return document.querySelectorAll('.vt-row .tag.good').length") >= 9)
    browser.until(lambda: len(browser.driver.find_elements("css selector", ".grid .tag.good")) == 3)
    if PICTURES:
        browser.driver.save_screenshot(str(Path(PICTURES) / "cluster.png"))
    opened.go("steward")
    browser.find(".card", "The brokers of a cluster")
    assert browser.complaints() == []


def test_a_broker_that_dies_is_missed_and_the_rest_goes_on(cluster: ClusterProcesses, opened: Opened) -> None:
    browser, store = opened.browser, opened.store
    victim = cluster.partition(HISTORY).leader
    opened.go("cluster")
    browser.find(".figure", "Brokers\n3")
    cluster.kill(victim)
    died = time.time_ns()
    browser.find(".figure", "Brokers\n2")
    browser.find(".grid .tag.bad", "away")
    browser.find(".vt-row .tag.bad", str(victim))  # out of sync
    with store.producer("orders") as out:
        for _ in range(3):
            out.send(b"without it", partition=0)
    # Another one leads the history by now, and begins with a whole sample.
    wait_for_history(store, died, 2)
    opened.go("")
    browser.find(".attention-list", f"broker {victim} is away")
    browser.find(".attention-list", "replicas not in sync")
    browser.find(".figure", "305")
    assert browser.complaints() == []
