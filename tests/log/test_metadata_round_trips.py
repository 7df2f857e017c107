"""The engine's notes about a log read back as they were written, and the engine notices damage to them."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import Damaged
from headwater.core.errors import IndexDamaged
from headwater.log import Identity
from headwater.log.files.counters import COUNTERS_BYTES, NO_COUNTERS
from headwater.log.files.disk import REAL_DISK
from headwater.log.files.index import IndexBuilder, IndexEntry, IndexHeader, open_index
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, pack_mark, read_mark
from headwater.log.files.segment import SegmentHeader, new_segment_header
from headwater.log.files.state import MAGIC, STATE_BYTES, State, StatePage
from headwater.log.write.producers import BATCHES_KEPT, ProducerTable
from tests.support.strategies import INT64

int64 = st.integers(*INT64)
uint32 = st.integers(0, (1 << 32) - 1)
uint64 = st.integers(0, (1 << 64) - 1)
uuids = st.binary(min_size=16, max_size=16)
frames = st.lists(st.tuples(st.integers(1, 300), int64), max_size=40)


def built(log_frames: list[tuple[int, int]], interval: int) -> tuple[IndexBuilder, list[tuple[int, int, int]]]:
    """An index of frames with these lengths and timestamps, and each frame's offset, position and timestamp."""
    builder = IndexBuilder(interval)
    placed = []
    position = 80
    for offset, (length, timestamp) in enumerate(log_frames):
        builder.add(position, length, offset, timestamp)
        placed.append((offset, position, timestamp))
        position += length
    return builder, placed


@given(uuids, frames, st.integers(128, 1000))
def test_an_index_reads_back(log: bytes, log_frames: list[tuple[int, int]], interval: int) -> None:
    builder, _ = built(log_frames, interval)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(builder.pack(log, 1))
        with open_index(path, log) as index:
            assert list(index) == builder.entries


@given(frames, st.integers(128, 1000), st.integers(-1, 41), int64)
def test_an_index_never_points_behind_what_is_sought(
    log_frames: list[tuple[int, int]], interval: int, offset: int, timestamp: int
) -> None:
    builder, placed = built(log_frames, interval)
    log = bytes(16)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(builder.pack(log, 1))
        with open_index(path, log) as index:
            by_offset, by_time = index.at_offset(offset), index.at_time(timestamp)
    wanted = next((frame for frame in placed if frame[0] == offset), None)
    if wanted is not None:
        assert by_offset is not None
        apart = max(interval, 4 * log_frames[offset][0])
        assert wanted[1] - apart < by_offset.position <= wanted[1]
    newer = next((frame for frame in placed if frame[2] >= timestamp), None)
    if by_time is not None and newer is not None:
        assert by_time.position <= newer[1]


@given(st.data(), uuids)
def test_damage_to_an_index_is_noticed(data: st.DataObject, log: bytes) -> None:
    builder, _ = built([(100, 1)] * 20, 128)
    assert len(builder.entries) == 5
    content = bytearray(builder.pack(log, 1))
    checked = [*range(48), *(64 + 32 * entry + byte for entry in range(5) for byte in range(28))]
    content[data.draw(st.sampled_from(checked))] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(content)
        with pytest.raises(IndexDamaged), open_index(path, log) as index:
            list(index)


def test_the_index_of_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(IndexBuilder(128).pack(b"a" * 16, 1))
    with pytest.raises(IndexDamaged, match="another file"), open_index(path, b"b" * 16):
        pass


@given(uuids, int64, int64, uint32)
def test_an_index_header_round_trips(log: bytes, covered: int, timestamp: int, entries: int) -> None:
    header = IndexHeader(log, covered, timestamp, entries)
    assert IndexHeader.unpack(header.pack()) == header


def test_an_entry_says_where_a_frame_begins() -> None:
    builder = IndexBuilder(1000)
    builder.add(80, 100, 0, 5)
    builder.add(500, 100, 10, 9)
    builder.add(1080, 100, 20, 7)
    assert builder.entries[1:] == [IndexEntry(20, 1080, 9)]


def test_large_frames_have_fewer_entries() -> None:
    builder, placed = built([(500, 1)] * 9, 128)
    assert [entry.position for entry in builder.entries] == [position for _, position, _ in placed[::4]]


# Producers.

appends = st.lists(st.tuples(st.sampled_from([b"p" * 16, b"q" * 16]), st.integers(1, 5), st.booleans()), max_size=30)


def table_of(history: list[tuple[bytes, int, bool]]) -> tuple[ProducerTable, dict[bytes, list[tuple[int, int, int]]]]:
    """A table after these appends, and (sequence, count, offset) of each producer's batches."""
    table = ProducerTable()
    batches: dict[bytes, list[tuple[int, int, int]]] = {}
    offset = 0
    for number, (producer, count, forever) in enumerate(history):
        if forever:
            table.add(Identity(producer, 0, number, True), count, offset, offset + count, number)
        else:
            known = batches.setdefault(producer, [])
            sequence = known[-1][0] + known[-1][1] if known else 0
            table.add(Identity(producer, 3, sequence), count, offset, offset + count, number)
            known.append((sequence, count, offset))
        offset += count
    return table, batches


