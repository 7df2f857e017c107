"""Frames give back what was put in them: any records, any schema, any compression."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import RAW, FrameDamaged, InvalidRecord, Record, Schema, SchemaError, UntrustedFrame
from headwater.core.config import Compression
from headwater.core.record import NO_HEADERS
from headwater.log import Frame, Identity, admit, encode, encode_batch
from headwater.log.format.frame import HEADER_BYTES, identity_of
from headwater.log.format.plain import FEW, plain_content
from headwater.log.format.verify import verify_body, verify_frame, verify_stamp
from tests.support import strategies
from tests.support.strategies import Columns, stored

BASE = 1000


def expected_records(columns: Columns, base: int) -> list[Record]:
    keys = columns.keys or [None] * len(columns.values)
    headers = columns.headers or [None] * len(columns.values)
    return [
        Record(base + number, timestamp, key, value, dict(mapping) if mapping else NO_HEADERS)
        for number, (timestamp, key, value, mapping) in enumerate(
            zip(columns.timestamps, keys, columns.values, headers, strict=True)
        )
    ]


@given(strategies.columns(), strategies.compressions)
def test_raw_records_round_trip(columns: Columns, compression: Compression) -> None:
    frame = stored(columns.encode(compression), BASE)
    assert frame.records() == expected_records(columns, BASE)


@given(strategies.columns(), st.integers(0, 15), st.integers(0, 15))
def test_a_range_of_records_is_what_the_offsets_say(columns: Columns, start: int, end: int) -> None:
    frame = stored(columns.encode(), BASE)
    wanted = [
        record for record in expected_records(columns, BASE) if BASE + start <= record.offset < BASE + end
    ]  # fmt: skip
    assert frame.records(BASE + start, BASE + end) == wanted


@given(strategies.columns(), strategies.compressions)
def test_the_header_describes_the_records(columns: Columns, compression: Compression) -> None:
    header = stored(columns.encode(compression), BASE).header
    assert (header.base_offset, header.next_offset) == (BASE, BASE + len(columns.values))
    assert header.record_count == len(columns.values)
    assert (header.min_timestamp, header.max_timestamp) == (min(columns.timestamps), max(columns.timestamps))


@given(st.data(), strategies.compressions)
def test_any_schema_round_trips(data: st.DataObject, compression: Compression) -> None:
    schema = data.draw(strategies.schemas())
    batch = data.draw(strategies.batches(schema))
    frame = stored(encode_batch(batch, schema, compression=compression, threshold=0))
    assert frame.batch().select(schema.payload.names).equals(batch)


@given(st.data(), strategies.compressions)
def test_what_encode_makes_is_admitted(data: st.DataObject, compression: Compression) -> None:
    if data.draw(st.booleans()):
        frame = data.draw(strategies.columns()).encode(compression)
    else:
        schema = data.draw(strategies.schemas())
        batch = data.draw(strategies.batches(schema))
        frame = encode_batch(batch, schema, timestamps=5, compression=compression, threshold=0)
    kept = stored(frame)
    assert admit(kept.data, frame.schema).batch().equals(kept.batch())


@pytest.mark.parametrize("keys", [None, [b"k", b"", b"key"]])
def test_what_is_proved_without_arrow_is_what_arrow_finds_sound(keys: list[bytes] | None) -> None:
    message = encode([b"value", b"", b"another"], keys=keys, timestamps=[3, 1, 2]).message.to_pybytes()
    columns = 1 if keys is None else 2
    schema = RAW.frame(offsets=False, keys=keys is not None, headers=False)
    content = plain_content(memoryview(message), 3, columns)
    assert content == ((3, 1, 2), [7] if keys is None else [3, 7])
    taken = 0
    for position in range(len(message)):
        for bits in (1, 0x80, 0xFF):
            mutant = bytearray(message)
            mutant[position] ^= bits
            proved = plain_content(memoryview(mutant), 3, columns)
            if proved is not None:
                taken += 1
                batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(mutant)), schema)
                batch.validate(full=True)
                assert proved.times == tuple(batch.column(0).view(pa.int64()).to_pylist())
                lengths = [max(map(len, column.to_pylist())) for column in batch.columns[1:]]
                assert proved.longest == lengths
    assert taken > 3 * 24, "timestamps and values may be any"
    for other in (2, 4, 49):
        assert plain_content(memoryview(message), other, columns) is None
    for size in range(0, len(message), 8):
        assert plain_content(memoryview(message)[:size], 3, columns) is None


@given(strategies.schemas())
def test_a_schema_survives_its_file(schema: Schema) -> None:
    again = Schema.deserialize(schema.serialize())
    assert again == schema
    assert again.id == schema.id


@given(strategies.schemas(), strategies.schemas())
def test_only_equal_schemas_share_an_id(schema: Schema, other: Schema) -> None:
    assert (schema.id == other.id) == (schema == other)


def test_a_name_that_looks_like_a_type_makes_another_schema() -> None:
    pair = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    lookalike = pa.struct([("a: int32, b", pa.int32())])
    assert str(pair) == str(lookalike)
    assert Schema(pa.schema([("x", pair)])).id != Schema(pa.schema([("x", lookalike)])).id


@given(strategies.columns(), strategies.producer_ids, st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 40))
def test_an_identity_round_trips(columns: Columns, producer: bytes, epoch: int, sequence: int) -> None:
    for forever in (False, True):
        identity = Identity(producer, epoch, sequence, forever)
        kept = stored(columns.encode(identity=identity))
        assert identity_of(kept.header) == identity
        assert kept.unstamped().identity == identity


@given(strategies.columns(), strategies.compressions, st.integers(0, 1 << 40))
def test_a_frame_can_move_to_another_place_without_being_encoded_again(
    columns: Columns, compression: Compression, base: int
) -> None:
    moved = stored(stored(columns.encode(compression), BASE).unstamped(), base, seed=99)
    assert moved.records() == expected_records(columns, base)


def assert_not_sound(view: memoryview) -> None:
    """The verifier says no, at once as well as in two steps, and for the same reason."""
    with pytest.raises(FrameDamaged) as in_steps:
        verify_body(view, 0, verify_stamp(view, 0, 7))
    with pytest.raises(FrameDamaged) as at_once:
        verify_frame(view, 0, len(view), 7)
    assert at_once.value.reason == in_steps.value.reason


@given(st.data(), strategies.columns(), strategies.compressions)
def test_no_bit_can_change_unseen(data: st.DataObject, columns: Columns, compression: Compression) -> None:
    kept = stored(columns.encode(compression))
    content = bytearray(kept.data.to_pybytes())
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    assert_not_sound(memoryview(content))


@given(st.data(), strategies.columns())
def test_no_byte_can_be_missing_unseen(data: st.DataObject, columns: Columns) -> None:
    content = stored(columns.encode()).data.to_pybytes()
    cut = memoryview(content)[: data.draw(st.integers(0, len(content) - 1))]
    assert_not_sound(cut)


def test_a_frame_of_another_partition_is_not_taken_for_ones_own() -> None:
    content = stored(encode([b"x"]), seed=1).data.to_pybytes()
    with pytest.raises(FrameDamaged, match="stamp"):
        verify_stamp(memoryview(content), 0, 2)
    with pytest.raises(FrameDamaged, match="stamp"):
        verify_frame(memoryview(content), 0, len(content), 2)


@pytest.mark.parametrize("count", [1, 5, FEW, FEW + 1, 1000])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("digits", [1, 4])
def test_plain_records_become_the_very_bytes_that_arrow_makes(count: int, keyed: bool, digits: int) -> None:
    """Of different lengths with 1 digit or more, and of one length with 4."""
    values = [b"value %0*d" % (digits, number) for number in range(count)]
    keys = [b"key %0*d" % (digits, number) for number in range(count)] if keyed else None
    times = [(number * 7919) % 1000 - 500 for number in range(count)]
    plain = encode(values, keys=keys, timestamps=times)
    by_arrow = encode(pa.array(values), keys=keys, timestamps=times)
    assert stored(plain).data.to_pybytes() == stored(by_arrow).data.to_pybytes()


@pytest.mark.parametrize("size", [0, 1, 8, 100])
@pytest.mark.parametrize(
    "odd", [None, b"", b"x", b"longer" * 50, "text" * 25, bytearray(100), memoryview(bytes(400)).cast("i"), [0] * 100]
)
@pytest.mark.parametrize("index", [0, 1, -1])
def test_one_record_that_is_not_like_the_others_is_stored_or_refused_as_arrow_does(
    size: int, odd: Any, index: int
) -> None:
    values: list[Any] = [bytes([number % 251]) * size for number in range(1000)]
    values[index] = odd
    try:
        expected = pa.array(values, pa.binary())
    except pa.ArrowException:
        with pytest.raises(InvalidRecord):
            encode(values)
    else:
        assert stored(encode(values, timestamps=0)).batch().column("value").equals(expected)


def test_lengths_that_differ_and_make_up_for_it_are_kept() -> None:
    values = [b"same"] * 1000
    values[1:3] = [b"les", b"more."]
    assert [record.value for record in stored(encode(values)).records()] == values


def test_not_a_number_is_kept() -> None:
    schema = Schema(pa.schema([("x", pa.float64())]))
    frame = stored(encode_batch(pa.record_batch({"x": [math.nan]}), schema))
    assert math.isnan(frame.records()[0].value["x"])


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())])
def test_dictionaries_are_decoded(kind: pa.DataType) -> None:
    words = ["red", "green", "red", None]
    encoded = pa.array(words).dictionary_encode()
    column: pa.Array = encoded
    expected: list[object] = list(words)
    if pa.types.is_list(kind):
        column = pa.ListArray.from_arrays([0, 2, 4], encoded)
        expected = [words[:2], words[2:]]
    batch = pa.RecordBatch.from_arrays([column], names=["colour"])
    schema = Schema(batch.schema)
    assert schema.payload.field("colour").type == kind
    kept = stored(encode_batch(batch, schema))
    assert kept.batch().column("colour").to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_stored_as_what_they_show(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "longer than twelve bytes"], kind)], names=["x"])
    schema = Schema(batch.schema)
    assert schema.payload.field("x").type in (pa.string(), pa.binary())
    kept = stored(encode_batch(batch, schema))
    assert kept.batch().column("x").cast(kind).equals(batch.column("x"))


@pytest.mark.parametrize(
    "kind",
    [
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.list_(pa.sparse_union([pa.field("a", pa.int8())])),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.uuid(),
        pa.struct([("a", pa.json_())]),
    ],
    ids=str,
)
def test_types_that_cannot_be_stored_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'x'"):
        Schema(pa.schema([("x", kind)]))


@pytest.mark.parametrize("names", [[], [""], ["a", "a"], ["_offset"], ["_timestamp"], ["_key"], ["_headers"]])
def test_column_names_that_cannot_be_used_are_refused(names: list[str]) -> None:
    with pytest.raises(SchemaError):
        Schema(pa.schema([pa.field(name, pa.int8()) for name in names]))


def test_metadata_makes_no_other_schema() -> None:
    plain = pa.schema([("x", pa.int8())])
    noted = pa.schema([pa.field("x", pa.int8(), metadata={"unit": "m"})], metadata={"by": "me"})
    assert Schema(plain) == Schema(noted)
    assert Schema(plain).id == Schema(noted).id


def test_a_null_that_the_schema_forbids_is_refused() -> None:
    schema = Schema(pa.schema([pa.field("x", pa.int8(), nullable=False)]))
    with pytest.raises(InvalidRecord, match="'x' must not be null"):
        encode_batch(pa.record_batch({"x": pa.array([None], pa.int8())}), schema)


def test_a_small_frame_is_not_compressed() -> None:
    assert stored(encode([b"x" * 10], compression="zstd")).compression == "none"
    assert stored(encode([b"x" * 10_000], compression="zstd")).compression == "zstd"


def test_compression_makes_a_frame_smaller() -> None:
    plain = encode([b"x" * 10_000])
    for codec in ("zstd", "lz4"):
        assert encode([b"x" * 10_000], compression=codec).length < plain.length / 10


@given(strategies.columns())
def test_frames_are_aligned(columns: Columns) -> None:
    frame: Frame = columns.encode()
    assert frame.length % 8 == 0
    assert frame.length == HEADER_BYTES + frame.message.size


@given(strategies.columns(), st.sets(st.integers(0, 40), min_size=12, max_size=12), strategies.compressions)
def test_frames_with_their_own_offsets_are_admitted_only_where_that_is_allowed(
    columns: Columns, numbers: set[int], compression: Compression
) -> None:
    offsets = sorted(numbers)[: len(columns.values)]
    batch = pa.record_batch([pa.array(columns.values, pa.binary())], names=["value"])
    frame = encode_batch(batch, RAW, offsets=pa.array(offsets), compression=compression, threshold=0)
    kept = stored(frame, offsets[0])
    assert [record.offset for record in admit(kept.data, RAW, explicit_offsets=True).records()] == offsets
    with pytest.raises(UntrustedFrame):
        admit(kept.data, RAW)
