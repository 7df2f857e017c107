"""The same complaint about the same partition is logged once per interval, with a count of what was left out."""

from __future__ import annotations

import logging

import pytest

from headwater.cluster.replication.repeated_log import RepeatedLog

MESSAGE = "%s cannot be read: %s"


class Clock:
    """A clock that is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_repeats_itself_is_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RepeatedLog(logging.getLogger("repeated"), interval=60.0, clock=clock)
    for number in range(100):
        log.log(logging.ERROR, MESSAGE, "numbers/0", ValueError(number))
    assert [record.getMessage() for record in caplog.records] == ["numbers/0 cannot be read: 0"]
    clock.now += 61
    for number in range(100, 200):
        log.log(logging.ERROR, MESSAGE, "numbers/0", ValueError(number))
    assert caplog.records[-1].getMessage() == "numbers/0 cannot be read: 100 (99 times more in the last 61 s)"
    assert len(caplog.records) == 2


def test_other_partitions_messages_and_errors_are_others(caplog: pytest.LogCaptureFixture) -> None:
    log = RepeatedLog(logging.getLogger("repeated"), interval=60.0, clock=Clock())
    for _ in range(3):
        log.log(logging.ERROR, MESSAGE, "numbers/0", ValueError("bad"))
        log.log(logging.ERROR, MESSAGE, "numbers/1", ValueError("bad"))
        log.log(logging.ERROR, MESSAGE, "numbers/0", OSError("worse"))
        log.log(logging.WARNING, "%s is damaged", "numbers/0")
    assert len(caplog.records) == 4
