"""A soak: a cluster at work for minutes or days, to which anything happens that can, and for a while nothing does.

    python -m tests.faults soak --seed 7 --table            ten minutes
    python -m tests.faults soak --seed 7 --table --for 8h   a night

Writers and a reader are at work, a group whose members come and go, and programs that move records in transactions.
Chance chooses what happens and when; a quarter of the time is without faults, and then everybody must get on. In the
end all is read: nothing that was acknowledged may be lost, doubled, skipped, or different on another replica.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import headwater as hw
from headwater.client.cluster_status import call
from headwater.client.credentials import Credentials
from headwater.cluster.local import find_etcd
from headwater.core.address import parse_store
from headwater.core.errors import HeadwaterError
from headwater.core.names import GROUPS, WRITERS
from headwater.v1 import broker_pb2 as pb
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.cluster.crew import TOPIC, Crew
from tests.cluster.traced_broker import empty, lose_power
from tests.faults import Run, Unavailable, Violation, proof
from tests.faults.cluster_faults import flip, leader_of
from tests.faults.cluster_operations import small_disk
from tests.faults.moving import COUNTED, OUTPUTS, SOURCE
from tests.faults.soak_programs import Programs
from tests.support.patience import Patience, has_ended

_BROKERS: Final = 4
"""One more than there are replicas, so that there is somewhere to move them."""
_SMALL: Final = _BROKERS - 1
"""The broker whose disk can be full."""
_SMALL_BYTES: Final = 4 * 1024**3
_PARTITIONS: Final = 3
_TOPICS: Final = {TOPIC: _PARTITIONS, SOURCE: 3, **OUTPUTS, **COUNTED}
_SECONDS: Final = 600.0
_QUICK_SECONDS: Final = 20.0
_CALM: Final = 0.25
_CYCLE: Final = (2.0, 8.0)
_PACE: Final = 0.05
"""Writers rest so many seconds between batches, since their records have to fit in memory to be compared."""


class Scene:
    """A cluster and all who use it."""

    def __init__(self, run: Run, cluster: ClusterProcesses, disk: Path | None) -> None:
        self.cluster = cluster
        self.disk = disk
        """The mount point of the disk that can be full, or None if none can be mounted."""
        self.crew = Crew(cluster, seed=run.random.randrange(1 << 30), pace=_PACE)
        self.programs = Programs(run.directory, cluster, run.random)
        self.happened: Counter[str] = Counter()

    def suffer(self, run: Run) -> None:
        """Something happens."""
        fault = run.random.choice([one for one in FAULTS if one is not _fill_disk or self.disk is not None])
        self.happened[fault.__name__.strip("_").replace("_", " ")] += 1
        fault(run, self)

    def settle(self) -> None:
        """Wait until all replicas are in sync, wherever they are by now."""
        patience = Patience(PATIENCE)
        internal = [(name, number) for name in (GROUPS, WRITERS) for number in range(self._partitions(name))]
        for topic, number in [*((name, one) for name, count in _TOPICS.items() for one in range(count)), *internal]:
            while True:
                found = self.cluster.partition(topic, number)
                if set(found.in_sync) == set(found.replicas) and not found.moving_to:
                    break
                assert not patience.exhausted(), f"{topic}/{number}: {found.in_sync} of {found.replicas} are in sync"
                time.sleep(0.1)

    def _partitions(self, topic: str) -> int:
        with hw.open(self.cluster.address) as store:
            return store.describe_topic(topic).partitions


Fault = Callable[[Run, Scene], None]


@proof(row=23, title="a cluster at work, and anything that can happen to it", runs=1, quick=1, timeout=1800.0)
def soak(run: Run) -> Iterator[Violation]:
    """Faults by the roll of the die, for as long as `--for` says."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    seconds = run.seconds or (_QUICK_SECONDS if run.quick else _SECONDS)
    directory = run.directory / "cluster"
    with ExitStack() as resources:
        disk: Path | None = None
        try:
            disk = resources.enter_context(small_disk(directory / f"broker{_SMALL}", _SMALL_BYTES))
        except Unavailable as why:
            run.notes.append(f"no disk was full: {why}")
        processes = ClusterProcesses(
            directory, _BROKERS, "--session-timeout", "6", cuttable=True, program="tests.cluster.traced_broker"
        )
        scene = Scene(run, resources.enter_context(processes), disk)
        resources.callback(scene.programs.kill)
        yield from _go_on(scene)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            until = time.monotonic() + run.random.uniform(*_CYCLE)
            if run.random.random() > _CALM:
                scene.suffer(run)
            time.sleep(max(until - time.monotonic(), 0.0))
            yield from _go_on(scene)
        scene.settle()
        yield from scene.programs.check()
        yield from scene.crew.check()
        run.notes.append(", ".join(f"{name} × {times}" for name, times in sorted(scene.happened.items())))


def _go_on(scene: Scene) -> Iterator[Violation]:
    yield from scene.crew.go_on(10)
    yield from scene.programs.go_on()


# Events.


