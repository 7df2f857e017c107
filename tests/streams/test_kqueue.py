"""Waiting by kqueue, which only macOS and BSD have: here with a fake queue that looks at the files itself."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.embedded import fetcher, kqueue
from headwater.embedded.kqueue import KqueueWatch
from headwater.embedded.watch import Watch, new_watch
from tests.support.patience import wait_until

LONG = 1200.0
"""A wait of this length means that a test was not woken."""


class FakeQueue:
    """Tells what a kqueue would of the files, and fails when it is told to."""

    made: list[FakeQueue]

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, int]] = {}
        self._fd = os.open(os.devnull, os.O_RDONLY)
        self.problem: int | None = None
        self.made.append(self)

    def _check(self) -> None:
        if self.problem is not None:
            raise OSError(self.problem, os.strerror(self.problem))

    def fileno(self) -> int:
        return self._fd

    def add(self, fd: int) -> None:
        self._check()
        self._known[fd] = self._look(fd)

    def take(self, timeout: float) -> list[tuple[int, bool]]:
        deadline = time.monotonic() + timeout
        while True:
            self._check()
            events: list[tuple[int, bool]] = []
            for fd, before in list(self._known.items()):
                try:
                    now = self._look(fd)
                except OSError:  # closed, which takes it out of the queue
                    del self._known[fd]
                    continue
                if now != before:
                    events.append((fd, now[1] == 0))
                self._known[fd] = now
            if events or time.monotonic() >= deadline:
                return events
            time.sleep(0.001)

    @staticmethod
    def _look(fd: int) -> tuple[bytes, int]:
        status = os.fstat(fd)
        try:
            content = os.pread(fd, 4096, 0)
        except IsADirectoryError:
            content = str(status.st_mtime_ns).encode()
        return content, status.st_nlink

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@pytest.fixture(autouse=True)
def _woken_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look at the files from time to time: a waiter that is not woken waits for long."""
    FakeQueue.made = []
    monkeypatch.setattr(kqueue, "_SAFETY", LONG)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.write_bytes(b"0")
    return path


@pytest.fixture
def watch() -> Iterator[KqueueWatch]:
    watch = KqueueWatch(FakeQueue)
    yield watch
    watch.close()


def write(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


def test_a_write_wakes_a_thread(watch: KqueueWatch, file: Path) -> None:
    watch.follow([file])
    assert watch.complete
    thread = threading.Timer(0.05, write, [file, b"1"])
    thread.start()
    assert watch.wait(lambda: file.read_bytes() == b"1", LONG)
    thread.join()


def test_draining_tells_whether_something_was_written(watch: KqueueWatch, file: Path) -> None:
    watch.follow([file])
    assert not watch.drain()
    write(file, b"1")
    assert watch.drain()
    assert not watch.drain()
    assert watch.fileno() == FakeQueue.made[0].fileno() >= 0


def test_a_wait_ends_in_time(watch: KqueueWatch, file: Path) -> None:
    watch.follow([file])
    assert not watch.wait(lambda: False, 0.01)


def test_a_file_that_is_replaced_is_watched_again_when_it_is_followed(watch: KqueueWatch, file: Path) -> None:
    watch.follow([file])
    other = file.with_name("other")
    other.write_bytes(b"2")
    other.replace(file)
    assert watch.drain()
    assert not watch.complete, "nobody tells of the new file"
    watch.follow([file])
    assert watch.complete
    write(file, b"3")
    assert watch.drain()


def test_files_that_are_no_longer_followed_wake_nobody(watch: KqueueWatch, file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"0")
    watch.follow([file, other])
    watch.follow([other])
    write(file, b"1")
    assert not watch.drain()
    write(other, b"1")
    assert watch.drain()


def test_new_files_in_a_directory_wake(watch: KqueueWatch, tmp_path: Path) -> None:
    watch.follow([tmp_path])
    time.sleep(0.02)  # the time of the directory's last change has the resolution of the kernel's ticks
    (tmp_path / "member").touch()
    assert watch.drain()


def test_without_a_queue_files_are_looked_at_in_intervals(file: Path) -> None:
    def none_left() -> FakeQueue:
        raise OSError(errno.EMFILE, "too many open files")

    watch = KqueueWatch(none_left)
    watch.follow([file])
    assert (watch.complete, watch.fileno(), watch.drain()) == (False, -1, False)
    write(file, b"1")
    assert watch.wait(lambda: file.read_bytes() == b"1", LONG)
    watch.close()


@pytest.mark.parametrize("missing", [True, False])
def test_a_file_that_cannot_be_watched_is_looked_at(watch: KqueueWatch, file: Path, missing: bool) -> None:
    watch.follow([file])
    FakeQueue.made[0].problem = None if missing else errno.ENOMEM
    other = file.with_name("missing")
    if not missing:
        other.touch()
    watch.follow([file, other])
    assert not watch.complete


def test_a_forked_child_has_no_queue_and_looks(watch: KqueueWatch, file: Path) -> None:
    watch.follow([file])
    FakeQueue.made[0].problem = errno.EBADF
    write(file, b"1")
    assert not watch.drain()
    assert not watch.complete
    assert watch.wait(lambda: file.read_bytes() == b"1", LONG)


def test_closing_gives_every_descriptor_back(file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watch = KqueueWatch(FakeQueue)
    watch.follow([file])
    watch.close()
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_consumer_is_woken_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "new_watch", lambda: KqueueWatch(FakeQueue))
    with hw.open(tmp_path) as store:
        store.create_topic("orders")
        with store.producer("orders") as producer, store.consumer("orders", group="billing") as consumer:
            wait_until(lambda: consumer.poll(timeout=0) == [] and consumer.assignment)
            thread = threading.Timer(0.05, producer.send, [b"a"])
            thread.start()
            assert [record.value for record in consumer.poll(timeout=LONG)] == [b"a"]
            thread.join()
    assert FakeQueue.made


def test_the_system_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(new_watch(), Watch)
    monkeypatch.setattr("headwater.embedded.watch.HAS_KQUEUE", True)
    assert isinstance(new_watch(), KqueueWatch)
    with pytest.raises(OSError, match="no kqueue"):
        kqueue.new_queue()
