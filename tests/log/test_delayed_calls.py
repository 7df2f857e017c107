"""Things that are done later: when their time has come, and none held up by another."""

from __future__ import annotations

import threading
import time

from headwater.log.delayed_calls import DelayedCalls

SOON = 0.01
HANGS = 300.0
"""The time that a test waits before it says that something never came."""


def test_what_is_due_earlier_is_done_first_whenever_it_was_asked_for() -> None:
    later, done = DelayedCalls("test"), threading.Barrier(3)
    seen: list[str] = []

    def note(name: str) -> None:
        seen.append(name)
        done.wait(HANGS)

    later.call(10 * HANGS, lambda: note("much later"))
    later.call(SOON * 2, lambda: note("soon"))
    later.call(SOON, lambda: note("sooner"))
    done.wait(HANGS)
    assert sorted(seen) == ["soon", "sooner"]


def test_one_that_takes_long_holds_up_nobody() -> None:
    later, release = DelayedCalls("test"), threading.Event()
    begun = threading.Barrier(6)

    def take_long() -> None:
        begun.wait(HANGS)
        release.wait(HANGS)

    for _ in range(5):
        later.call(SOON, take_long)
    begun.wait(HANGS)  # all of them at once
    release.set()


def test_what_is_due_while_another_takes_long_wakes_a_thread_that_waits_for_nothing() -> None:
    later, met, release = DelayedCalls("test"), threading.Barrier(3), threading.Event()

    def meet() -> None:
        met.wait(HANGS)

    def take_long() -> None:
        release.wait(HANGS)

    for _ in range(2):
        later.call(0, meet)
    meet()
    while later._waiting < 2:  # both wait, and nothing is due
        time.sleep(SOON)
    time.sleep(SOON)
    done = threading.Event()
    later.call(10 * SOON, take_long)
    later.call(11 * SOON, done.set)
    assert done.wait(HANGS)
    release.set()


def test_threads_go_when_there_is_no_use_for_them() -> None:
    later, begun = DelayedCalls("test-few"), threading.Barrier(9)

    def meet() -> None:
        begun.wait(HANGS)

    for _ in range(8):
        later.call(0, meet)
    begun.wait(HANGS)
    while sum(thread.name == "test-few" for thread in threading.enumerate()) > 2:
        time.sleep(SOON)
    again = threading.Event()
    later.call(0, again.set)
    assert again.wait(HANGS)