def _kill(run: Run, scene: Scene) -> None:
    broker = (
        leader_of(run, scene.cluster) if run.random.random() < 0.7 else run.random.choice(list(scene.cluster.brokers))
    )
    scene.cluster.kill(broker)
    time.sleep(run.random.uniform(0.0, 3.0))
    scene.cluster.begin(broker)


def _kill_all(run: Run, scene: Scene) -> None:
    scene.cluster.kill(*range(_BROKERS))
    for broker in run.random.sample(range(_BROKERS), _BROKERS):
        scene.cluster.begin(broker)


def _restart(run: Run, scene: Scene) -> None:
    broker = run.random.choice(list(scene.cluster.brokers))
    scene.cluster.brokers[broker].process.send_signal(signal.SIGTERM)
    assert has_ended(scene.cluster.brokers.pop(broker).process, PATIENCE), f"broker {broker} does not end"
    scene.cluster.begin(broker)


def _pause(run: Run, scene: Scene) -> None:
    leader = leader_of(run, scene.cluster)
    scene.cluster.pause(leader)
    time.sleep(run.random.choice((1.0, 4.0, 12.0)))
    scene.cluster.go_on(leader)


def _cut_off(run: Run, scene: Scene) -> None:
    to_it, to_etcd = scene.cluster.ways[leader_of(run, scene.cluster)]
    chosen = run.random.choice([(to_it,), (to_etcd,), (to_it, to_etcd)])
    for way in chosen:
        if run.random.random() < 0.5:
            way.cut(refuse=True)
        else:
            way.stall()
    time.sleep(run.random.choice((1.0, 4.0, 12.0)))
    for way in chosen:
        way.go_on()


def _take_etcd(run: Run, scene: Scene) -> None:
    killed = run.random.random() < 0.5
    if killed:
        scene.cluster.etcd.kill()
    else:
        scene.cluster.etcd.pause()
    time.sleep(run.random.choice((1.0, 12.0)))
    if killed:
        scene.cluster.etcd.start()
    else:
        scene.cluster.etcd.go_on()


def _lose_disk(run: Run, scene: Scene) -> None:
    """One at a time: nothing survives the loss of all."""
    scene.settle()
    broker = run.random.choice(list(scene.cluster.brokers))
    scene.cluster.kill(broker)
    empty(scene.cluster.directory / f"broker{broker}")
    scene.cluster.begin(broker)
    scene.settle()


def _damage(run: Run, scene: Scene) -> None:
    scene.settle()
    number = run.random.randrange(_PARTITIONS)
    leader = scene.cluster.partition(TOPIC, number).leader
    logs = sorted((scene.cluster.directory / f"broker{leader}" / TOPIC / str(number)).glob("*.log"))
    if logs:
        flip(run, run.random.choice(logs))
        with hw.open(scene.cluster.address) as store:  # who reads it sees nothing of that, and it is repaired
            for _ in store.partition(store.describe_topic(TOPIC), number).frames():
                pass


def _move(run: Run, scene: Scene) -> None:
    """Send replicas away from a broker, or back; and now and then think better of it."""
    chosen = run.random.choice(list(scene.cluster.brokers))
    address = parse_store(scene.cluster.address)

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


def _lose_power(run: Run, scene: Scene) -> None:
    """One or all of them lose what they had not synced, or any part of it."""
    brokers = range(_BROKERS) if run.random.random() < 0.5 else [run.random.randrange(_BROKERS)]
    scene.cluster.kill(*brokers)
    for broker in brokers:
        lose_power(scene.cluster.directory / f"broker{broker}", run.random)
    scene.cluster.begin(*run.random.sample(brokers, len(brokers)))


def _fill_disk(run: Run, scene: Scene) -> None:
    """The disk of one broker becomes as small as what is on it, for a while."""
    _resize(scene, 4096)
    time.sleep(run.random.choice((2.0, 8.0)))
    _resize(scene, _SMALL_BYTES)


def _resize(scene: Scene, size: int) -> None:
    """A disk that has as much on it as its size, or more, takes no more and keeps what it has."""
    disk = str(scene.disk)
    while True:
        used = int(subprocess.check_output(["df", "--output=used", "--block-size=1", disk]).split()[-1])
        remount = ["mount", "-o", f"remount,size={max(size, used)}", disk]
        if not subprocess.run(remount, check=False, capture_output=True).returncode:
            return  # otherwise there was more on it by then


def _kill_program(run: Run, scene: Scene) -> None:  # noqa: ARG001 - chance is the programs' own
    scene.programs.kill_one()


def _change_group(run: Run, scene: Scene) -> None:
    for _ in range(run.random.randint(1, 3)):
        scene.programs.change_group()


FAULTS: Final[tuple[Fault, ...]] = (
    *(_kill, _kill, _kill_all, _restart, _pause, _cut_off, _take_etcd, _lose_disk, _damage, _move, _move),
    *(_lose_power, _lose_power, _fill_disk, _fill_disk, _kill_program, _change_group, _change_group),
)
