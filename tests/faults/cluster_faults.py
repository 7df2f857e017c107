"""Brokers of a cluster are killed, stopped and damaged, and so is its etcd: nothing acknowledged is lost or doubled.

Three brokers and an etcd, each a process of its own, with writers and a reader that are told of nothing. In the end
every replica must have the same records at the same offsets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.cluster.local import find_etcd
from headwater.testing.device import Mood
from tests.cluster.cluster import ETCD, ClusterProcesses, host_of
from tests.cluster.crew import IMPATIENT, TOPIC, Crew
from tests.cluster.network import CLIENTS, Network, NoNetwork
from tests.cluster.traced_broker import lose_power
from tests.faults import Run, Unavailable, Violation, proof

Fault = Callable[[Run, ClusterProcesses], None]


def suffer(run: Run, fault: Fault, times: int, *, sync: str | float = "always", **options: Any) -> Iterator[Violation]:
    """A cluster at work, to which a fault happens several times. `sync` is the mode of its topic."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    lease = ("--etcd-lease", "3s") if run.quick else ()
    with ClusterProcesses(run.directory / "cluster", 3, *lease, **options) as cluster:
        client = IMPATIENT if run.quick else hw.ClientConfig()
        crew = Crew(cluster, seed=run.random.randrange(1 << 30), client=client, sync=sync)
        yield from crew.go_on()
        for _ in range(times):
            time.sleep(run.random.uniform(0.0, 0.5))
            fault(run, cluster)
            yield from crew.go_on()
        yield from crew.check()


def _last(run: Run, *seconds: float) -> None:
    """Let a fault last; in the short form, for less or more than the lease there."""
    time.sleep(run.random.choice((1.0, 4.0) if run.quick else seconds))


def leader_of(run: Run, cluster: ClusterProcesses) -> int:
    """A broker that leads some partition."""
    while True:
        leader = cluster.partition(TOPIC, run.random.randrange(3)).leader
        if leader in cluster.brokers:
            return leader
        time.sleep(0.05)


@proof(row=15, title="a cluster's leader is killed while producers retry", runs=200, quick=2, timeout=400.0)
def cluster_kills(run: Run) -> Iterator[Violation]:
    """Kill a leader, at times another one before it is back, and start them again."""

    def kill(run: Run, cluster: ClusterProcesses) -> None:
        leader = leader_of(run, cluster)
        cluster.kill(leader)
        time.sleep(run.random.uniform(0.0, 2.0))
        cluster.begin(leader)
        if run.random.random() < 0.5:
            for number in range(3):
                cluster.wait(TOPIC, number, in_sync={0, 1, 2})

    yield from suffer(run, kill, 2 if run.quick else 6)


@proof(row=18, title="all brokers of a cluster are killed at once", runs=200, quick=2, timeout=400.0)
def cluster_outage(run: Run) -> Iterator[Violation]:
    """Kill all of them, and start them again in any order."""

    def kill(run: Run, cluster: ClusterProcesses) -> None:
        cluster.kill(0, 1, 2)
        for broker in run.random.sample(range(3), 3):
            cluster.begin(broker)

    yield from suffer(run, kill, 1 if run.quick else 4)


@proof(row=18, title="all brokers of a cluster lose their power at once", runs=200, quick=2, timeout=400.0)
def cluster_power_loss(run: Run) -> Iterator[Violation]:
    """Kill all of them; of what they had not synced nothing is left, or any part, torn and in any order."""
    moods: Iterator[Mood | None] = chain(("oldest",), repeat(None))

    def lose(run: Run, cluster: ClusterProcesses) -> None:
        cluster.kill(0, 1, 2)
        mood = next(moods)
        for broker in range(3):
            lose_power(cluster.directory / f"broker{broker}", run.random, mood)
        cluster.begin(*run.random.sample(range(3), 3))

    # Records that replicas acknowledge are durable in every mode.
    sync = ("always", "never", 0.5)[run.number % 3]
    yield from suffer(run, lose, 2 if run.quick else 6, sync=sync, program="tests.cluster.traced_broker")


@proof(
    row=16, title="a cluster's leader is stopped, and goes on when another one leads", runs=100, quick=2, timeout=600.0
)
def cluster_pauses(run: Run) -> Iterator[Violation]:
    """Stop a leader for longer or shorter than its lease lasts."""

    def stop(run: Run, cluster: ClusterProcesses) -> None:
        leader = leader_of(run, cluster)
        cluster.pause(leader)
        _last(run, 1.0, 5.0, 15.0)
        cluster.go_on(leader)

    yield from suffer(run, stop, 1 if run.quick else 4)


