"""Any sequence of operations leaves a partition in agreement with a plain dict of records.

Hypothesis invents the sequences: appends of all kinds and their retries, rolls, truncations, deletions, compaction,
retention; in a directory also closing, reopening, writers that die, other handles and torn ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater import OffsetOutOfRange, OutOfOrderSequence, PartitionConfig
from headwater.log import Appended, DirectoryPartition, Frame, Identity, MemoryPartition, Partition, encode
from headwater.testing import ManualClock
from tests.support.model import Model, Row
from tests.support.strategies import compressions

GRACE = 60.0

keys = st.sampled_from([None, b"", b"a", b"b", b"c"])
rows = st.lists(
    st.tuples(
        st.integers(0, 20),
        keys,
        st.none() | st.binary(max_size=20),
        st.none() | st.just({"h": b"1"}),
    ),
    min_size=1,
    max_size=4,
)
percents = st.integers(0, 100)
"""A place in the log, in percent."""


class PartitionMachine(RuleBasedStateMachine):
    """One partition and its model."""

    partition: Partition

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.clock = ManualClock()
        self.opened: list[Partition] = []
        self.compacted_to = 0
        self.generation = 0

    @property
    def producer(self) -> bytes:
        """The idempotent producer's id."""
        return b"producer %7d" % self.generation

    @property
    def writer(self) -> bytes:
        """The id of the writer of atomic groups."""
        return b"writer %9d" % self.generation

    def open(self, config: PartitionConfig) -> Partition:
        """Open the partition under test, which may be there already."""
        raise NotImplementedError

    @initialize(sync=st.sampled_from(["always", "never"]), drop_markers=st.booleans())
    def begin(self, sync: str, drop_markers: bool) -> None:
        self.drop_markers = drop_markers
        self.config = PartitionConfig(
            sync=sync,  # type: ignore[arg-type]
            index_interval=256,
            retention_bytes=0,
            delete_grace=GRACE if drop_markers else 1e9,
            segment_age=1e9,
            producer_expiry=1e9,
            mapping_cache_bytes=4096,
        )
        self.reopen_partition()

    def reopen_partition(self) -> None:
        self.partition = self.open(self.config)
        self.opened.append(self.partition)

    def teardown(self) -> None:
        for partition in self.opened:
            partition.close()

    def offset(self, percent: int) -> int:
        """The offset at this place between start and end."""
        return self.model.start + (self.model.end - self.model.start) * percent // 100

    def frame(self, content: list[Row], identity: Identity | None = None, compression: str = "none") -> Frame:
        timestamps, row_keys, values, headers = zip(*content, strict=True)
        return encode(
            values,
            keys=row_keys,
            headers=headers,
            timestamps=timestamps,
            compression=compression,  # type: ignore[arg-type]
            threshold=0,
            identity=identity,
        )

    # Appending.

    @rule(content=rows, compression=compressions)
    def append(self, content: list[Row], compression: str) -> None:
        assert self.partition.append(self.frame(content, compression=compression)) == self.model.append(content)

    @rule(group=st.lists(rows, min_size=1, max_size=3))
    def append_together(self, group: list[list[Row]]) -> None:
        expected = self.model.append(*group)
        assert self.partition.append([self.frame(content) for content in group]) == expected

    @rule(content=rows)
    def append_as_producer(self, content: list[Row]) -> None:
        identity = Identity(self.producer, 0, self.model.last_sequence(self.producer) + 1)
        assert self.partition.append(self.frame(content, identity)) == self.model.append(content, identity=identity)

    @rule(group=st.lists(rows, min_size=1, max_size=3))
    def append_as_writer(self, group: list[list[Row]]) -> None:
        identity = Identity(self.writer, 0, self.model.last_sequence(self.writer) + 1, forever=True)
        expected = self.model.append(*group, identity=identity)
        assert self.partition.append([self.frame(content, identity) for content in group]) == expected

    @precondition(lambda self: any(batch.identity.producer_id == self.producer for batch in self.model.batches))
    @rule(back=st.integers(1, 7))
    def retry_as_producer(self, back: int) -> None:
        batches = [batch for batch in self.model.batches if batch.identity.producer_id == self.producer]
        batch = batches[-min(back, len(batches))]
        frame = self.frame([(0, None, b"a retry", None)] * batch.records, batch.identity)
        if back <= 5 or len(batches) <= 5:
            assert self.partition.append(frame) == batch.place._replace(duplicate=True)
        else:
            with pytest.raises(OutOfOrderSequence):
                self.partition.append(frame)

    @precondition(lambda self: self.model.last_sequence(self.writer) >= 0)
    @rule(percent=percents)
    def retry_as_writer(self, percent: int) -> None:
        sequence = self.model.last_sequence(self.writer) * percent // 100
        frame = self.frame([(0, None, b"a retry", None)], Identity(self.writer, 0, sequence, forever=True))
        assert self.partition.append(frame) == Appended(-1, -1, duplicate=True)

    @rule(gap=st.integers(1, 3))
    def leave_out_a_sequence(self, gap: int) -> None:
        identity = Identity(self.producer, 0, self.model.last_sequence(self.producer) + 1 + gap)
        with pytest.raises(OutOfOrderSequence):
            self.partition.append(self.frame([(0, None, b"", None)], identity))

    @rule()
    def sync(self) -> None:
        self.partition.sync()
        assert self.partition.bounds().durable_end == self.model.end

    # Cleaning.

    @rule()
    def roll(self) -> None:
        assert self.partition.roll() == self.model.roll()

    @rule(percent=percents)
    def truncate(self, percent: int) -> None:
        offset = self.offset(percent)
        self.partition.truncate(offset)
        self.model.truncate(offset)
        if offset < self.compacted_to:
            # Compaction forgets who wrote what, so what is known after this is less than the model knows.
            self.compacted_to = offset
            self.generation += 1

    @rule(percent=percents)
    def delete_before(self, percent: int) -> None:
        offset = self.offset(percent)
        self.partition.delete_before(offset)
        self.model.delete_before(offset)

    @rule(percent=st.none() | percents)
    def retain(self, percent: int | None) -> None:
        keep_from = None if percent is None else self.offset(percent)
        self.model.retain(keep_from)
        assert self.partition.retain(keep_from=keep_from).start == self.model.start

    @rule()
    def compact(self) -> None:
        self.clock.advance(GRACE + 1)
        report = self.partition.compact()
        assert report.damaged == 0
        self.model.compact(drop_markers=self.drop_markers)
        self.compacted_to = self.model.bases[-1]

    # Invariants and reads.

    @invariant()
    def bounds_agree(self) -> None:
        start, end, durable_end = self.partition.bounds()
        assert (start, end) == (self.model.start, self.model.end)
        assert durable_end <= end
        assert durable_end == end or self.config.sync == "never"

    @invariant()
    def records_agree(self) -> None:
        assert list(self.partition.records()) == self.model.rows()

    @rule(first=percents, second=percents)
    def read_a_range(self, first: int, second: int) -> None:
        start, end = sorted((self.offset(first), self.offset(second)))
        expected = self.model.rows(start, end)
        assert list(self.partition.records(start, end)) == expected
        table = self.partition.scan(start, end, columns=["value", "offset"]).read_all()
        assert table["offset"].to_pylist() == [record.offset for record in expected]
        assert table["value"].to_pylist() == [record.value for record in expected]

    @rule(timestamp=st.integers(-1, 21))
    def find_a_time(self, timestamp: int) -> None:
        assert self.partition.offset_at(timestamp) == self.model.offset_at(timestamp)

    @rule(beyond=st.integers(1, 5))
    def read_what_is_not_there(self, beyond: int) -> None:
        for offset in (self.model.start - beyond, self.model.end + beyond):
            with pytest.raises(OffsetOutOfRange):
                self.partition.read(offset)
            if offset > self.model.end:
                with pytest.raises(OffsetOutOfRange):
                    self.partition.delete_before(offset)
            with pytest.raises(OffsetOutOfRange):
                self.partition.truncate(offset)

    @rule()
    def count(self) -> None:
        statistics = self.partition.statistics()
        # A truncation to the very start leaves a segment without readable records, which the next opener removes.
        needed = sum(base > self.model.start for base in self.model.bases[1:]) + 1
        assert needed <= statistics.segments <= len(self.model.bases)
        assert self.partition.writer_sequence(self.writer) == self.model.last_sequence(self.writer)
        assert (statistics.damaged, statistics.poisoned) == (0, False)


