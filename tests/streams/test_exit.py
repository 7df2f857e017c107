"""However a program ends, what its producers have taken is written, or it is said that it was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headwater as hw
from headwater import StoreClosed
from headwater.streams import producer
from tests.support.backends import OpenDirectoryStore


def run(code: str, path: Path) -> subprocess.Popen[str]:
    """A Python of its own, with the path of the store as its argument."""
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def values(path: Path) -> list[bytes]:
    with hw.open(path) as store:
        values: list[bytes] = store.topic("orders").scan().read_all()["value"].to_pylist()
        return values


START = """
import sys, headwater as hw
store = hw.open(sys.argv[1])
store.create_topic("orders", partitions=2)
out = store.producer("orders", linger=3600)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("del out", 0)],
    ids=["end", "exit", "error", "dropped"],
)
def test_pending_records_are_written_at_the_end_of_the_program(tmp_path: Path, end: str, code: int) -> None:
    child = run(f"{START}\nfor number in range(10): out.send(b'%d' % number, key=b'%d' % number)\n{end}", tmp_path)
    child.communicate()
    assert child.returncode == code
    assert sorted(values(tmp_path)) == [b"%d" % number for number in range(10)]


def test_what_could_not_be_written_at_the_end_is_said(tmp_path: Path) -> None:
    child = run(f"{START}\nout.send(b'x')\nstore.delete_topic('orders')", tmp_path)
    _, errors = child.communicate()
    assert child.returncode == 0
    assert "'orders'" in errors
    assert "lost at the end of the program" in errors


def test_the_end_of_the_program_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    code = """
    import sys, threading, headwater as hw
    from headwater.log import Disk
    from headwater.embedded.directory_store import DirectoryStore

    class Stuck(Disk):
        def sync(self, fd):
            if armed:
                threading.Event().wait()

    armed = False
    store = DirectoryStore(sys.argv[1], disk=Stuck())
    store.create_topic("orders").partitions()
    out = store.producer("orders", linger=3600, close_timeout=0.1)
    out.send(b"x")
    armed = True
    """
    child = run(code, tmp_path)
    _, errors = child.communicate(timeout=300)
    assert "not written before the program ended" in errors


CTRL_C = """
import sys, headwater as hw
store = hw.open(sys.argv[1])
store.create_topic("orders", partitions=2)
out = store.producer("orders", linger=0.002)
taken = []
try:
    print("ready", flush=True)
    while True:
        taken.append(out.send(b"%d" % len(taken), key=b"%d" % (len(taken) % 50)))
except KeyboardInterrupt:
    try:
        out.close()
    except BaseException as error:
        print("closing:", repr(error), file=sys.stderr)
failed = []
for number, receipt in enumerate(taken):
    try:
        print(number, receipt.partition, receipt.offset)
    except KeyboardInterrupt:
        failed.append(number)
print("failed", len(failed))
"""


@pytest.mark.parametrize("delay", [0.05, 0.11, 0.17, 0.23])
def test_an_interrupted_program_loses_nothing_that_was_acknowledged(tmp_path: Path, delay: float) -> None:
    with run(CTRL_C, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(delay)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    *lines, last = output.splitlines()
    acknowledged = {(int(p), int(o)): b"%d" % int(n) for n, p, o in (line.split() for line in lines)}
    failed = int(last.split()[1])
    with hw.open(tmp_path) as store:
        table = store.topic("orders").scan(columns=["partition", "offset", "value"]).read_all().to_pylist()
    stored = {(row["partition"], row["offset"]): row["value"] for row in table}
    assert acknowledged.items() <= stored.items()
    assert len(set(stored.values())) == len(stored)
    # At most the one batch that was being written is in doubt, and the record that was being taken.
    assert len(stored) - len(acknowledged) <= failed + 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_is_pending_at_a_fork_is_written_by_the_parent_alone(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    with store.producer("orders", linger=3600) as out:
        out.send(b"x")
        child = os.fork()
        if child == 0:
            try:
                out.send(b"from the child")
            except StoreClosed:
                producer._write_at_exit()
                out.close()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        out.flush()
    assert values(store.path) == [b"x"]
