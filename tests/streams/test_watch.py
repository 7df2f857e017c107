"""Waiting for files to change: woken at once where the system can, and never for longer than asked."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import headwater as hw
from headwater.embedded import inotify
from headwater.embedded import watch as module
from headwater.embedded.watch import Watch
from tests.support.processes import ROOT

MANY = 150
"""More than a user may have inotify instances, which are 128 by default."""
LONG = 1200.0
"""A wait of this length means that a test was not woken."""


@pytest.fixture(autouse=True)
def _woken_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look at the files from time to time: a waiter that is not woken waits for long."""
    monkeypatch.setattr(module, "_SAFETY", LONG)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Many empty files."""
    paths = [tmp_path / f"state-{number}" for number in range(MANY)]
    for path in paths:
        path.touch()
    return paths


def followed(*paths: Path) -> Watch:
    watch = Watch()
    watch.follow(paths)
    return watch


def write(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def write_after(path: Path, seconds: float) -> threading.Thread:
    thread = threading.Timer(seconds, write, [path])
    thread.start()
    return thread


def written(path: Path) -> bool:
    return path.stat().st_size > 0


def descriptors(kind: str) -> int:
    """Return how many descriptors of a kind this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += kind in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return count


@pytest.mark.parametrize("available", [True, False])
def test_a_write_wakes_and_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    if not available:
        monkeypatch.setattr(inotify, "_open", lambda: -1)
        monkeypatch.setattr(module, "INOTIFY", inotify.Inotify())
    path = tmp_path / "state"
    path.touch()
    watch = followed(path)
    assert watch.complete == available
    assert (watch.fileno() >= 0) == available
    assert not watch.wait(lambda: written(path), 0.01)
    writer = write_after(path, 0.05)
    assert watch.wait(lambda: written(path), LONG)
    writer.join()
    assert watch.wait(lambda: written(path), 0.0)
    watch.close()
    watch.close()