@given(appends)
def test_a_table_of_producers_round_trips(history: list[tuple[bytes, int, bool]]) -> None:
    table, batches = table_of(history)
    again = ProducerTable.unpack(table.pack())
    assert again.pack() == table.pack()
    for producer, known in batches.items():
        for sequence, count, offset in known[-BATCHES_KEPT:]:
            original = again.check(Identity(producer, 3, sequence), count)
            assert original is not None
            assert (original.base_offset, original.end_offset) == (offset, offset + count)
    for producer in (b"p" * 16, b"q" * 16):
        assert again.writer_sequence(producer) == table.writer_sequence(producer)


@given(appends, st.data())
def test_damage_to_a_table_of_producers_is_noticed(history: list[tuple[bytes, int, bool]], data: st.DataObject) -> None:
    content = bytearray(table_of(history)[0].pack())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        ProducerTable.unpack(bytes(content))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_table_or_damaged(content: bytes) -> None:
    with pytest.raises(Damaged):
        ProducerTable.unpack(content)


# The state page.

_WIDTHS: dict[str, st.SearchStrategy[Any]] = {
    "magic": st.just(MAGIC),
    "sequence": st.integers(0, 1 << 62),
    "partition": uuids,
    "segment": uuids,
    "counters": st.binary(min_size=COUNTERS_BYTES, max_size=COUNTERS_BYTES),
    **dict.fromkeys(
        ("flags", "leader_epoch", "stamp", "durable_stamp", "index_entries", "recoveries", "damaged", "listed"), uint32
    ),
    **dict.fromkeys(
        ("layout", "total_records", "total_frames", "total_bytes", "total_appends", "total_syncs", "list_generation"),
        uint64,
    ),
}
states = st.builds(State, **{name: _WIDTHS.get(name, int64) for name in State._fields})


@given(states, states)
def test_a_state_reads_back_as_it_was_written(first: State, second: State) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "state"
        StatePage.create(REAL_DISK, path, first)
        page = StatePage(REAL_DISK, path)
        try:
            assert page.read() == (first, True)
            written = page.write(second._replace(sequence=first.sequence))
            assert written == second._replace(sequence=first.sequence + 1)
            assert page.read() == (written, True)
        finally:
            page.close()


@given(states, st.data())
def test_a_torn_write_leaves_the_state_before_it(state: State, data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "state"
        StatePage.create(REAL_DISK, path, state)
        page = StatePage(REAL_DISK, path)
        try:
            older = page.write(state)
            half = (older.sequence + 1) % 2 * (STATE_BYTES // 2)
            cut = data.draw(st.integers(8, STATE_BYTES // 2))
            with path.open("r+b") as file:
                file.seek(half)
                file.write(os.urandom(cut))
            assert page.read() == (older, False)
        finally:
            page.close()


def test_a_state_of_which_both_copies_are_damaged_is_none(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(os.urandom(STATE_BYTES))
    page = StatePage(REAL_DISK, path)
    assert page.read() == (None, False)
    page.close()


def test_the_state_is_one_kilobyte(tmp_path: Path) -> None:
    path = tmp_path / "state"
    blank = dict.fromkeys(State._fields, 0) | {"magic": MAGIC, "partition": bytes(16), "segment": bytes(16)}
    blank["counters"] = NO_COUNTERS
    StatePage.create(REAL_DISK, path, State(**blank))  # type: ignore[arg-type]
    assert path.stat().st_size == 1024


# Segments and marks.


@given(uuids, st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.data())
def test_a_segment_header_round_trips_and_damage_to_it_is_noticed(
    partition: bytes, base: int, created_ns: int, data: st.DataObject
) -> None:
    header = new_segment_header(partition, base, created_ns)
    content = bytearray(header.pack())
    assert SegmentHeader.unpack(bytes(content)) == header
    content[data.draw(st.integers(0, 75))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        SegmentHeader.unpack(bytes(content))


@given(int64, st.sampled_from([START_FILE, TRUNCATE_FILE]), st.data())
def test_a_mark_round_trips_and_damage_to_it_is_noticed(offset: int, name: str, data: st.DataObject) -> None:
    content = bytearray(pack_mark(name, offset))
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        assert read_mark(path.parent, name) is None
        path.write_bytes(content)
        assert read_mark(path.parent, name) == offset
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(Damaged):
            read_mark(path.parent, name)


def test_one_mark_is_never_taken_for_the_other(tmp_path: Path) -> None:
    (tmp_path / TRUNCATE_FILE).write_bytes(pack_mark(START_FILE, 5))
    with pytest.raises(Damaged):
        read_mark(tmp_path, TRUNCATE_FILE)