@proof(
    row=16,
    title="a cluster's leader is cut off: on one way or both, from some or all of the others, etcd and clients",
    runs=100,
    quick=2,
    timeout=1200.0,
)
def cluster_cuts(run: Run) -> Iterator[Violation]:
    """Packets are lost on one way or on both, between a leader and some or all; where that cannot be, connections."""
    try:
        network = Network([*map(host_of, range(3)), ETCD])
    except NoNetwork as why:
        run.notes.append(f"connections were cut in proxies, not packets between network namespaces: {why}")
        yield from suffer(run, _cut_connections, 1 if run.quick else 4, cuttable=True)
        return
    with network:
        yield from suffer(run, _lose_packets, 1 if run.quick else 4, network=network)


def _lose_packets(run: Run, cluster: ClusterProcesses) -> None:
    """One of many ways not to reach one another."""
    network = cluster.network
    assert network is not None
    leader = leader_of(run, cluster)
    it, others = [host_of(leader)], [host_of(broker) for broker in range(3) if broker != leader]
    one = [run.random.choice(others)]
    whom = run.random.choice(
        [
            [*others, ETCD, CLIENTS],  # it is gone, for everybody
            [*others, ETCD],  # but clients can still ask it
            one,  # whom all others do reach
            [ETCD],
        ]
    )
    heard, hears = run.random.choice([(False, False), (False, False), (True, False), (False, True)])
    if not heard:
        network.cut(it, whom)
    if not hears:
        network.cut(whom, it)
    _last(run, 5.0, 15.0, 60.0)
    network.heal()


def _cut_connections(run: Run, cluster: ClusterProcesses) -> None:
    """The leader reaches others who do not reach it, or etcd where they do not, or the other way round."""
    to_it, to_etcd = cluster.ways[leader_of(run, cluster)]
    chosen = run.random.choice([(to_it,), (to_etcd,), (to_it, to_etcd)])
    for way in chosen:
        if run.random.random() < 0.5:
            way.cut(refuse=True)
        else:
            way.stall()
    _last(run, 5.0, 15.0, 60.0)
    for way in chosen:
        way.go_on()


@proof(row=19, title="one replica of three is damaged, and read", runs=200, quick=2, timeout=400.0)
def cluster_damage(run: Run) -> Iterator[Violation]:
    """Flip a bit in the log of a leader that serves, and read it: whoever does sees nothing of that."""

    def damage(run: Run, cluster: ClusterProcesses) -> None:
        number = run.random.randrange(3)
        state = cluster.wait(TOPIC, number, in_sync={0, 1, 2})
        logs = sorted((cluster.directory / f"broker{state.leader}" / TOPIC / str(number)).glob("*.log"))
        flip(run, run.random.choice(logs))
        with hw.open(cluster.address) as store:
            for _ in store.partition(store.describe_topic(TOPIC), number).frames():
                pass

    yield from suffer(run, damage, 1 if run.quick else 4)


def flip(run: Run, log: Path) -> None:
    """Flip a bit behind the header of a segment."""
    with log.open("r+b") as file:
        file.seek(run.random.randrange(80, max(log.stat().st_size, 81)))
        found = file.read(1)
        if found:
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([found[0] ^ 1 << run.random.randrange(8)]))


@proof(row=20, title="a cluster's etcd is killed, or stopped", runs=200, quick=2, timeout=600.0)
def cluster_etcd(run: Run) -> Iterator[Violation]:
    """Take etcd away, for longer than leases last too, and kill a leader meanwhile now and then."""

    def take_away(run: Run, cluster: ClusterProcesses) -> None:
        killed = run.random.random() < 0.5
        if killed:
            cluster.etcd.kill()
        else:
            cluster.etcd.pause()
        _last(run, 1.0, 12.0)
        victim = run.random.randrange(3) if run.random.random() < 0.5 else None
        if victim is not None:
            cluster.kill(victim)
        if killed:
            cluster.etcd.start()
        else:
            cluster.etcd.go_on()
        if victim is not None:
            cluster.begin(victim)

    yield from suffer(run, take_away, 1 if run.quick else 4)
