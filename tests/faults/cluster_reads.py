"""Brokers of a cluster fail while every one of them is asked for records: no answer shows less than an earlier one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, Final

from headwater.cluster.local import find_etcd
from tests.cluster.cluster import ETCD, ClusterProcesses, host_of
from tests.cluster.network import Network, NoNetwork
from tests.cluster.onlookers import TOPIC, Onlookers
from tests.faults import Run, Unavailable, Violation, proof

_LEASE: Final = 3.0
_EVERYONE: Final = {0, 1, 2}


def _kill_the_leader(run: Run, cluster: ClusterProcesses, _: Onlookers) -> None:
    leader = cluster.wait(TOPIC, in_sync=_EVERYONE).leader
    cluster.kill(leader)
    time.sleep(run.random.uniform(0.0, 2 * _LEASE))
    cluster.begin(leader)


def _kill_the_leader_and_stop_another(run: Run, cluster: ClusterProcesses, onlookers: Onlookers) -> None:
    """The replica that is left is elected, and must not answer before one of the others is back."""
    state = cluster.wait(TOPIC, in_sync=_EVERYONE)
    leader = state.leader
    left, stopped = (one for one in state.replicas if one != leader)
    cluster.pause(stopped)
    cluster.kill(leader)
    cluster.wait_for_leader(TOPIC, left)
    onlookers.wait_for_questions(left)
    if run.random.random() < 0.5:
        cluster.begin(leader)
        cluster.wait(TOPIC, in_sync={left, leader}, at=left)
        cluster.go_on(stopped)
    else:
        cluster.go_on(stopped)
        cluster.begin(leader)


def _kill_all(run: Run, cluster: ClusterProcesses, _: Onlookers) -> None:
    cluster.wait(TOPIC, in_sync=_EVERYONE)
    cluster.kill(0, 1, 2)
    for broker in run.random.sample(range(3), 3):
        cluster.begin(broker)


def _cut_the_leader_off(run: Run, cluster: ClusterProcesses, _: Onlookers) -> None:
    """Clients reach it all the time: it has to find out by itself that another one leads."""
    leader = cluster.wait(TOPIC, in_sync=_EVERYONE).leader
    others = [host_of(broker) for broker in range(3) if broker != leader]
    seconds = run.random.choice((1.0, 2 * _LEASE, 4 * _LEASE))
    from_others, from_etcd = run.random.choice([(True, True), (False, True), (True, False)])
    if cluster.network is None:
        to_it, to_etcd = cluster.ways[leader]
        chosen = [way for way, cut in ((to_it, from_others), (to_etcd, from_etcd)) if cut]
        for way in chosen:
            way.stall()
        time.sleep(seconds)
        for way in chosen:
            way.go_on()
        return
    whom = [*(others if from_others else ()), *([ETCD] if from_etcd else ())]
    cluster.network.cut([host_of(leader)], whom)
    cluster.network.cut(whom, [host_of(leader)])
    time.sleep(seconds)
    cluster.network.heal()


_FAULTS: Final[tuple[Callable[[Run, ClusterProcesses, Onlookers], None], ...]] = (
    _kill_the_leader,
    _kill_the_leader_and_stop_another,
    _kill_all,
    _cut_the_leader_off,
)


@proof(
    row=26,
    title="reads after a failover: leader killed, also with another one stopped; all killed; leader cut off",
    runs=500,
    quick=2,
    timeout=600.0,
)
def cluster_reads(run: Run) -> Iterator[Violation]:
    """Two faults in each run, so that two runs have them all."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    faults = list(islice(cycle(_FAULTS), first := 2 * run.number % len(_FAULTS), first + 2))
    if _cut_the_leader_off not in faults:
        yield from _suffer(run, faults)
        return
    try:
        network = Network([*map(host_of, range(3)), ETCD])
    except NoNetwork as why:
        run.notes.append(f"connections were cut in proxies, not packets between network namespaces: {why}")
        yield from _suffer(run, faults, cuttable=True)
        return
    with network:
        yield from _suffer(run, faults, network=network)


def _suffer(
    run: Run, faults: list[Callable[[Run, ClusterProcesses, Onlookers], None]], **options: Any
) -> Iterator[Violation]:
    with ClusterProcesses(run.directory / "cluster", 3, "--etcd-lease", f"{_LEASE:g}s", **options) as cluster:
        onlookers = Onlookers(cluster, seed=run.random.randrange(1 << 30))
        yield from onlookers.go_on()
        for fault in faults:
            fault(run, cluster, onlookers)
            yield from onlookers.go_on()
        yield from onlookers.check()
