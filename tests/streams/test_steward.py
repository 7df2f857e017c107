"""The steward: what is no longer wanted goes, what a group has yet to read stays, and one failure is not everyone's."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headwater import HeadwaterError, InvalidConfiguration, Store, Topic
from headwater.core.config import StewardConfig
from headwater.core.options import DAY
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.memory_store import MemoryStore
from headwater.log import Partition
from headwater.streams.steward import StewardReport
from headwater.testing import ManualClock
from tests.support.backends import OpenStore, inside
from tests.support.patience import wait_until

SEGMENT = 10
"""Records in each segment of `fill`."""
LIMITS: dict[str, tuple[float, float]] = {
    "interval": (0.001, 7 * DAY),
    "total_bytes": (0, 1 << 60),
    "force_after": (0, 100 * 365 * DAY),
    "force_bytes": (0, 1 << 60),
    "scrub_interval": (0, 100 * 365 * DAY),
    "scrub_bytes_per_second": (1 << 16, 1 << 40),
    "group_expiry": (0, 100 * 365 * DAY),
    "history": (0.1, DAY),
}


def fill(topic: Topic, segments: int, clock: ManualClock | None = None, seconds: float = 0) -> Partition:
    """Closed segments of ten records in each partition, `seconds` apart; the growing one is left empty."""
    for _ in range(segments):
        with topic._store.producer(topic.name) as out:
            for number in range(topic.info.partitions):
                for index in range(SEGMENT):
                    out.send(b"x" * 100, b"%d" % index, partition=number)
        if clock is not None:
            clock.advance(seconds)
        for partition in topic.partitions():
            partition.roll()
    return topic.partition(0)


def read(store: Store, topic: str, group: str, records: int) -> None:
    """Let a group acknowledge so many records, and leave."""
    with store.consumer(topic, group=group) as inbox:
        while records:
            polled = inbox.poll(records, timeout=300)
            assert polled
            records -= len(polled)
            for record in polled:
                inbox.ack(record)


# Deletion and compaction.


def test_segments_go_by_what_their_topic_keeps(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("old", retention_age=100), 3)
    fill(store.create_topic("large", partitions=2, retention_bytes=4000), 5)
    fill(store.create_topic("kept"), 3)
    clock.advance(101)
    report = store.steward().run_once()
    cleaned = {(partition.topic, partition.partition): partition for partition in report.partitions}
    assert cleaned["old", 0].segments == 3
    assert cleaned["old", 0].start == store.topic("old").bounds()[0].start == 3 * SEGMENT
    assert cleaned["kept", 0].segments == 0
    for number in (0, 1):
        assert 0 < cleaned["large", number].segments < 5
        assert store.topic("large").statistics().partitions[number].bytes <= 4000
    assert report.errors == ()
    assert report.bytes == sum(partition.bytes for partition in report.partitions) > 3000
    assert report.bytes_left == store.statistics().bytes


def test_a_minimum_of_segments_stays(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1, retention_segments=3), 5)
    clock.advance(100)
    steward = store.steward(total_bytes=0, force_after=1, force_bytes=0)
    assert steward.run_once().segments == 3
    assert store.topic("a").statistics().partitions[0].segments == 3


def test_quiet_logs_expire(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    topic = store.create_topic("quiet", segment_age=50, retention_age=100)
    with store.producer("quiet") as out:
        out.send(b"the only one")
    assert not store.steward().run_once().partitions[0].rolled
    clock.advance(51)
    assert store.steward().run_once(dry_run=True).partitions[0].rolled
    assert topic.statistics().partitions[0].segments == 1
    assert store.steward().run_once().partitions[0].rolled
    clock.advance(101)
    report = store.steward().run_once()
    assert (report.segments, report.partitions[0].start) == (1, 1)
    assert not report.partitions[0].rolled


def test_the_whole_store_has_a_limit_and_the_oldest_go_first(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("new"), 0)
    old = store.create_topic("old")
    fill(old, 3, clock, 10)
    fill(store.topic("new"), 3, clock, 10)
    size = store.statistics().bytes
    steward = store.steward(total_bytes=size - 1)
    assert {partition.topic: partition.segments for partition in steward.run_once().partitions} == {"old": 1, "new": 0}
    assert store.statistics().bytes < size
    steward = store.steward(total_bytes=0)
    assert {partition.topic: partition.segments for partition in steward.run_once().partitions} == {"old": 2, "new": 3}


def test_the_limit_of_the_whole_store_spares_compacted_topics_and_unread_records(open_store: OpenStore) -> None:
    store = open_store()
    fill(store.create_topic("state", compact=True), 2)
    fill(store.create_topic("log"), 3)
    read(store, "log", "slow", SEGMENT)
    report = store.steward(total_bytes=0).run_once()
    cleaned = {partition.topic: partition for partition in report.partitions}
    assert (cleaned["state"].segments, cleaned["log"].segments) == (0, 1)
    assert cleaned["log"].protected_by == ("slow",)
    assert cleaned["log"].forced == 0
    assert store.steward(total_bytes=0, protect_unread=False).run_once().segments == 2


def test_compacted_topics_keep_the_newest_of_each_key(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("state", compact=True)
    partition = fill(topic, 3)
    steward = store.steward()
    dry = steward.run_once(dry_run=True).partitions[0]
    assert (dry.compacted, dry.compaction) == (True, None)
    done = steward.run_once().partitions[0]
    assert done.compaction is not None
    assert done.compaction.removed_records == 2 * SEGMENT
    assert [record.offset for record in partition.records()] == list(range(2 * SEGMENT, 3 * SEGMENT))
    assert not steward.run_once().partitions[0].compacted, "nothing was closed since"
    fill(topic, 1)
    assert steward.run_once().partitions[0].compacted


def test_a_dry_run_tells_what_a_run_does_and_does_nothing(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=100), 3)
    read(store, "a", "slow", SEGMENT)
    clock.advance(101)
    dry = store.steward(total_bytes=10).run_once(dry_run=True)
    assert store.topic("a").bounds()[0].start == 0
    assert dry.segments == 1
    assert dataclasses.replace(dry, dry_run=False) == store.steward(total_bytes=10).run_once()


# Protection.


def test_what_a_group_has_yet_to_read_stays(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 5)
    read(store, "a", "fast", 5 * SEGMENT)
    read(store, "a", "slow", 2 * SEGMENT + 5)
    clock.advance(100)
    cleaned = store.steward().run_once().partitions[0]
    assert (cleaned.start, cleaned.protected_by, cleaned.forced) == (2 * SEGMENT, ("slow",), 0)
    read(store, "a", "slow", 2 * SEGMENT)
    cleaned = store.steward().run_once().partitions[0]
    assert (cleaned.start, cleaned.protected_by) == (4 * SEGMENT, ("slow",))
    read(store, "a", "slow", 5)
    assert store.steward().run_once().partitions[0].start == 5 * SEGMENT


def test_a_group_that_has_done_nothing_yet_is_protected(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 3)
    clock.advance(100)
    with store.consumer("a", group="new") as inbox:
        assert len(inbox.poll(1, timeout=300)) == 1
        assert store.steward().run_once().partitions[0].protected_by == ("new",)
        assert store.topic("a").bounds()[0].start == 0
    clock.advance(8 * DAY)
    assert store.steward().run_once().segments == 3


def test_an_owner_without_a_position_protects_its_partition(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    topic = store.create_topic("a", retention_age=1)
    fill(topic, 3)
    clock.advance(10)
    with store.consumer("a", group="new") as inbox:
        assert inbox.assignment()
        # As between the moment when a member takes a partition and its first commit.
        kept = inside(store)._coordinator("new")
        assert isinstance(kept, EmbeddedGroup)
        kept._unset((topic.info.uuid, 0))
        assert kept.describe().owners
        cleaned = store.steward().run_once().partitions[0]
        assert (cleaned.segments, cleaned.protected_by) == (0, ("new",))


def test_what_a_fixed_share_has_yet_to_read_is_protected(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 3)
    fill(store.create_topic("b", retention_age=1), 3)
    clock.advance(10)
    with store.consumer("a", group="fixed", static=(0, 1)) as inbox:  # it has no position before its first poll
        cleaned = {partition.topic: partition for partition in store.steward().run_once().partitions}
        assert (cleaned["a"].segments, cleaned["a"].protected_by) == (0, ("fixed",))
        assert (cleaned["b"].segments, cleaned["b"].protected_by) == (3, ())
        clock.advance(30 * DAY)
        assert store.steward().run_once().expired_groups == ()
        assert [record.offset for record in inbox.poll(timeout=300)][:1] == [0]


def test_protection_can_be_turned_off(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 3)
    read(store, "a", "slow", 1)
    clock.advance(100)
    report = store.steward(protect_unread=False).run_once()
    assert (report.segments, report.partitions[0].protected_by) == (3, ())


@pytest.mark.parametrize(("options", "start"), [({"force_after": 60}, 2), ({"force_bytes": 4000}, 3)])
def test_what_is_far_too_old_or_too_large_goes_unread(
    open_store: OpenStore, options: dict[str, Any], start: int
) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a"), 5, clock, 30)
    read(store, "a", "stuck", SEGMENT)
    size = 4000 if "force_bytes" in options else 10**9
    cleaned = store.steward(**options).run_once().partitions[0]
    assert cleaned.start >= start * SEGMENT
    assert cleaned.segments == cleaned.start // SEGMENT
    assert cleaned.forced == cleaned.segments - 1
    assert cleaned.protected_by == ("stuck",)
    assert store.statistics().bytes <= size


def test_force_does_not_touch_what_a_compacted_topic_keeps(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", compact=True), 2)
    clock.advance(1000)
    assert store.steward(force_after=1, force_bytes=0).run_once().segments == 0


# Groups.


def test_a_group_without_members_is_forgotten_after_a_week(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 3)
    read(store, "a", "gone", 5)
    clock.advance(7 * DAY)
    assert store.steward().run_once().expired_groups == ()
    clock.advance(1)
    assert store.steward().run_once(dry_run=True).expired_groups == ("gone",)
    assert store.group("gone").committed() != {}
    report = store.steward().run_once()
    assert report.expired_groups == ("gone",)
    assert report.segments == 3, "it protects nothing any more"
    assert store.group("gone").committed() == {}
    assert store.steward().run_once().expired_groups == ()


def test_positions_in_deleted_topics_go_when_nobody_has_used_them_for_long(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("kept"), 1)
    fill(store.create_topic("gone", partitions=3), 1)
    with store.consumer(["kept", "gone"], group="g", auto_ack=True, refresh_interval=0.001) as inbox:
        while inbox.poll():
            pass
        store.delete_topic("gone")
        fill(store.create_topic("gone"), 1)  # another one of that name
        assert store.steward().run_once().pruned_positions == 0
        clock.advance(8 * DAY)
        assert inbox.poll(timeout=300)  # it lives, so the group does not expire
        assert store.steward().run_once(dry_run=True).pruned_positions == 3
        assert len(store.group("g").committed()) == 5
        report = store.steward().run_once()
        assert (report.pruned_positions, report.expired_groups, report.errors) == (3, (), ())
        assert store.steward().run_once().pruned_positions == 0
    topics = {store.describe_topic(name).uuid for name in ("kept", "gone")}
    assert {key[0] for key in store.group("g").committed()} == topics


def test_no_position_goes_while_a_topic_cannot_be_read(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        fill(store.create_topic("torn"), 1)
        fill(store.create_topic("gone"), 1)
        read(store, "torn", "g", SEGMENT)
        read(store, "gone", "g", SEGMENT)
        store.delete_topic("gone")
        store._coordinator("g").join([], lambda _: [])  # so the group does not expire
        content = (tmp_path / "torn" / "topic.json").read_bytes()
        (tmp_path / "torn" / "topic.json").write_bytes(content[:-5])
        report = store.steward(group_expiry=0).run_once()
        assert (report.pruned_positions, report.expired_groups) == (0, ())
        assert any("torn" in error for error in report.errors)
        (tmp_path / "torn" / "topic.json").write_bytes(content)
        assert store.steward(group_expiry=0).run_once().pruned_positions == 1


def test_a_forgotten_group_can_come_back(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a"), 1)
    read(store, "a", "gone", 5)
    clock.advance(8 * DAY)
    store.steward().run_once()
    with store.consumer("a", group="gone", start=3) as inbox:
        records = inbox.poll(timeout=300)
        assert records[0].offset == 3
        inbox.ack(records[0])
    assert [position.offset for position in store.group("gone").committed().values()] == [4]


def test_a_group_with_a_member_is_not_forgotten(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a"), 1)
    read(store, "a", "here", 5)
    with store.consumer("a", group="here"):
        clock.advance(8 * DAY)
        assert store.steward().run_once().expired_groups == ()


# Failures.


def test_an_error_in_one_partition_does_not_stop_the_others(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", partitions=3, retention_age=1), 2)
    clock.advance(100)

    def fail(offset: int, protected: object) -> None:  # noqa: ARG001 - as the cleaner calls it
        raise HeadwaterError(f"no deleting before {offset} today")

    monkeypatch.setattr(inside(store).topic("a").partition(1), "remove_expired", fail)
    report = store.steward().run_once()
    assert [partition.segments for partition in report.partitions] == [2, 0, 2]
    assert report.partitions[1].error == "no deleting before 20 today"
    assert report.errors == ("a/1: no deleting before 20 today",)


def test_a_group_that_cannot_be_read_protects_everything(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=1), 3)
    read(store, "a", "broken", 3 * SEGMENT)
    clock.advance(100)

    def fail() -> None:
        raise OSError("no descriptors left")

    with monkeypatch.context() as patch:
        patch.setattr(inside(store)._coordinator("broken"), "describe", fail)
        report = store.steward().run_once()
    assert (report.segments, report.partitions[0].protected_by) == (0, ("broken",))
    assert report.errors == ("group 'broken': no descriptors left",)
    assert store.steward().run_once().segments == 3


def test_remains_of_deleted_topics_are_swept(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        remains = tmp_path / "store" / (".deleted-" + "0" * 32)
        (remains / "0").mkdir(parents=True)
        assert store.steward().run_once(dry_run=True).swept_topics == 1
        assert store.steward().run_once().swept_topics == 1
        assert not remains.exists()


# One at a time.


def test_a_second_steward_leaves_and_says_so(open_store: OpenStore) -> None:
    store = open_store()
    fill(store.create_topic("a", retention_bytes=0), 2)
    with inside(store).stewarding():
        report = store.steward().run_once()
        assert report.skipped is not None
        assert f"process {os.getpid()} is cleaning" in report.skipped
        assert report.partitions == ()
    assert store.steward().run_once().segments == 2


def test_a_steward_of_another_process_is_noticed(tmp_path: Path) -> None:
    holder = "import sys, headwater as hw\nwith hw.open(sys.argv[1]) as store, store.stewarding():\n"
    holder += "    print('cleaning', flush=True); sys.stdin.read()\n"
    command = [sys.executable, "-c", holder, str(tmp_path / "store")]
    with (
        DirectoryStore(tmp_path / "store") as store,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "cleaning\n"
        assert f"process {child.pid} is cleaning" in str(store.steward().run_once().skipped)
        child.communicate(timeout=300)
        assert store.steward().run_once().skipped is None


# In the background.


def test_it_works_in_the_background_until_it_is_stopped(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("a", retention_bytes=0)
    with store.steward(interval=0.01) as steward:
        for round_ in (1, 2):
            fill(topic, 2)
            wait_until(lambda end=2 * SEGMENT * round_: topic.bounds()[0].start == end)  # type: ignore[misc]
    assert steward.last_report is not None
    names = {thread.name for thread in threading.enumerate()}
    assert "headwater-steward" not in names
    fill(topic, 1)
    time.sleep(0.05)
    assert topic.bounds()[0].start == 4 * SEGMENT
    steward.stop()
    with steward:
        wait_until(lambda: topic.bounds()[0].start == 5 * SEGMENT)


def test_stopping_does_not_wait_for_the_interval(open_store: OpenStore) -> None:
    begun = time.monotonic()
    with open_store().steward(interval=3600) as steward:
        wait_until(lambda: steward.last_report is not None)
    assert time.monotonic() - begun < 3600 / 2


def test_it_ends_when_its_store_is_closed(open_store: OpenStore) -> None:
    store = open_store()
    steward = store.steward(interval=0.01).start()
    store.close()
    wait_until(lambda: "headwater-steward" not in {thread.name for thread in threading.enumerate()})
    steward.stop()


STEWARD = """
import sys
import headwater as hw
with hw.open(sys.argv[1]) as store:
    steward = store.steward(interval=0.01)
    print("begun", flush=True)
    steward.run_forever()
    print("ended well", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_a_process_of_its_own_it_ends_well_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        topic = store.create_topic("a", retention_bytes=0)
        fill(topic, 2)
        command = [sys.executable, "-c", STEWARD, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            wait_until(lambda: topic.bounds()[0].start == 2 * SEGMENT)
            child.send_signal(number)
            assert child.communicate(timeout=300)[0] == "ended well\n"
        assert child.returncode == 0


# Configuration.


def made(**values: Any) -> StewardConfig:
    return StewardConfig(**values)


def test_every_option_has_limits() -> None:
    assert {field.name for field in dataclasses.fields(StewardConfig)} == {*LIMITS, "protect_unread"}


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_beyond_the_limits_is_refused(name: str) -> None:
    least, most = LIMITS[name]
    wrong: list[Any] = [least - 1, most + 1, "1", True]
    for value in wrong:
        with pytest.raises(InvalidConfiguration, match=f"^{name} must be"):
            made(**{name: value})
    for value in (least, most):
        assert getattr(made(**{name: value}), name) == value


def test_wrong_options_are_named(open_store: OpenStore) -> None:
    with pytest.raises(InvalidConfiguration, match="total_bytes must be a whole number"):
        made(total_bytes=5.5)
    with pytest.raises(InvalidConfiguration, match="protect_unread"):
        made(protect_unread=1)
    with pytest.raises(InvalidConfiguration, match=r"unknown options.*total"):
        open_store().steward(total=5)


def test_reports_begin_empty() -> None:
    assert (StewardReport().segments, StewardReport().bytes) == (0, 0)


def test_stores_of_one_process_are_cleaned_apart() -> None:
    with MemoryStore() as stewarded, MemoryStore() as other, stewarded.stewarding():
        assert other.steward().run_once().skipped is None


# Clocks.

JUMPS = [365 * DAY, 8 * DAY, -DAY, -50 * 365 * DAY]


@pytest.mark.parametrize("jump", JUMPS, ids=["a year ahead", "eight days ahead", "a day back", "back to the seventies"])
def test_nothing_goes_because_the_wall_clock_was_set(open_store: OpenStore, jump: float) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    fill(store.create_topic("a", retention_age=DAY, segment_age=DAY), 3)
    read(store, "a", "slow", 5)
    with store.producer("a") as out:
        out.send(b"the last one")
    store.steward().run_once()
    clock.advance(60)
    clock.jump(jump)
    for dry_run in (True, False, False):
        report = store.steward(force_after=90 * DAY).run_once(dry_run=dry_run)
        assert (report.segments, report.expired_groups, report.pruned_positions) == (0, (), 0)
        assert not report.partitions[0].rolled
        assert report.errors == ()
        clock.advance(60)
    fill(store.topic("a"), 1)
    read(store, "a", "new", 5)
    clock.jump(-jump)
    report = store.steward(force_after=90 * DAY).run_once()
    assert (report.segments, report.expired_groups) == (0, ())
    assert len(store.group("slow").committed()) == len(store.group("new").committed()) == 1
    clock.advance(7 * DAY + 1 + (DAY if jump == -DAY else 0))
    assert store.steward(force_after=90 * DAY).run_once().expired_groups == ("new", "slow"), "that time has passed"
    assert store.topic("a").bounds()[0].start == 4 * SEGMENT + 1


def test_a_strange_clock_is_told_of(open_store: OpenStore) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    assert store.steward().run_once().clock is None
    clock.advance(2 * 3600)
    assert store.steward().run_once().clock is None
    clock.jump(DAY)
    clock.advance(60)
    told = store.steward().run_once().clock
    assert told is not None
    assert "set ahead by 86,400 s" in told


def test_the_next_program_notices_that_the_clock_was_set(tmp_path: Path) -> None:
    clock = ManualClock()
    with DirectoryStore(tmp_path, clock=clock) as store:
        fill(store.create_topic("a", retention_age=1000), 3)
        read(store, "a", "g", 3 * SEGMENT)
    clock.jump(365 * DAY)
    clock.advance(60)
    for _ in range(2):
        with DirectoryStore(tmp_path, clock=clock) as store:
            report = store.steward().run_once()
            assert (report.segments, report.expired_groups) == (0, ())
    clock.advance(1000)
    with DirectoryStore(tmp_path, clock=clock) as store:
        assert store.steward().run_once().segments == 3


def test_a_machine_that_was_off_for_a_week_is_cleaned_an_hour_after_its_start(tmp_path: Path) -> None:
    clock = ManualClock()
    with DirectoryStore(tmp_path, clock=clock) as store:
        fill(store.create_topic("a", retention_age=DAY), 3)
        read(store, "a", "g", SEGMENT)
        clock.advance(2 * 3600)
        store.steward().run_once()
    clock.reboot(off=7 * DAY)
    clock.advance(60)
    with DirectoryStore(tmp_path, clock=clock) as store:
        report = store.steward().run_once()
        assert (report.segments, report.expired_groups) == (0, ())
        assert report.clock is not None
        clock.advance(3600)
        report = store.steward().run_once()
        assert (report.segments, report.expired_groups, report.clock) == (3, ("g",), None)


def test_undecided_transactions_stay_when_the_wall_clock_is_set(tmp_path: Path) -> None:
    clock = ManualClock()
    with DirectoryStore(tmp_path, clock=clock) as store:
        store.create_topic("a")
        block = store.transaction()
        with block.producer("a") as out:
            out.send(b"undecided")
        (stage,) = (tmp_path / "__transactions").glob("*.stage")
        os.utime(stage, ns=(clock.now_ns(),) * 2)
        clock.jump(365 * DAY)
        assert store.steward().run_once().dropped_stages == 0
        block.commit()
        assert [record.value for record in store.topic("a").partition(0).records()] == [b"undecided"]
