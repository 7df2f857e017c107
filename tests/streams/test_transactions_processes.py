"""Transactions of real processes: they share partitions, die, and finish what the dead have decided."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import headwater as hw
from headwater.embedded.directory_store import DirectoryStore
from headwater.testing import FailingDisk
from tests.streams.test_transactions import values
from tests.streams.test_transactions_unfinished import TRANSACTIONS, create, files, is_done, leave_undone, slots

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 300.0
ACCOUNTS = 3


def run_all(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0


def _transfer(path: Path, number: int, transfers: int) -> None:
    """Take from one account and give to another one, in partitions that everyone uses."""
    with hw.open(path) as store:
        for turn in range(transfers):
            amount = number * transfers + turn + 1
            with store.transaction() as block:
                block.producer("taken").send(b"%d" % amount, partition=turn % ACCOUNTS)
                block.producer("given").send(b"%d" % amount, partition=(turn + number) % ACCOUNTS)
                if turn % 5 == 4:
                    block.abort()


def test_processes_commit_to_the_same_partitions_at_once(tmp_path: Path) -> None:
    path, workers, transfers = tmp_path / "store", 4, 25
    with hw.open(path) as store:
        for name in ("taken", "given"):
            store.create_topic(name, partitions=ACCOUNTS, sync="never")
        run_all([SPAWN.Process(target=_transfer, args=(path, number, transfers)) for number in range(workers)])
        expected = [n * transfers + turn + 1 for n in range(workers) for turn in range(transfers) if turn % 5 < 4]
        for name in ("taken", "given"):
            assert sorted(int(value) for value in values(store, name)) == expected
        assert files(store) == []
        assert len(slots(store)) <= workers


def _roll_forward(path: Path) -> None:
    with hw.open(path) as store:
        store.roll_forward()


def test_processes_that_carry_out_the_same_decisions_at_once_do_it_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    with DirectoryStore(tmp_path / "store", disk=disk) as store:
        create(store)
        leave_undone(store, disk)
        run_all([SPAWN.Process(target=_roll_forward, args=(tmp_path / "store",)) for _ in range(4)])
        assert is_done(store)


def _repeat(path: Path) -> None:
    with hw.open(path) as store:
        for number in range(20):
            with store.transaction(writer="nightly", sequence=number) as block:
                for name in ("taken", "given"):
                    block.producer(name).send(b"%d" % number, partition=number % ACCOUNTS)


def test_processes_with_the_same_name_do_each_number_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hw.open(path) as store:
        for name in ("taken", "given"):
            store.create_topic(name, partitions=ACCOUNTS, sync="never")
        run_all([SPAWN.Process(target=_repeat, args=(path,)) for _ in range(3)])
        for name in ("taken", "given"):
            assert Counter(values(store, name)) == Counter(b"%d" % number for number in range(20))


KILLED = """
import sys, os, signal
import headwater as hw
store = hw.open(sys.argv[1])
block = store.transaction()
block.producer("invoices").send(b"never").outcome
block._producers[0].flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_slots_of_killed_processes_are_used_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hw.open(path) as store:
        create(store)
        for _ in range(3):
            killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=os.environ)
            assert killed.returncode == -signal.SIGKILL
        with store.transaction() as block:
            block.producer("invoices").send(b"a")
        assert values(store, "invoices") == [b"a"]
        assert len(slots(store)) == 1
        assert len(files(store, ".stage")) == 3
        assert store.sweep_stages(2e9 + 1e10) == 3


DYING = """
import sys
from pathlib import Path
from headwater.embedded.directory_store import DirectoryStore
from headwater.testing import FailingDisk, Failpoint
disk = FailingDisk()
store = DirectoryStore(sys.argv[1], disk=disk)
with store.consumer("orders", group="billing") as inbox, store.transaction(inbox) as block:
    outputs = [block.producer(name) for name in ("invoices", "shipments")]
    for record in inbox.poll():
        for out in outputs:
            out.send(record.value)
        inbox.ack(record)
    disk.failpoints.append(Failpoint(operation="pwritev", path=lambda path: path.name == "offsets", death=True))
"""


def test_a_member_that_lives_on_finishes_what_a_dead_one_has_decided(tmp_path: Path) -> None:
    """Nobody opens the store anew here: the partitions of the dead one change hands, and that is enough."""
    path = tmp_path / "store"
    with hw.open(path) as store:
        create(store)
        with store.producer("orders") as out:
            for number in range(3):
                out.send(b"%d" % number)
        died = subprocess.run([sys.executable, "-c", DYING, str(path)], check=False, env=os.environ)
        assert died.returncode == -signal.SIGKILL
        assert len(files(store, ".committed")) == 1
        with store.consumer("orders", group="billing") as inbox:
            assert inbox.poll() == []
        for name in ("invoices", "shipments"):
            assert values(store, name) == [b"0", b"1", b"2"]
        assert files(store) == []
        assert not list(Path(str(store), TRANSACTIONS).glob("*.committed"))


STOPPED = """
import os, sys, signal
import headwater as hw
from headwater.embedded.directory_ledger import DirectoryLedger
store = hw.open(sys.argv[1])
decide = DirectoryLedger.decide
def stopping(self, stage, decision):
    decide(self, stage, decision)
    os.kill(os.getpid(), signal.SIGSTOP)
DirectoryLedger.decide = stopping
with store.transaction(writer="nightly", sequence=1) as block:
    for name in ("invoices", "shipments"):
        block.producer(name).send({"invoices": b"first", "shipments": b"second"}[name])
"""


def test_a_process_that_was_stopped_after_its_decision_does_no_harm_when_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hw.open(path) as store:
        create(store)
        with subprocess.Popen([sys.executable, "-c", STOPPED, str(path)], env=os.environ) as stopped:
            os.waitpid(stopped.pid, os.WUNTRACED)
            assert store.roll_forward() == 1
            assert is_done(store)
            os.kill(stopped.pid, signal.SIGCONT)
            assert stopped.wait(PATIENCE) == 0
        assert is_done(store)
