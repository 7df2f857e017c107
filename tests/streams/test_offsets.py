"""The table of committed positions: small, checked, and never worse than one commit behind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.embedded.offsets import OffsetTable, _newest, _pack, _unpack
from headwater.streams.position import Position

COPY = 64
SLOT = 2 * COPY
UUID = bytes(range(16))
POSITIONS = st.builds(
    Position,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
)


@given(POSITIONS)
def test_what_is_packed_is_unpacked(position: Position) -> None:
    assert _unpack(_pack(position)) == position


@given(POSITIONS, st.integers(0, COPY * 8 - 1))
def test_no_bit_flips_unseen(position: Position, bit: int) -> None:
    copy = bytearray(_pack(position))
    copy[bit // 8] ^= 1 << bit % 8
    assert _unpack(bytes(copy)) is None


@given(POSITIONS, st.integers(0, COPY - 1))
def test_half_a_copy_is_none(position: Position, size: int) -> None:
    assert _unpack(_pack(position)[:size]) is None
    assert _newest(_pack(position)[:size].ljust(SLOT, b"\0")) is None


@pytest.mark.parametrize("slot", [b"", bytes(SLOT), b"\xff" * SLOT])
def test_an_empty_slot_holds_nothing(slot: bytes) -> None:
    assert _newest(slot) is None


@given(
    writes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_a_torn_copy_brings_back_the_position_before_it(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], seed: int
) -> None:
    path = tmp_path_factory.mktemp("table") / "offsets"
    table = OffsetTable(path)
    history: dict[int, list[int]] = {}
    for partition, offset in writes:
        table.write(UUID, partition, offset, 1, 1)
        history.setdefault(partition, []).append(offset)
    last = {p: h[-1] for p, h in history.items()}
    assert {key[1]: position.offset for key, position in table.read_all().items()} == last

    random = Random(seed)
    victim = random.choice(list(history))
    slot = list(history).index(victim)
    newest = len(history[victim]) & 1
    content = bytearray(path.read_bytes())
    for byte in random.sample(range(COPY), 3):
        content[slot * SLOT + newest * COPY + byte] ^= 0xFF
    path.write_bytes(content)

    expected = {p: h[-1] for p, h in history.items() if p != victim}
    expected |= dict.fromkeys([victim] if len(history[victim]) > 1 else [], history[victim][-2:][0])
    for reader in (table, OffsetTable(path)):
        assert {key[1]: position.offset for key, position in reader.read_all().items()} == expected
        reader.write(UUID, victim, 7, 1, 1)
        assert {key[1]: position.offset for key, position in reader.read_all().items()} == expected | {victim: 7}
        position = reader.read(UUID, victim)
        assert position is not None
        assert position.offset == 7
        reader.close()
        path.write_bytes(content)


def test_two_handles_see_each_others_positions_at_once(tmp_path: Path) -> None:
    table, other = OffsetTable(tmp_path / "offsets"), OffsetTable(tmp_path / "offsets")
    for number in range(100):
        (table, other)[number % 2].write(UUID, number % 7, number, 1, 1)
        position = (other, table)[number % 2].read(UUID, number % 7)
        assert position is not None
        assert position.offset == number
    assert (tmp_path / "offsets").stat().st_size == 7 * SLOT
    table.close()
    other.close()


def test_a_freed_slot_is_used_again_and_those_who_remember_it_are_not_misled(tmp_path: Path) -> None:
    table, other = OffsetTable(tmp_path / "offsets"), OffsetTable(tmp_path / "offsets")
    for number in range(5):
        table.write(UUID, number, 10 + number, 1, 1)
    assert other.read_all().keys() == {(UUID, number) for number in range(5)}
    for number in (1, 3, 3, 99):
        table.free(UUID, number)
    table.write(bytes(16), 0, 77, 1, 1)
    assert other.read(UUID, 1) is None
    assert other.read(UUID, 3) is None
    assert [other.read(UUID, number) for number in (0, 2, 4)] == [table.read(UUID, number) for number in (0, 2, 4)]
    for handle in (table, other):
        position = handle.read(bytes(16), 0)
        assert position is not None
        assert (position.offset, position.sequence) == (77, 1)
    other.write(UUID, 1, 5, 1, 1)
    other.write(UUID, 9, 6, 1, 1)
    assert (tmp_path / "offsets").stat().st_size == 6 * SLOT
    assert {key: position.offset for key, position in table.read_all().items()} == {
        **{(UUID, number): offset for number, offset in ((0, 10), (2, 12), (4, 14), (1, 5), (9, 6))},
        (bytes(16), 0): 77,
    }
    table.close()
    other.close()


def test_zeros_that_begin_in_another_slot_make_no_free_one_of_it(tmp_path: Path) -> None:
    table = OffsetTable(tmp_path / "offsets")
    for number in range(3):
        for offset in (1, 2):
            table.write(UUID, number, offset, 1, 1)
    table.free(UUID, 1)
    with (tmp_path / "offsets").open("r+b") as file:
        file.seek(COPY)
        file.write(bytes(COPY))  # a lost page took the older copy of the first
    table.write(UUID, 3, 7, 1, 1)
    assert {key[1]: position.offset for key, position in table.read_all().items()} == {0: 2, 2: 2, 3: 7}
    table.close()


@pytest.mark.parametrize("size", [1, COPY - 1, COPY, SLOT - 1])
def test_a_table_that_ends_in_the_middle_of_a_slot_goes_on_behind_it(tmp_path: Path, size: int) -> None:
    (tmp_path / "offsets").write_bytes(b"\xff" * size)
    table = OffsetTable(tmp_path / "offsets")
    table.write(UUID, 0, 7, 1, 1)
    position = OffsetTable(tmp_path / "offsets").read(UUID, 0)
    assert position is not None
    assert position.offset == 7
    assert (tmp_path / "offsets").stat().st_size == 2 * SLOT
    table.close()


def test_thousands_of_partitions_are_found_among_each_other(tmp_path: Path) -> None:
    table = OffsetTable(tmp_path / "offsets")
    topics = [bytes([number]) * 16 for number in range(4)]
    keys = [(topic, number) for number in range(500) for topic in topics]
    for count, key in enumerate(keys):
        table.write(*key, count, 1, 1)
    other = OffsetTable(tmp_path / "offsets")
    for count, key in enumerate(keys):
        position = other.read(*key)
        assert position is not None
        assert position.offset == count
    assert other.read(topics[0], 500) is None
    table.close()
    other.close()
