"""A group of real processes: each record is handed to one member, and to another one only if it was not committed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import headwater as hw
from headwater import Store, TopicPartition
from headwater.core.names import GROUPS
from headwater.embedded import watch
from tests.faults.members import (
    GROUP,
    HANDED,
    STORE,
    TOPIC,
    Positions,
    consume,
    ends_of,
    produce,
    read_journals,
    repeated,
    verify,
)
from tests.support.patience import Patience

SPAWN = multiprocessing.get_context("spawn")
PARTITIONS = 8
MILLION = 1_000_000
PATIENCE = 300.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with hw.open(tmp_path / STORE) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, sync="never")
        yield store


@pytest.fixture
def crew() -> Iterator[dict[str, BaseProcess]]:
    members: dict[str, BaseProcess] = {}
    yield members
    for member in members.values():
        member.kill()
        member.join()


def join(crew: dict[str, BaseProcess], directory: Path, name: str, *limits: float) -> None:
    crew[name] = SPAWN.Process(target=consume, args=(directory, name, *limits))
    crew[name].start()


def finish(store: Store, positions: Positions, records: int) -> None:
    assert list(positions.watch(PATIENCE, records)) == []
    assert positions.finished(records)
    assert list(verify(Path(str(store)).parent, ends_of(store))) == []


def wait_for_members(store: Store, number: int) -> None:
    patience = Patience(PATIENCE)
    while len(set(store.group(GROUP).describe().owners.values())) < number:
        assert not patience.exhausted()
        time.sleep(0.01)


def test_four_processes_share_the_work_and_nothing_is_read_twice(
    store: Store, crew: dict[str, BaseProcess], tmp_path: Path
) -> None:
    for number, max_records in enumerate((500, 5000, 5000, 0)):
        join(crew, tmp_path, f"member{number}", max_records)
    wait_for_members(store, 4)
    produce(store, MILLION, 20_000)
    finish(store, Positions(store), MILLION)
    assert repeated(tmp_path, ends_of(store)) == 0
    assert {entry.member for entry in read_journals(tmp_path)} == set(crew)


def test_a_member_that_joins_or_leaves_makes_nobody_repeat(
    store: Store, crew: dict[str, BaseProcess], tmp_path: Path
) -> None:
    produce(store, 20_000, 1000)
    join(crew, tmp_path, "first", 50, 0.005)
    wait_for_members(store, 1)
    for name in ("second", "third"):
        join(crew, tmp_path, name, 50, 0.005)
        time.sleep(0.3)
    wait_for_members(store, 3)
    (tmp_path / "first.stop").touch()
    crew["first"].join(PATIENCE)
    assert crew["first"].exitcode == 0
    finish(store, Positions(store), 20_000)
    assert repeated(tmp_path, ends_of(store)) == 0


def test_killed_members_make_others_repeat_only_what_was_not_committed(
    store: Store, crew: dict[str, BaseProcess], tmp_path: Path
) -> None:
    produce(store, 20_000, 1000)
    positions = Positions(store)
    for number in range(3):
        join(crew, tmp_path, f"early{number}", 50, 0.01)
    wait_for_members(store, 3)
    for number in range(3):
        assert list(positions.watch(0.2)) == []
        crew[f"early{number}"].kill()
        join(crew, tmp_path, f"late{number}", 50, 0.0)
    finish(store, positions, 20_000)
    handed = [entry for entry in read_journals(tmp_path) if entry.event == HANDED]
    assert repeated(tmp_path, ends_of(store)) <= 3 * max(
        sum(e.end - e.start for e in handed if e.at == last.at) for last in handed
    )


def test_a_dry_run_of_the_expiry_leaves_a_dead_member_where_it_is(
    store: Store, crew: dict[str, BaseProcess], tmp_path: Path
) -> None:
    join(crew, tmp_path, "victim")
    wait_for_members(store, 1)
    crew["victim"].kill()
    crew["victim"].join()
    document = tmp_path / STORE / GROUPS / GROUP / "group.json"
    before = document.read_bytes()
    store.group(GROUP).expire(0, dry_run=True)
    assert document.read_bytes() == before
    store.group(GROUP).expire(0)
    assert not document.exists() or document.read_bytes() != before


def test_a_dead_members_partitions_are_taken_over_within_the_refresh_interval(
    store: Store, crew: dict[str, BaseProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.consumer(TOPIC, group=GROUP, refresh_interval=0.5, max_poll_interval=3600) as survivor:
        survivor.poll()
        join(crew, tmp_path, "victim")
        patience = Patience(PATIENCE)
        while len(survivor.assignment()) == PARTITIONS:
            assert not patience.exhausted()
            survivor.poll(timeout=0.05)
        wait_for_members(store, 2)
        crew["victim"].kill()
        crew["victim"].join()
        rebalanced, rebalance = 0, survivor._assignment._rebalance

        def counted() -> AbstractSet[TopicPartition]:
            nonlocal rebalanced
            rebalanced += 1
            return rebalance()

        monkeypatch.setattr(survivor._assignment, "_rebalance", counted)
        while len(survivor.assignment()) < PARTITIONS:
            survivor.poll(timeout=0.01)
        assert rebalanced <= 2, "at the next look, or the one after that if it was looking"


def _send(directory: Path, wanted: Connection) -> None:
    with hw.open(directory / STORE) as store, store.producer(TOPIC) as out:
        while wanted.recv():
            out.send(b"wake up")
            begun = time.monotonic()
            out.sync()
            wanted.send(begun)


def test_a_waiting_consumer_is_woken_by_another_process(
    store: Store,
    tmp_path: Path,
    crew: dict[str, BaseProcess],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_SAFETY", PATIENCE)  # it does not look from time to time
    ours, theirs = SPAWN.Pipe()
    crew["sender"] = SPAWN.Process(target=_send, args=(tmp_path, theirs))
    crew["sender"].start()
    delays: list[float] = []
    with store.consumer(TOPIC, refresh_interval=3600.0) as inbox:
        assert inbox.poll() == []
        for _ in range(50):
            ours.send(True)
            assert len(inbox.poll(timeout=PATIENCE)) == 1
            woken = time.monotonic()
            delays.append(woken - ours.recv())
    ours.send(False)
    delays.sort()
    with capsys.disabled():
        middle, worst = delays[25] * 1e3, delays[-1] * 1e3
        sys.stdout.write(
            f"\nfrom sync in one process to poll in another: {middle:.2f} ms median, {worst:.2f} ms most\n"
        )
    assert delays[-1] < PATIENCE / 2, "it was woken, and did not come back by its timeout"


FORKING_MEMBER = """
import os, sys, time
import headwater as hw
store = hw.open(sys.argv[1])
inbox = store.consumer("orders", group="billing")
inbox.poll()
if not os.fork():
    print(os.getpid(), flush=True)  # the child itself, as it has let go of its parent's locks by then
time.sleep(600)
"""


def test_a_forked_child_does_not_keep_its_dead_parent_in_the_group(store: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING_MEMBER, str(tmp_path / STORE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            with store.consumer(TOPIC, group=GROUP) as survivor:
                assert len(survivor.assignment()) == PARTITIONS
        finally:
            os.kill(child, signal.SIGKILL)
