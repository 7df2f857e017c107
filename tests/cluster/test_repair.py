"""Damaged replicas repair one another: each frame that is intact somewhere is served, and nobody stops to lead."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

import headwater as hw
from headwater.log import Damage
from tests.cluster.cluster import ClusterProcesses
from tests.cluster.damage import LOSSES, flip, frames_in, lose
from tests.support.etcd_server import needs_etcd
from tests.support.patience import Patience, wait_until

pytestmark = needs_etcd

FRAMES = 60
MOST_LINES = 100
"""So many lines of a broker's log can still be read."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """One for all tests here, whose brokers look at closed segments all the time."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWATER_STEWARD_INTERVAL", "0.5s")
        environment.setenv("HEADWATER_STEWARD_SCRUB_INTERVAL", "0s")
        with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, "--etcd-lease", "3s") as processes:
            yield processes


@pytest.fixture
def cluster(running: ClusterProcesses) -> ClusterProcesses:
    """As good as a new one."""
    running.mend()
    return running


def fill(cluster: ClusterProcesses, segment_bytes: int) -> list[bytes]:
    """A topic with a record per frame, on every replica; its values."""
    values = [b"%d" % number * 50 for number in range(FRAMES)]
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", segment_bytes=segment_bytes)
        with store.producer("numbers") as out:
            for value in values:
                out.send(value)
                out.flush()
    cluster.wait("numbers", in_sync={0, 1, 2})
    cluster.wait_for_copies("numbers")
    return values


def read(cluster: ClusterProcesses) -> list[bytes | None]:
    """The values, as a reader gets them."""
    with hw.open(cluster.address) as store:
        return [record.value for record in store.topic("numbers").partition(0).records()]


def holds(cluster: ClusterProcesses, broker: int, values: list[bytes]) -> bool:
    """Return whether a replica holds these values, all intact."""
    try:
        return [value for _, value in cluster.records(broker, "numbers")] == values
    except hw.Damaged:
        return False


def check_lines(cluster: ClusterProcesses) -> None:
    """Look how much each broker has complained in its last life."""
    for broker in cluster.brokers:
        said = [line for line in cluster.log(broker).splitlines() if '"level": "info"' not in line]
        assert len(said) < MOST_LINES, f"broker {broker}: {said[:5]}"


@pytest.mark.parametrize("segment_bytes", [1 << 30, 4096], ids=["growing", "closed"])
def test_different_damage_on_two_replicas_and_the_third_is_empty(cluster: ClusterProcesses, segment_bytes: int) -> None:
    values = fill(cluster, segment_bytes=segment_bytes)
    before = cluster.wait("numbers", in_sync={0, 1, 2})
    empty = next(broker for broker in range(3) if broker != before.leader)
    follower = 3 - before.leader - empty
    cluster.kill(empty)
    shutil.rmtree(cluster.directory / f"broker{empty}")
    flip(frames_in(cluster.files(before.leader, "numbers"))[10])
    flip(frames_in(cluster.files(follower, "numbers"))[40])
    cluster.begin(empty)
    after = cluster.wait("numbers", in_sync={0, 1, 2})
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert read(cluster) == values
    patience = Patience(300)
    while not all(holds(cluster, broker, values) for broker in range(3)):
        cluster.let_lead(follower, "numbers")  # whose damage nobody may have met so far, and it may not lead for long
        assert read(cluster) == values
        assert not patience.exhausted()
    check_lines(cluster)


def test_what_is_damaged_everywhere_is_named_and_the_rest_is_served(cluster: ClusterProcesses) -> None:
    values = fill(cluster, segment_bytes=4096)
    before = cluster.wait("numbers", in_sync={0, 1, 2})
    for broker in range(3):
        for index in (20, 21 + broker, 50):
            flip(frames_in(cluster.files(broker, "numbers"))[index])
    lost = [20, 50]
    rest = [value for offset, value in enumerate(values) if offset not in lost]
    with hw.open(cluster.address) as store:
        partition = store.topic("numbers").partition(0)
        damaged: list[Damage] = []
        assert [record.value for record in partition.records(on_damage=damaged.append)] == rest
        assert [offset for damage in damaged for offset in range(damage.offset, damage.next_offset)] == lost
        with pytest.raises(hw.FrameDamaged):
            list(partition.records())
        with store.producer("numbers") as out:
            out.send(b"after")
        assert [record.value for record in partition.records(on_damage=lambda _: None)] == [*rest, b"after"]
    after = cluster.wait("numbers", in_sync={0, 1, 2})
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    check_lines(cluster)


# A closed segment is lost.


LOST = pytest.mark.parametrize("how", LOSSES)


def lose_and_replace(cluster: ClusterProcesses, how: str) -> None:
    """One broker of three starts without a segment, and another one with a new disk."""
    state = cluster.wait("numbers", in_sync={0, 1, 2})
    lost = next(broker for broker in range(3) if broker != state.leader)
    empty = 3 - state.leader - lost
    cluster.kill(lost, empty)
    lose(sorted(cluster.files(lost, "numbers").glob("*.log"))[1], how)
    shutil.rmtree(cluster.directory / f"broker{empty}")
    cluster.begin(lost)
    cluster.begin(empty)
    cluster.wait("numbers", in_sync={0, 1, 2})
    cluster.let_lead(lost, "numbers")


@LOST
def test_a_lost_segment_is_fetched_again_and_its_hole_is_not_copied(cluster: ClusterProcesses, how: str) -> None:
    values = fill(cluster, 4096)
    lose_and_replace(cluster, how)
    assert read(cluster) == values
    for copy in cluster.wait_for_copies("numbers").values():
        assert [value for _, value in copy] == values
    check_lines(cluster)


def newest(cluster: ClusterProcesses, broker: int) -> dict[bytes | None, bytes | None] | None:
    """Return the newest value of each key in a replica; None while it is damaged."""
    try:
        return {record.key: record.value for record in cluster.stored(broker, "numbers")}
    except hw.Damaged:
        return None


@LOST
def test_a_lost_segment_of_a_compacted_topic(cluster: ClusterProcesses, how: str) -> None:
    expected: dict[bytes | None, bytes | None] = {}
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", compact=True, segment_bytes=4096, compression="none")
        with store.producer("numbers") as out:
            for number in range(200):
                key = b"once %d" % number if number % 2 else b"again %d" % (number % 8)
                expected[key] = b"%d" % number + b"." * 150
                out.send(expected[key], key=key)
                out.flush()
        partition = store.topic("numbers").partition(0)
        wait_until(lambda: len(list(partition.records())) <= 150, "nothing is compacted")
    lose_and_replace(cluster, how)
    with hw.open(cluster.address) as store:
        records = store.topic("numbers").partition(0).records()
        assert {record.key: record.value for record in records} == expected
    wait_until(lambda: all(newest(cluster, broker) == expected for broker in range(3)), "not each replica is repaired")
    check_lines(cluster)