def test_a_file_that_cannot_be_watched_is_looked_at_in_intervals(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    watch = followed(tmp_path / "state", tmp_path / "later")
    assert not watch.complete
    begun = time.monotonic()
    assert not watch.wait(lambda: False, 0.05)
    assert time.monotonic() - begun < LONG / 2
    watch.close()


def test_a_file_made_anew_under_its_name_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch()
    watch = followed(path)
    path.unlink()
    path.touch()
    watch.follow([path])
    writer = write_after(path, 0.05)
    begun = time.monotonic()
    assert watch.wait(lambda: written(path), LONG)
    assert time.monotonic() - begun < LONG / 2
    writer.join()
    watch.close()


def test_what_is_followed_no_longer_wakes_nobody(files: list[Path]) -> None:
    watch, other = followed(files[0], files[1]), followed(files[0])
    watch.follow([files[1]])
    write(files[0])
    assert not watch.drain()
    assert other.drain()
    write(files[1])
    assert watch.drain()
    assert not watch.drain()
    assert not other.drain()
    watch.close()
    other.close()


def test_a_process_with_many_descriptors_can_wait(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("not so many descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    many = [os.open(tmp_path, os.O_RDONLY) for _ in range(1050)]
    try:
        (tmp_path / "state").touch()
        watch = followed(tmp_path / "state")
        assert not watch.wait(lambda: False, 0.01)
        watch.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# One instance for everyone.


def test_many_wait_at_once_on_one_instance_and_each_is_woken_for_its_own(files: list[Path]) -> None:
    watches = [followed(path) for path in files]
    assert all(watch.complete for watch in watches)
    assert descriptors("inotify") == 1
    looks = [0] * MANY
    waiting = threading.Barrier(MANY + 1)

    def wait(number: int) -> bool:
        def ready() -> bool:
            looks[number] += 1
            if looks[number] == 1:
                waiting.wait()
            return written(files[number])

        return watches[number].wait(ready, LONG)

    begun = time.monotonic()
    with ThreadPoolExecutor(MANY) as pool:
        waits = [pool.submit(wait, number) for number in range(MANY)]
        waiting.wait()
        for path in files:
            write(path)
            time.sleep(0.0005)
        assert all(wait.result() for wait in waits)
    assert time.monotonic() - begun < LONG / 2
    # Each looks at first, when it is woken, and once more if it becomes the one that leads.
    assert sum(looks) < 6 * MANY
    for watch in watches:
        watch.close()


@pytest.mark.parametrize("rounds", range(3))
def test_when_the_one_who_leads_leaves_the_others_are_woken_all_the_same(files: list[Path], rounds: int) -> None:
    watches = [followed(path) for path in files[:3]]
    with ThreadPoolExecutor(3) as pool:
        begun = time.monotonic()
        impatient = pool.submit(watches[0].wait, lambda: False, 0.1 * rounds)
        time.sleep(0.02)
        others = [pool.submit(watches[number].wait, partial(written, files[number]), LONG) for number in (1, 2)]
        assert not impatient.result()
        for number in (2, 1):
            write(files[number])
        assert all(other.result() for other in others)
        assert time.monotonic() - begun < LONG / 2
    for watch in watches:
        watch.close()


def test_when_events_are_lost_everyone_looks(files: list[Path]) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watches = [followed(path) for path in files[:3]]
    fds = [os.open(path, os.O_WRONLY) for path in files[:3]]
    for number in range(limit + 10):  # in turn: a write that is like the last one makes no new event
        os.pwrite(fds[number % 2], b"x", 0)
    os.pwrite(fds[2], b"x", 0)
    assert watches[2].drain()
    assert [watch.drain() for watch in watches] == [True, True, False]
    for fd, watch in zip(fds, watches, strict=True):
        os.close(fd)
        watch.close()


def in_child(work: Callable[[], bool]) -> bool:
    """Return whether `work` was true in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


DROPPED = """
import gc, sys
from pathlib import Path
from tests.streams.test_watch import descriptors, followed, write

files = [Path(name) for name in sys.argv[1:]]
watch = followed(files[0])
before = descriptors("eventfd")
other = followed(*files)
assert descriptors("eventfd") == before + 1
del other
gc.collect()
assert descriptors("eventfd") == before
for path in files:
    write(path)
assert watch.drain()
"""


def test_a_watch_that_is_dropped_gives_its_descriptor_back(files: list[Path]) -> None:
    # In a process where no thread of another test opens or closes any.
    subprocess.run([sys.executable, "-c", DROPPED, *files[:2]], cwd=ROOT, check=True, timeout=LONG)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_its_own_and_takes_nothing_from_its_parent(files: list[Path]) -> None:
    ours, both = followed(files[0]), followed(files[1])

    def child() -> bool:
        both.drain()
        both.close()
        write(files[0])
        mine = followed(files[2])
        before = mine.drain()
        write(files[2])
        return not before and mine.wait(lambda: written(files[2]), LONG) and not ours.drain()

    assert in_child(child)
    assert ours.drain()
    assert not both.drain()
    write(files[1])
    assert both.drain()
    ours.close()
    both.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_wait_disturbs_neither(files: list[Path]) -> None:
    ours = followed(files[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ours.wait, lambda: written(files[0]), LONG)
        time.sleep(0.02)

        def child() -> bool:
            theirs = followed(files[1])
            write(files[1])
            return theirs.drain() and not theirs.wait(lambda: False, 0.01)

        assert in_child(child)
        write(files[0])
        begun = time.monotonic()
        assert waiting.result()
        assert time.monotonic() - begun < LONG / 2
    ours.close()


# In an event loop.


def test_event_loops_are_woken_too_whoever_reads_the_events(files: list[Path]) -> None:
    quiet = followed(files[3])

    async def woken(watch: Watch, number: int) -> None:
        event = asyncio.Event()

        def readable() -> None:
            if watch.drain():
                event.set()

        asyncio.get_running_loop().add_reader(watch.fileno(), readable)
        while not written(files[number]):
            await asyncio.wait_for(event.wait(), LONG)
            event.clear()
        asyncio.get_running_loop().remove_reader(watch.fileno())

    async def everyone() -> None:
        watches = [followed(path) for path in files[:3]]
        tasks = [asyncio.create_task(woken(watch, number)) for number, watch in enumerate(watches)]
        for number in (2, 0, 1):
            await asyncio.sleep(0.01)
            write(files[number])
            await tasks[number]
        for watch in watches:
            watch.close()

    begun = time.monotonic()
    asyncio.run(everyone())
    with ThreadPoolExecutor(1) as pool:  # with a thread that waits beside the loop, and is first to read
        waiting = pool.submit(quiet.wait, lambda: written(files[3]), LONG)
        for path in files[:3]:
            path.write_bytes(b"")
        asyncio.run(everyone())
        assert not waiting.done()
        write(files[3])
        assert waiting.result()
    assert time.monotonic() - begun < LONG / 2
    quiet.close()


# Consumers.


def test_as_many_consumers_as_anyone_wants_are_woken(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store, hw.open(tmp_path / "store") as other:
        store.create_topic("orders")
        inboxes = [(store, other)[number % 2].consumer("orders", refresh_interval=LONG) for number in range(MANY)]
        assert all(inbox.poll() == [] for inbox in inboxes)
        assert all(inbox.watch.complete for inbox in inboxes)
        assert descriptors("inotify") == 1
        with ThreadPoolExecutor(MANY) as pool:
            begun = time.monotonic()
            polls = [pool.submit(inbox.poll, timeout=LONG) for inbox in inboxes]
            with store.producer("orders") as out:
                out.send(b"x")
            assert [[record.value for record in poll.result()] for poll in polls] == [[b"x"]] * MANY
            assert time.monotonic() - begun < LONG / 2
        for inbox in inboxes:
            inbox.close()
