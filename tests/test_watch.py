"""Waiting for files to change: woken at once where the system can, and never for longer than asked."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

import pytest

from headwater.store import watch as module
from headwater.store.watch import Watch


def write_after(path: Path, seconds: float) -> threading.Thread:
    def write() -> None:
        time.sleep(seconds)
        with path.open("r+b") as file:
            file.write(b"x")

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def written(path: Path) -> bool:
    return path.stat().st_size > 0


@pytest.mark.parametrize("inotify", [True, False])
def test_a_write_wakes_and_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inotify: bool) -> None:
    if not inotify:
        monkeypatch.setattr(module, "_inotify", lambda: -1)
    path = tmp_path / "state"
    path.touch()
    watch = Watch()
    watch.add([path])
    assert not watch.wait(lambda: written(path), 0.01)
    writer = write_after(path, 0.05)
    assert watch.wait(lambda: written(path), 30.0)
    writer.join()
    assert watch.wait(lambda: written(path), 0.0)
    watch.close()
    watch.close()


def test_a_file_made_anew_under_its_name_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAFETY", 60.0)
    path = tmp_path / "state"
    path.touch()
    watch = Watch()
    watch.add([path])
    path.unlink()
    path.touch()
    watch.add([path])
    writer = write_after(path, 0.05)
    begun = time.monotonic()
    assert watch.wait(lambda: written(path), 60.0)
    assert time.monotonic() - begun < 30.0
    writer.join()
    watch.close()


def test_a_process_with_many_descriptors_can_wait(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("not so many descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    many = [os.open(tmp_path, os.O_RDONLY) for _ in range(1050)]
    try:
        (tmp_path / "state").touch()
        watch = Watch()
        watch.add([tmp_path / "state"])
        assert not watch.wait(lambda: False, 0.01)
        watch.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
