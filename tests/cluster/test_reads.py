"""Reads never go back: what was acknowledged, or read by anybody, is there for every read that begins afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import ClusterProcesses
from tests.cluster.onlookers import TOPIC, Onlookers
from tests.faults.violation import Violation
from tests.support.etcd_server import needs_etcd

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """One for all tests here."""
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, "--etcd-lease", "3s") as processes:
        yield processes


@pytest.fixture
def cluster(running: ClusterProcesses) -> ClusterProcesses:
    """As good as a new one."""
    running.mend()
    return running


def violations(*parts: Iterator[Violation]) -> list[str]:
    """Return the violations that onlookers have found."""
    return [str(violation) for part in parts for violation in part]


def test_reads_do_not_go_back_when_the_leader_is_killed(cluster: ClusterProcesses) -> None:
    onlookers = Onlookers(cluster)
    assert not violations(onlookers.go_on())
    for _ in range(2):
        leader = cluster.wait(TOPIC, in_sync={0, 1, 2}).leader
        cluster.kill(leader)
        assert not violations(onlookers.go_on())
        cluster.begin(leader)
    assert not violations(onlookers.check())


def test_reads_do_not_go_back_when_the_leader_is_killed_and_another_follower_is_stopped(
    cluster: ClusterProcesses,
) -> None:
    """The new leader has everything, and cannot know it before someone else has it too: then it does not answer."""
    onlookers = Onlookers(cluster)
    assert not violations(onlookers.go_on())
    state = cluster.wait(TOPIC, in_sync={0, 1, 2})
    leader = state.leader
    new, stopped = (broker for broker in state.replicas if broker != leader)
    cluster.pause(stopped)
    cluster.kill(leader)
    cluster.wait_for_leader(TOPIC, new)
    onlookers.wait_for_questions(new)
    cluster.begin(leader)
    cluster.wait(TOPIC, in_sync={leader, new}, at=new)
    assert not violations(onlookers.go_on())
    cluster.go_on(stopped)
    cluster.wait(TOPIC, in_sync={0, 1, 2})
    assert not violations(onlookers.go_on(), onlookers.check())
