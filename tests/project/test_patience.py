"""Patience counts the time in which something could have happened, not the time that has passed."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.support.patience import (
    Patience,
    Stopwatch,
    descendants,
    fair_share,
    has_ended,
    has_finished,
    kill_descendants,
    processor_seconds,
)


class FakeTime:
    """A clock that goes on by what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr("tests.support.patience.time", clock)
    return clock


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 3.0), (0.25, 12.0)])
def test_it_ends_later_on_a_busy_machine(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch, share: float, seconds: float
) -> None:
    monkeypatch.setattr("tests.support.patience.fair_share", lambda: share)
    assert not Patience(3.0).until(lambda: False)
    assert clock.now == pytest.approx(seconds, abs=0.1)


def test_an_observer_that_was_held_up_counts_little(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.patience.fair_share", lambda: 1.0)
    patience = Patience(3.0)
    clock.sleep(1000.0)
    assert not patience.exhausted()
    clock.sleep(1000.0)
    clock.sleep(1000.0)
    assert not patience.exhausted()
    clock.sleep(1000.0)
    assert patience.exhausted()


def test_nothing_counts_while_a_process_waits_for_the_disk(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.patience.fair_share", lambda: 1.0)
    system = {
        "/proc/6/task/6/children": b"7 ",
        "/proc/7/task/7/stat": b"7 (a) b) D 6 6",
        "/proc/8/task/8/children": b"9 ",
        "/proc/9/task/9/stat": b"9 (D) S 8 8",
    }
    monkeypatch.setattr("tests.support.patience._listed", lambda directory: [directory.split("/")[2]])
    monkeypatch.setattr("tests.support.patience._content", lambda file: system.get(file, b""))
    busy, free = Patience(3.0, 6), Patience(3.0, 8)
    for _ in range(10):
        clock.sleep(1.0)
        assert not busy.exhausted()
        free.exhausted()
    assert free.exhausted()


def test_a_restart_gives_the_whole_limit_again(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.patience.fair_share", lambda: 1.0)
    patience = Patience(1.5)
    for _ in range(10):
        clock.sleep(1.0)
        assert not patience.exhausted()
        patience.restart()


def test_what_comes_true_ends_the_wait() -> None:
    answers = iter([False, False, True])
    assert Patience(60.0).until(lambda: next(answers))


def test_the_fair_share_is_a_part_of_one_processor() -> None:
    assert 0 < fair_share() <= 1


def test_processes_are_found_measured_and_killed_with_what_they_started() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            assert Patience(120.0).until(lambda: processor_seconds(process.pid) > 0.5)
            parent, child = descendants(process.pid)
            assert parent == process.pid
        finally:
            kill_descendants(process.pid)
    assert Patience(120.0).until(lambda: not processor_seconds(child))


def test_a_process_and_a_thread_that_end_are_told_from_those_that_do_not() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not has_ended(process, 0.2)
        assert not has_finished(thread, 0.2)
        over.set()
        process.communicate(b"\n")
        assert has_ended(process, 120.0)
        assert has_finished(thread, 120.0)


def test_a_stopwatch_leaves_out_what_the_machine_gave_to_others(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved = iter([100.0, 103.0, 103.0])
    monkeypatch.setattr("tests.support.patience._starved_seconds", lambda: next(starved))
    shares = iter([1.0, 1.0, 0.5])
    monkeypatch.setattr("tests.support.patience.fair_share", lambda: next(shares))
    stopwatch = Stopwatch()
    clock.sleep(5.0)
    assert stopwatch.seconds() == pytest.approx(2.0)
    assert stopwatch.seconds() == pytest.approx(1.0)