class MemoryMachine(PartitionMachine):
    """In memory there is nothing to reopen."""

    def open(self, config: PartitionConfig) -> Partition:
        return MemoryPartition(config, clock=self.clock)


class DirectoryMachine(PartitionMachine):
    """In a directory the log outlives its handles."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())

    def open(self, config: PartitionConfig) -> Partition:
        return DirectoryPartition(self.directory / "log", config, clock=self.clock)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)

    @property
    def log(self) -> Path:
        """The file that grows."""
        return self.directory / "log" / f"{self.model.bases[-1]:020d}.log"

    @rule()
    def reopen(self) -> None:
        self.partition.close()
        self.reopen_partition()
        assert isinstance(self.partition, DirectoryPartition)
        for report in self.partition.recovery_reports:  # there are none, unless an index was lost
            assert all(name.endswith(".index") for name in report.rebuilt)
            assert replace(report, rebuilt=[]).clean

    @rule()
    def abandon(self) -> None:
        """The writer dies: nothing is closed or synced, and another one opens the log."""
        self.reopen_partition()

    @precondition(lambda self: len(self.opened) > 1)
    @rule(number=st.integers(0, 10))
    def use_another_handle(self, number: int) -> None:
        """Handles that were opened earlier and are still open are as good as the newest."""
        live = [partition for partition in self.opened if not self.is_closed(partition)]
        self.partition = live[number % len(live)]

    @staticmethod
    def is_closed(partition: Partition) -> bool:
        try:
            partition.bounds()
        except Exception:  # noqa: BLE001 - closed, in whatever words
            return True
        return False

    @rule(size=st.integers(1, 300), reopened=st.booleans())
    def tear_the_end(self, size: int, reopened: bool) -> None:
        """A writer dies in the middle of a write; the next one cleans up."""
        with self.log.open("ab") as file:
            file.write(os.urandom(size))
        if reopened:
            self.reopen_partition()
        else:
            self.append([(1, None, b"after a torn end", None)], "none")

    @rule()
    def lose_the_indexes(self) -> None:
        for path in (self.directory / "log").glob("*.index"):
            path.unlink()

    @rule()
    def lose_the_state(self) -> None:
        """Nobody has the log open, and the state is gone; what follows from it is in the log."""
        for partition in self.opened:
            partition.close()
        (self.directory / "log" / "state").unlink()
        self.reopen_partition()


_quick = settings.default is not None and settings.default.max_examples < 1000
_settings = settings(max_examples=40 if _quick else 2000, stateful_step_count=25 if _quick else 60)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = _settings
TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = _settings
