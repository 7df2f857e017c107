"""Things that are done later: in the order of their times, and none held up by another."""

from __future__ import annotations

import threading
import time

from headwater.log.later import Later

SOON = 0.01
HANGS = 300.0
"""How long a test waits before it says that something never came."""


def test_things_happen_in_the_order_of_their_times() -> None:
    later, done = Later("test"), threading.Event()
    seen: list[str] = []

    def last() -> None:
        seen.append("last")
        done.set()

    later.call(SOON * 3, last)
    later.call(SOON, lambda: seen.append("first"))
    later.call(SOON * 2, lambda: seen.append("second"))
    assert done.wait(HANGS)
    assert seen == ["first", "second", "last"]


def test_one_that_takes_long_holds_up_nobody() -> None:
    later, release = Later("test"), threading.Event()
    begun = threading.Barrier(6)

    def take_long() -> None:
        begun.wait(HANGS)
        release.wait(HANGS)

    for _ in range(5):
        later.call(SOON, take_long)
    begun.wait(HANGS)  # all of them at once
    release.set()


def test_threads_go_when_there_is_no_use_for_them() -> None:
    later, begun = Later("test-few"), threading.Barrier(9)

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
