"""Scrubbing: damage in records that nobody reads is found, slowly, and by nobody's need."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.core.config import StewardConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.recover.damage import read_damage
from headwater.streams.scrubber import Scrubber
from headwater.streams.stopping import Stop
from headwater.testing import ManualClock
from tests.support.patience import Patience

PATIENCE = 60.0
WEEK = 7 * 24 * 3600.0


class Paced(Stop):
    """Rests for no time, and counts for how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.rested = 0.0

    def wait(self, seconds: float) -> bool:
        self.rested += seconds
        return bool(self)


def filled(store: DirectoryStore, frames: int = 40) -> DirectoryPartition:
    """A partition of several segments."""
    topic = store.create_topic("orders", segment_bytes=64 * 1024, compression="none")
    partition = topic.partition(0)
    assert isinstance(partition, DirectoryPartition)
    with store.producer("orders") as out:
        for _ in range(frames):
            out.send(os.urandom(8_000))
            out.flush()
    assert len(partition.closed()) > 2
    return partition


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def scrubber(
    partition: DirectoryPartition, clock: Clock = REAL_CLOCK, *, interval: float = 0.0, rate: int = 8 << 20
) -> Scrubber:
    config = StewardConfig(scrub_interval=interval, scrub_bytes_per_second=rate)
    return Scrubber(lambda: [partition], config, clock)


def wait(condition: Callable[[], bool]) -> None:
    patience = Patience(PATIENCE)
    while not condition():
        assert not patience.exhausted()
        time.sleep(0.01)


@pytest.mark.parametrize("position", [140, 200, 30_000], ids=["stamp", "header", "body"])
def test_damage_that_nobody_reads_is_noted_as_if_somebody_had(tmp_path: Path, position: int) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        scrubber(partition).run_once(Paced())
        assert partition.statistics().damaged == 0
        closed = partition.closed()[1]
        flip(closed.segment.path, position)
        scrubber(partition).run_once(Paced())
        assert partition.statistics().damaged == 1
        (damage,) = read_damage(partition.path)
        assert damage.file == closed.segment.path
        assert closed.first <= damage.offset < damage.next_offset <= closed.end
        scrubber(partition).run_once(Paced())
        assert partition.statistics().damaged == 1, "it is the same one"


def test_a_segment_whose_own_header_is_damaged_is_mended(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        path = partition.closed()[1].segment.path
        before = path.read_bytes()
        flip(path, 40)
        scrubber(partition).run_once(Paced())
        assert path.read_bytes()[80:] == before[80:]
        assert partition.closed()[1].segment.path == path
        assert len(list(partition.records())) == 40
        assert partition.statistics().damaged == 0


def test_a_segment_that_is_cut_short_is_noted(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        closed = partition.closed()[0]
        os.truncate(closed.segment.path, closed.size // 2)
        scrubber(partition).run_once(Paced())
        (damage,) = read_damage(partition.path)
        assert closed.first < damage.offset < damage.next_offset == closed.end


def test_what_the_device_does_not_give_back_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def pread(fd: int, size: int, position: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(closed.segment.path) and position > 20_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, position)

    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        closed = partition.closed()[1]
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", pread)
            scrubber(partition).run_once(Paced())
        (damage,) = read_damage(partition.path)
        assert closed.first < damage.offset < damage.next_offset == closed.end
        assert "Input/output error" in damage.reason


def test_it_is_slow_and_each_segment_waits_for_its_turn(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns())
    with DirectoryStore(tmp_path, clock=clock) as store:
        partition = filled(store)
        worker, pace = scrubber(partition, clock, interval=WEEK, rate=1 << 20), Paced()
        worker.run_once(pace)
        assert (worker.segments, worker.bytes, pace.rested) == (0, 0, 0.0), "they were closed just now"
        clock.advance(WEEK)
        worker.run_once(pace)
        count, size = len(partition.closed()), sum(segment.size for segment in partition.closed())
        assert worker.segments == count
        assert size * 0.9 < worker.bytes <= size
        assert pace.rested == pytest.approx(worker.bytes / (1 << 20))
        clock.advance(WEEK / 2)
        worker.run_once(pace)
        assert worker.segments == count, "they were verified half a week ago"
        clock.advance(WEEK / 2)
        worker.run_once(pace)
        assert worker.segments == 2 * count


def test_who_is_told_to_stop_stops_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        asked = threading.Event()
        asked.set()
        worker = scrubber(partition, rate=64 * 1024)
        worker.run_once(Stop(asked))
        assert worker.bytes <= 64 * 1024
        assert worker.segments <= 1


def test_a_steward_in_the_background_scrubs_and_one_that_is_told_not_to_does_not(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        flip(partition.closed()[2].segment.path, 20_000)
        with store.steward(interval=0.01, scrub_interval=0, scrub_bytes_per_second=None) as steward:
            wait(lambda: steward.last_report is not None)
        assert (steward.scrubber.segments, partition.statistics().damaged) == (0, 0)
        with store.steward(interval=0.01, scrub_interval=0) as steward:
            wait(lambda: partition.statistics().damaged == 1)
        assert steward.scrubber.segments > 0


def test_what_is_deleted_meanwhile_is_no_damage(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        partition = filled(store)
        end = partition.closed()[-1].end

        class Deleting(Paced):
            def wait(self, seconds: float) -> bool:
                partition.delete_before(end)
                return super().wait(seconds)

        scrubber(partition).run_once(Deleting())
        assert partition.statistics().damaged == 0
