"""Two replicas of a cluster are damaged in different ways, and the third has a new disk: they repair one another."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Final
from unittest.mock import patch

import headwater as hw
from headwater.cluster.local import find_etcd
from headwater.log import Damage
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.cluster.damage import LOSSES, flip, frames_in, lose
from tests.faults import Run, Unavailable, Violation, proof
from tests.faults.violation import Kind

TOPIC: Final = "numbers"
FRAMES: Final = 120
MOST_LINES: Final = 120
"""So many complaints of a broker can still be read."""


@proof(row=30, title="different damage on two replicas, and the third is empty", runs=100, quick=1, timeout=600.0)
def cluster_different_damage(run: Run) -> Iterator[Violation]:
    """Damage some frames of one replica, others of the second, a few of both, and take the third one's disk away."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    with ClusterProcesses(run.directory / "cluster", 3, "--etcd-lease", "3s") as cluster:
        values = _fill(run, cluster)
        before = cluster.wait(TOPIC, in_sync={0, 1, 2})
        empty = run.random.choice([one for one in range(3) if one != before.leader])
        follower = 3 - before.leader - empty
        cluster.kill(empty)
        shutil.rmtree(cluster.directory / f"broker{empty}")
        lost = _damage(run, cluster, before.leader, follower)
        cluster.begin(empty)
        yield from _check(cluster, values, lost)
        if not lost:
            cluster.wait(TOPIC, in_sync={0, 1, 2})
        after = cluster.partition(TOPIC)
        if (after.leader, after.leader_epoch) != (before.leader, before.leader_epoch):
            yield Violation(Kind.BLOCKED, f"leadership went from {before.leader} to {after.leader}")
        yield from _check_lines(cluster)
        # Now it is the second one's turn to be read.
        cluster.kill(before.leader, empty)
        _wait_for_leader(cluster, follower)
        cluster.begin(before.leader, empty)
        yield from _check(cluster, values, lost)
        after = cluster.partition(TOPIC)
        if after.leader != follower:
            yield Violation(Kind.BLOCKED, f"leadership went from {follower} to {after.leader}")
        yield from _check_lines(cluster)


def _fill(run: Run, cluster: ClusterProcesses) -> list[bytes]:
    """A topic on all replicas, in segments of some size; what is in it."""
    values: list[bytes] = []
    with hw.open(cluster.address) as store:
        store.create_topic(TOPIC, segment_bytes=run.random.choice((4096, 16384, 1 << 30)))
        with store.producer(TOPIC) as out:
            for _ in range(FRAMES):
                for _ in range(run.random.choice((1, 1, 5))):
                    values.append(b"%d " % len(values) + run.random.randbytes(run.random.randrange(200)))
                    out.send(values[-1])
                out.flush()
    cluster.wait(TOPIC, in_sync={0, 1, 2})
    cluster.wait_for_copies(TOPIC)
    return values


def _damage(run: Run, cluster: ClusterProcesses, *brokers: int) -> set[int]:
    """Damage frames of two replicas; the offsets that nobody has intact then."""
    one, other = (frames_in(cluster.files(broker, TOPIC)) for broker in brokers)
    numbers = run.random.sample(range(len(one)), run.random.choice((2, 10, 40)))
    both = set(numbers[: run.random.choice((0, 0, 1, 3))])
    for number in numbers:
        for frames in (one, other) if number in both else (run.random.choice((one, other)),):
            flip(frames[number], run.random.randrange(8 * frames[number].length))
    return {offset for number in both for offset in range(one[number].offset, one[number].next_offset)}


