"""A bad network between a broker and its clients: every connection is slow, some are reset, and now and then all stall.

Nobody is told of anything: producers and consumers go on by themselves, and nothing is lost, doubled or skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import headwater as hw
from tests.faults import Run, Violation, proof
from tests.faults.broker_kills import all_go_on, crew_of, serve
from tests.faults.children import Child, failures
from tests.faults.streams import STORE, TOPIC, verify
from tests.support.ports import free_port
from tests.support.proxy import Proxy

PARTITIONS = 3
DELAY = (0.025, 0.075)
"""For each direction: there and back it is 100 ± 50 ms."""
RESETS = 0.05


def _disturb(proxy: Proxy, random: Random) -> None:
    """Let the network be worse than usual for a moment."""
    match random.choice(("nothing", "cut", "refuse", "stall", "stall and cut")):
        case "cut":
            proxy.cut()
        case "refuse":
            proxy.cut(refuse=True)
        case "stall":
            proxy.stall()
        case "stall and cut":
            proxy.stall()
            time.sleep(random.uniform(0.0, 0.3))
            proxy.cut()
    time.sleep(random.uniform(0.0, 0.5))
    proxy.go_on()


@proof(
    row=17,
    title="100 ± 50 ms delay, 5 % of connections reset, stalls and cuts between a broker and its clients",
    runs=50,
    quick=1,
    timeout=600.0,
)
def flaky_network(run: Run) -> Iterator[Violation]:
    """Serve through a bad network while everyone works, kill everyone, and read the topic."""
    with hw.open(run.directory / STORE) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=256 * 1024, index_interval=1024)
    port = free_port()
    serving = Child(lambda: serve(run.directory, port, None), run.directory / "broker.error")
    way = free_port()
    network = Child(lambda: _network(way, port, run), run.directory / "network.error")
    crew = crew_of(run, f"hw://127.0.0.1:{way}")
    try:
        yield from all_go_on(run.directory)
        time.sleep(4 if run.quick else 300)
        yield from all_go_on(run.directory)
    finally:
        for child in (*crew.values(), network, serving):
            child.kill()
    yield from failures(run.directory)
    yield from verify(run.directory)


def _network(port: int, target: int, run: Run) -> None:
    with Proxy(target, run.random, delay=DELAY, resets=RESETS, port=port) as proxy:
        while True:
            time.sleep(run.random.uniform(0.2, 2.0))
            _disturb(proxy, run.random)
