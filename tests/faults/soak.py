"""A soak: a cluster at work for minutes or days, to which anything happens that can, and for a while nothing does.

    python -m tests.faults soak --seed 7 --table            ten minutes
    python -m tests.faults soak --seed 7 --table --for 8h   a night

Chance chooses what happens and when; a quarter of the time is without faults, and then everybody must get on. In the
end all is read: nothing that was acknowledged may be lost, doubled, or different on another replica.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

import headwater as hw
from headwater.cli.cluster_status import call
from headwater.client.credentials import Credentials
from headwater.cluster.local import find_etcd
from headwater.errors import HeadwaterError
from headwater.v1 import broker_pb2 as pb
from headwater.wire.address import parse_store
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.cluster.crew import TOPIC, Crew
from tests.faults import Run, Unavailable, Violation, proof
from tests.faults.cluster_faults import flip, leader_of

_BROKERS: Final = 4
"""One more than there are replicas, so that there is somewhere to move them."""
_PARTITIONS: Final = 3
_SECONDS: Final = 600.0
_QUICK_SECONDS: Final = 20.0
_CALM: Final = 0.25
_CYCLE: Final = (2.0, 8.0)
_PACE: Final = 0.05
"""How long writers rest between batches: what was written has to fit in memory to be compared. Seconds."""

Fault = Callable[[Run, ClusterProcesses], None]


@proof(row=23, title="a cluster at work, and anything that can happen to it", runs=1, quick=1, timeout=1800.0)
def soak(run: Run) -> Iterator[Violation]:
    """Faults by the roll of the die, for as long as `--for` says."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    seconds = run.seconds or (_QUICK_SECONDS if run.quick else _SECONDS)
    with ClusterProcesses(run.directory / "cluster", _BROKERS, cuttable=True) as cluster:
        crew = Crew(cluster, seed=run.random.randrange(1 << 30), pace=_PACE)
        yield from crew.go_on()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            until = time.monotonic() + run.random.uniform(*_CYCLE)
            if run.random.random() > _CALM:
                run.random.choice(FAULTS)(run, cluster)
            time.sleep(max(until - time.monotonic(), 0.0))
            yield from crew.go_on(10)
        _settle(cluster)
        yield from crew.check()


def _settle(cluster: ClusterProcesses) -> None:
    """Wait until all replicas are in sync, wherever they are by now."""
    deadline = time.monotonic() + PATIENCE
    for number in range(_PARTITIONS):
        while True:
            found = cluster.partition(TOPIC, number)
            if set(found.in_sync) == set(found.replicas) and not found.moving_to:
                break
            assert time.monotonic() < deadline, f"{number}: in sync are {found.in_sync} of {found.replicas}"
            time.sleep(0.1)


# What can happen.


def _kill(run: Run, cluster: ClusterProcesses) -> None:
    broker = leader_of(run, cluster) if run.random.random() < 0.7 else run.random.choice(list(cluster.brokers))
    cluster.kill(broker)
    time.sleep(run.random.uniform(0.0, 3.0))
    cluster.begin(broker)


def _kill_all(run: Run, cluster: ClusterProcesses) -> None:
    cluster.kill(*range(_BROKERS))
    for broker in run.random.sample(range(_BROKERS), _BROKERS):
        cluster.begin(broker)


def _restart(run: Run, cluster: ClusterProcesses) -> None:
    broker = run.random.choice(list(cluster.brokers))
    cluster.brokers[broker].process.send_signal(signal.SIGTERM)
    cluster.brokers.pop(broker).process.wait(PATIENCE)
    cluster.begin(broker)


def _pause(run: Run, cluster: ClusterProcesses) -> None:
    leader = leader_of(run, cluster)
    cluster.pause(leader)
    time.sleep(run.random.choice((1.0, 4.0, 12.0)))
    cluster.go_on(leader)


def _cut_off(run: Run, cluster: ClusterProcesses) -> None:
    to_it, to_etcd = cluster.ways[leader_of(run, cluster)]
    chosen = run.random.choice([(to_it,), (to_etcd,), (to_it, to_etcd)])
    for way in chosen:
        if run.random.random() < 0.5:
            way.cut(refuse=True)
        else:
            way.stall()
    time.sleep(run.random.choice((1.0, 4.0, 12.0)))
    for way in chosen:
        way.go_on()


def _take_etcd(run: Run, cluster: ClusterProcesses) -> None:
    killed = run.random.random() < 0.5
    if killed:
        cluster.etcd.kill()
    else:
        cluster.etcd.pause()
    time.sleep(run.random.choice((1.0, 12.0)))
    if killed:
        cluster.etcd.start()
    else:
        cluster.etcd.go_on()


def _lose_disk(run: Run, cluster: ClusterProcesses) -> None:
    """One at a time: nothing survives the loss of all."""
    _settle(cluster)
    broker = run.random.choice(list(cluster.brokers))
    cluster.kill(broker)
    shutil.rmtree(cluster.directory / f"broker{broker}")
    cluster.begin(broker)
    _settle(cluster)


def _damage(run: Run, cluster: ClusterProcesses) -> None:
    _settle(cluster)
    number = run.random.randrange(_PARTITIONS)
    leader = cluster.partition(TOPIC, number).leader
    logs = sorted((cluster.directory / f"broker{leader}" / TOPIC / str(number)).glob("*.log"))
    if logs:
        flip(run, run.random.choice(logs))
        with hw.open(cluster.address) as store:  # who reads it sees nothing of that, and it is repaired
            for _ in store.partition(store.describe_topic(TOPIC), number).frames():
                pass


def _move(run: Run, cluster: ClusterProcesses) -> None:
    """Send replicas away from a broker, or back; and now and then think better of it."""
    chosen = run.random.choice(list(cluster.brokers))
    address = parse_store(cluster.address)

    def ask(method: str, request: object) -> pb.Moves:
        found: pb.Moves = call(address, Credentials(), method, request, PATIENCE)
        return found

    leaving = [] if run.random.random() < 0.5 else [chosen]
    regret = run.random.random() < 0.3
    try:
        ask("CancelMoves", pb.CancelMovesRequest(remove=range(_BROKERS)))  # who was removed may have replicas again
        plan = ask("PlanMoves", pb.PlanMovesRequest(remove=leaving))
        ask("BeginMoves", pb.BeginMovesRequest(moves=plan.moves, remove=leaving))
        if regret:
            ask("CancelMoves", pb.CancelMovesRequest(remove=leaving))
    except HeadwaterError:
        return  # too few brokers are alive for that, or etcd has just gone: it is refused, and says so


FAULTS: Final[tuple[Fault, ...]] = (
    *(_kill, _kill, _kill_all, _restart, _pause, _cut_off, _take_etcd, _lose_disk, _damage, _move, _move),
)