def _check(cluster: ClusterProcesses, values: list[bytes], lost: set[int]) -> Iterator[Violation]:
    """Read everything: what is intact somewhere is served, and the rest is named."""
    found: dict[int, bytes | None] = {}
    named: list[Damage] = []
    with hw.open(cluster.address) as store:
        for record in store.topic(TOPIC).partition(0).records(on_damage=named.append):
            found[record.offset] = record.value
    for offset, value in enumerate(values):
        if offset in lost:
            if offset in found:
                yield Violation(Kind.SERVED_DAMAGE, f"{offset} was served")
            elif not any(one.offset <= offset < one.next_offset for one in named):
                yield Violation(Kind.LOST_WRITE, f"{offset} is gone, and nobody says so")
        elif found.get(offset) != value:
            yield Violation(Kind.LOST_WRITE, f"{offset} is intact somewhere, and not served: {found.get(offset)!r}")


@proof(row=25, title="one replica of three has lost a closed segment", runs=200, quick=1, timeout=600.0)
def cluster_lost_segments(run: Run) -> Iterator[Violation]:
    """Take a segment of one replica, raw or compacted, while it is down; give another one a new disk; let it lead."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    compact = run.random.random() < 0.5
    with (
        patch.dict(os.environ, HEADWATER_STEWARD_INTERVAL="0.5s"),
        ClusterProcesses(run.directory / "cluster", 3, "--etcd-lease", "3s") as cluster,
    ):
        expected = _fill_keys(run, cluster, compact=compact)
        lost, empty = run.random.sample(range(3), 2)
        cluster.kill(lost, empty)
        closed = sorted(cluster.files(lost, TOPIC).glob("*.log"))[:-1]
        lose(
            run.random.choice((closed[0], closed[-1], run.random.choice(closed))), run.random.choice(LOSSES), run.random
        )
        if run.random.random() < 0.7:
            shutil.rmtree(cluster.directory / f"broker{empty}")
        cluster.begin(*run.random.sample((lost, empty), 2))
        cluster.wait(TOPIC, in_sync={0, 1, 2})
        cluster.let_lead(lost, TOPIC)
        with hw.open(cluster.address) as store:
            yield from _check_keys(store.topic(TOPIC).partition(0).records(), expected, "a reader")
        for broker in range(3):
            yield from _check_keys(cluster.stored(broker, TOPIC), expected, f"broker {broker}")
        yield from _check_lines(cluster)


def _fill_keys(run: Run, cluster: ClusterProcesses, *, compact: bool) -> dict[bytes | None, bytes | None]:
    """A topic of which each broker has compacted what it can, or none; the newest value of each key."""
    expected: dict[bytes | None, bytes | None] = {}
    with hw.open(cluster.address) as store:
        store.create_topic(TOPIC, segment_bytes=4096, compression="none", compact=compact)
        with store.producer(TOPIC) as out:
            for number in range(FRAMES):
                key = b"once %d" % number if number % 2 else b"again %d" % (number % 8)
                expected[key] = b"%d" % number + b"." * run.random.randrange(300)
                out.send(expected[key], key=key)
                out.flush()
        deadline = time.monotonic() + PATIENCE
        while compact and sum(1 for _ in store.topic(TOPIC).partition(0).records()) == FRAMES:
            assert time.monotonic() < deadline, "nothing is compacted"
            time.sleep(0.05)
    cluster.wait(TOPIC, in_sync={0, 1, 2})
    return expected


def _check_keys(
    records: Iterable[hw.Record], expected: dict[bytes | None, bytes | None], who: str
) -> Iterator[Violation]:
    found = {record.key: record.value for record in records}
    for key, value in expected.items():
        if found.get(key) != value:
            yield Violation(Kind.LOST_WRITE, f"{key!r} is {found.get(key)!r} for {who}, not {value!r}")


def _wait_for_leader(cluster: ClusterProcesses, broker: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while cluster.partition(TOPIC).leader != broker:
        assert time.monotonic() < deadline, f"broker {broker}, the only one that is left, does not lead"
        time.sleep(0.05)


def _check_lines(cluster: ClusterProcesses) -> Iterator[Violation]:
    for broker in cluster.brokers:
        said = [line for line in cluster.log(broker).splitlines() if '"level": "info"' not in line]
        if len(said) > MOST_LINES:
            yield Violation(Kind.BLOCKED, f"broker {broker} has complained {len(said)} times: {said[-1]}")
