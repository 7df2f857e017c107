"""Members of a group join, leave and die while brokers of their cluster are killed: nothing is skipped or moved back.

The group's coordinator dies too, and others coordinate in its place. Members, the producer and who watches the
positions are processes of their own, and are told of nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from headwater.cluster.local import find_etcd
from tests.cluster.cluster import ClusterProcesses
from tests.faults import Kind, Run, Unavailable, Violation, proof
from tests.faults.children import Child, failures
from tests.faults.members import GROUP, TOPIC, Positions, change, consume, ends_of, open_store, produce, verify

PARTITIONS: Final = 6
RECORDS: Final = 200_000
RECORDS_QUICK: Final = 20_000
BURSTS: Final = 100
SECONDS: Final = 40.0
SECONDS_QUICK: Final = 4.0
MOST: Final = 4
SESSION: Final = 3.0
"""A dead member has lost its partitions after so many seconds."""
PATIENCE: Final = 120.0
_WATCHED: Final = "watched.json"


class Members:
    """The group, some of whose members come and go, and the cluster, some of whose brokers do."""

    def __init__(self, run: Run, cluster: ClusterProcesses) -> None:
        self._directory = run.directory
        self._random = run.random
        self._cluster = cluster
        self._names = (f"member{number}" for number in count())
        self._members: dict[str, Child] = {}
        self._leaving: list[Child] = []

    def join(self) -> None:
        """Start another member."""
        name = next(self._names)
        most, work = self._random.choice(((50, 0.0), (500, 0.01), (0, 0.02)))

        def body() -> None:
            logging.disable(logging.WARNING)
            consume(self._directory, name, most, work, self._cluster.address)

        self._members[name] = Child(body, self._directory / f"{name}.error")

    def change(self) -> None:
        """Someone joins, leaves or dies."""
        change(self._random, self._directory, self._members, self._leaving, most=MOST, join=self.join)

    def kill_a_broker(self) -> None:
        """Kill one of them, and start it again after a while."""
        victim = self._random.choice(sorted(self._cluster.brokers))
        self._cluster.kill(victim)
        time.sleep(self._random.uniform(0.0, 2.0))
        self._cluster.begin(victim)

    def dismiss(self) -> Iterator[Violation]:
        """Ask everyone to leave."""
        (self._directory / "all.stop").touch()
        for child in (*self._members.values(), *self._leaving):
            if not child.ended_within(PATIENCE):
                yield child.hangs(f"process {child.pid} did not leave")

    def kill(self) -> None:
        """End whoever is left."""
        for child in (*self._members.values(), *self._leaving):
            child.kill()


@proof(
    row=14,
    title="members of a group join, leave and die every 2 s while a cluster's brokers are killed; 50 runs take an hour",
    runs=50,
    quick=2,
    timeout=400.0,
)
def cluster_groups(run: Run) -> Iterator[Violation]:
    """Change the group and kill brokers for a while, let it finish, and hold the journals against the log."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    records, seconds = (RECORDS_QUICK, SECONDS_QUICK) if run.quick else (RECORDS, SECONDS)
    watched = run.directory / _WATCHED

    def source() -> None:
        with open_store(run.directory, cluster.address) as store:
            produce(store, records, records // BURSTS, seconds / BURSTS)

    def watch() -> None:
        with open_store(run.directory, cluster.address) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
            (run.directory / "made").touch()
            positions = Positions(store)
            found = [str(one) for one in positions.watch(seconds + PATIENCE, records, pause=0.05)]
            finished = positions.finished(records)
            watched.write_text(json.dumps({"violations": found, "finished": finished, "ends": ends_of(store)}))

    # This process calls no broker: what it forks could not, then.
    with ClusterProcesses(run.directory / "cluster", 3, "--session-timeout", str(SESSION)) as cluster:
        watching = Child(watch, run.directory / "watch.error")
        members = Members(run, cluster)
        children = [watching]
        try:
            while not (run.directory / "made").exists() and not watching.ended_within(0.05):
                pass
            children.append(Child(source, run.directory / "source.error"))
            members.join()
            members.join()
            until = time.monotonic() + seconds
            kill_at = time.monotonic() + run.random.uniform(1.0, 3.0)
            while time.monotonic() < until:
                members.change()
                time.sleep(run.random.uniform(0.5, 2.0))
                if time.monotonic() > kill_at:
                    members.kill_a_broker()
                    kill_at = time.monotonic() + run.random.uniform(2.0, 6.0)
            if not watching.ended_within(seconds + PATIENCE):
                yield watching.hangs("who watches the positions does not end")
            yield from members.dismiss()
        finally:
            members.kill()
            for child in children:
                child.kill()
    yield from failures(run.directory)
    if not watched.exists():
        return  # it has failed, and that was told
    told = json.loads(watched.read_text())
    for one in told["violations"]:
        yield Violation(Kind.POSITION_MOVED_BACK, f"group {GROUP!r}: {one}")
    if not told["finished"]:
        yield Violation(Kind.BLOCKED, f"the group did not finish within {PATIENCE:g} s")
    yield from verify(run.directory, {int(number): end for number, end in told["ends"].items()})
