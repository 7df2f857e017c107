"""The filter language: what it chooses, what it refuses, and that batches, single records and SQL agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.core.errors import InvalidFilter
from headwater.core.filter import Filter
from headwater.core.record import NO_HEADERS, Record
from headwater.core.schema import RAW, Schema

TYPED = Schema(
    pa.schema(
        [
            ("price", pa.float64()),
            ("n", pa.int32()),
            ("symbol", pa.string()),
            ("key", pa.binary()),
            ("at", pa.timestamp("ns", "UTC")),
            ("address", pa.struct([("city", pa.string()), ("since", pa.timestamp("s"))])),
            ("paid", pa.bool_()),
            ("day", pa.date32()),
            ("total", pa.decimal128(10, 2)),
            ("or", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("a.b", pa.int64()),
            ("note", pa.string()),
        ]
    )
)
ROWS: list[dict[str, Any]] = [
    {"price": 1.5, "n": 1, "symbol": "HW", "key": b"a", "at": 0, "address": {"city": "Oslo", "since": None}}
    | {"paid": True, "day": 1, "total": Decimal("1.00"), "or": "1", "tags": ["a"], "a.b": 1, "note": '{"x": 1}'},
    {"price": 20.0, "n": 2, "symbol": "wh", "key": b"b\xff", "at": 10**18, "address": {"city": "Rome", "since": 9}}
    | {"paid": False, "day": 2, "total": Decimal("2.00"), "or": "2", "tags": [], "a.b": 2, "note": "no JSON"},
    {"price": None, "n": 3, "symbol": "x", "key": None, "at": 2 * 10**18, "address": None}
    | {"paid": None, "day": 3, "total": Decimal("3.00"), "or": "3", "tags": None, "a.b": None, "note": None},
]


def batch_of(schema: Schema, rows: list[dict[str, Any]], records: list[Record]) -> pa.RecordBatch:
    """A batch as readers get it: the columns of Headwater, then those of the payload."""
    columns = [
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.timestamp for record in records], pa.timestamp("ns", "UTC")),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([list(record.headers.items()) or None for record in records], pa.map_(pa.string(), pa.binary())),
    ]
    payload = [pa.array([row[field.name] for row in rows], field.type) for field in schema.payload]
    return pa.RecordBatch.from_arrays([*columns, *payload], schema=schema.full)


def python_value(value: Any, kind: Any) -> Any:
    """A value as a record holds it: times that Python has as its own, others as numbers."""
    if isinstance(value, dict):
        return {name: python_value(inner, kind.field(name).type) for name, inner in value.items()}
    counted = pa.types.is_temporal(kind) and getattr(kind, "unit", None) == "ns"
    return value if value is None or counted else pa.scalar(value, kind).as_py()


def typed_record(offset: int, row: dict[str, Any], headers: dict[str, bytes] | None = None) -> Record:
    value = {name: python_value(inner, TYPED.payload.field(name).type) for name, inner in row.items()}
    none = all(inner is None for inner in row.values())
    return Record(offset, offset * 10**9, b"k%d" % offset, None if none else value, headers or NO_HEADERS)


def chosen(text: str, schema: Schema, batch: pa.RecordBatch, records: list[Record], partition: int = 0) -> list[int]:
    """The offsets that a filter chooses: the same from the batch and from each record."""
    bound = Filter.parse(text).bind(schema)
    mask = bound.matches(batch.select([name for name in batch.schema.names if name in bound.columns] or [0]), partition)
    assert mask.null_count == 0
    by_batch = [record.offset for record, holds in zip(records, mask.to_pylist(), strict=True) if holds]
    by_record = [record.offset for record in records if bound.matches_record(record, partition)]
    assert by_batch == by_record, text
    return by_batch


RECORDS = [typed_record(number, row) for number, row in enumerate(ROWS, 1)]
BATCH = batch_of(TYPED, ROWS, RECORDS)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("price > 10", [2]),
        ("price > n", [1, 2]),
        ("10 < price", [2]),
        ("n = 1", [1]),
        ("n == 1 or n = 3", [1, 3]),
        ("n != 1 and n <= 2", [2]),
        ("n <> 1", [2, 3]),
        ("n = 1.5", []),
        ("n != 1.5", [1, 2, 3]),
        ("n < 1.5", [1]),
        ("n >= 1.5", [2, 3]),
        ("n in (1, 3)", [1, 3]),
        ("n not in (1, 3)", [2]),
        ("n in (1.5, 2)", [2]),
        ("n in (1e400, 3)", [3]),
        ("n in (1, 9999999999)", [1]),
        ("n = 99999999999999999999", []),
        ("n < 99999999999999999999", [1, 2, 3]),
        ("n > -1e400", [1, 2, 3]),
        ("n between 2 and 3", [2, 3]),
        ("n not between 2 and 3", [1]),
        ("n between 2 and 3 and symbol = 'x'", [3]),
        ("total in (1, 2.5)", [1]),
        ("total between 1.005 and 2.995", [2]),
        ("n > 1 and not symbol in ('x', 'y')", [2]),
        ("price not in (1.5)", [2]),
        ("NOT n > 1", [1]),
        ("not not n > 1", [2, 3]),
        ("not price > 10", [1]),
        ("n = 1 or n = 2 and price > 100", [1]),
        ("(n = 1 or n = 2) and price > 10", [2]),
        ("address.city contains 'sl'", [1]),
        ("address['city'] = 'Rome'", [2]),
        ("address.since = '1970-01-01T00:00:09'", [2]),
        ("address.since < '1970-01-01T00:00:09.5'", [2]),
        ("address is null", [3]),
        ("price is not null", [1, 2]),
        ("key = 'a'", [1]),
        ("key starts with 'b'", [2]),
        ("symbol ends with 'W'", [1]),
        ("symbol matches '^[A-Z]+$'", [1]),
        ("symbol ~ '^[A-Z]+$'", [1]),
        ("symbol !~ '^[A-Z]+$'", [2, 3]),
        ("symbol like 'H%'", [1]),
        ("symbol like '_'", [3]),
        ("symbol not like '_'", [1, 2]),
        ("symbol like '%w%'", [2]),
        ("symbol ilike '%W%'", [1, 2]),
        ("symbol like 'x'", [3]),
        ("lower(symbol) = 'hw'", [1]),
        ("length(symbol) = 1", [3]),
        ("length(key) > 1", [2]),
        ("at > '2001-01-01T00:00:00Z'", [2, 3]),
        ("at < '-1h'", [1, 2]),
        ("at >= 1000000000000000000", [2, 3]),
        ("paid", [1]),
        ("not paid", [2]),
        ("paid = false", [2]),
        ("day = '1970-01-03'", [2]),
        ("total > 1.5", [2, 3]),
        ("total = 2", [2]),
        ("total = 2.001", []),
        ("total > n", []),
        ("total = n", [1, 2, 3]),
        ("n > -1", [1, 2, 3]),
        ("n < 9999999999", [1, 2, 3]),
        ("`or` = '2'", [2]),
        ("\"or\" = '2'", [2]),
        ("symbol = 'it''s'", []),
        ("a.b = 2", [2]),
        ('"a.b" = 2', [2]),
        ("note.x = 1", [1]),
        ("value.n = 2", [2]),
        ("value.address.city = 'Oslo'", [1]),
        ("value is not null", [1, 2, 3]),
        ("_key = 'k2'", [2]),
        ("offset = 2", [2]),
        ("_offset = 2", [2]),
        ("timestamp >= '1970-01-01T00:00:02Z'", [2, 3]),
        ("partition = 0 and _partition < 1", [1, 2, 3]),
        ("header('kind') is null and headers is null", [1, 2, 3]),
    ],
)
def test_it_chooses_typed_records(text: str, offsets: list[int]) -> None:
    assert chosen(text, TYPED, BATCH, RECORDS) == offsets


VALUES = [
    b'{"n": 8, "who": {"id": "c4"}, "ok": true, "name": "\xc3\x89a"}',
    b'{"n": 9.5, "who": {"id": 4}, "ok": false, "tags": ["a", "b"], "at": null}',
    b'{"n": "8", "who": null, "big": 18446744073709551617}',
    b"no JSON",
    b"\xff\xfe",
    None,
]
RAW_RECORDS = [
    Record(number, number * 10**9, None if number == 3 else b"k%d" % (number % 2), value, headers)
    for number, (value, headers) in enumerate(
        zip(VALUES, [{"trace": b"5"}, {"trace": b"x", "k.i": b"1"}, *[NO_HEADERS] * 4], strict=True)
    )
]
RAW_BATCH = batch_of(RAW, [{"value": value} for value in VALUES], RAW_RECORDS)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("key = 'k0'", [0, 2, 4]),
        ("key <> 'k0'", [1, 5]),
        ("key is null", [3]),
        ("value is null", [5]),
        ("value like '%no%'", [3]),
        ("value ~ 'c[1-4]'", [0]),
        ("length(value) = 2", [4]),
        ("value.n >= 8", [0, 1]),
        ("value.n = '8'", [2]),
        ("value.n in (8, '8')", [0, 2]),
        ("not value.n = 8", [1]),
        ("value.n is null", [3, 4, 5]),
        ("value.at is null and value.n > 9", [1]),
        ("value.n between 8 and 9", [0]),
        ("value.big = 18446744073709551617", [2]),
        ("value.big = 18446744073709551616", []),
        ("value.who.id = 'c4'", [0]),
        ("value['who']['id'] = 4", [1]),
        ("value.who.id ~ '4'", [0, 1]),
        ("value.who = 'c4'", []),
        ("value.who is not null", [0, 1]),
        ("value.tags like '%\"b\"%'", [1]),
        ("value.ok", [0]),
        ("not value.ok", [1]),
        ("value.ok = true", [0]),
        ("value.n = value.n", [0, 1, 2]),
        ("value.n < offset", []),
        ("value.n > offset", [0, 1]),
        ("lower(value.name) = 'éa'", [0]),
        ("length(value.name) = 2", [0]),
        ("length(value.name) is null", [1, 2, 3, 4, 5]),
        ("header('trace') = '5'", [0]),
        ("headers.trace = '5'", [0]),
        ("headers['trace'] = '5'", [0]),
        ("headers.k.i = '1'", [1]),
        ("length(header('trace')) = 1", [0, 1]),
        ("headers is not null", [0, 1]),
        ("partition = 7 and offset < 2", [0, 1]),
        ("partition in (0, 1)", []),
        ("timestamp < '1970-01-01T00:00:01.000000001Z'", [0, 1]),
        ("timestamp between '1970-01-01T00:00:01Z' and '1970-01-01T00:00:02+00:00'", [1, 2]),
    ],
)
def test_it_chooses_raw_records(text: str, offsets: list[int]) -> None:
    assert chosen(text, RAW, RAW_BATCH, RAW_RECORDS, partition=7) == offsets


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a column is expected, not the end, at character 1"),
        ("nothing = 1", "there is no column 'nothing'; there are _partition, _offset, "),
        ("price", "a comparison is expected after price, which is double, at character 1"),
        ("price >", "a column is expected, not the end, at character 8"),
        (
            "price > 1 price",
            "'and', 'or' or the end is expected, not 'price'; text and times are written in single quotes",
        ),
        (
            "symbol = cust-7",
            "'and', 'or' or the end is expected, not '-7'; text and times are written in single quotes",
        ),
        ("symbol = HW", "for a text, write 'HW', at character 10"),
        ('symbol = "HW"', "for a text, write 'HW', at character 10"),
        ("at > 2026-01-31T12:00Z", "text and times are written in single quotes"),
        ("1 = 1", "a comparison needs a column, at character 1"),
        ("'a' like 'b'", "a comparison is expected, not 'like', at character 5"),
        ("(n = 1", "')' is expected, not the end, at character 7"),
        ("n not 1", "'in', 'like' or 'between' is expected, not '1', at character 7"),
        ("n between 1 or 2", "'and' is expected, not 'or', at character 13"),
        ("n = 'x'", "n is int32, and 'x' is not, at character 5"),
        ("n in (1, 'x')", "n is int32, and 'x' is not, at character 10"),
        ("symbol > 3", "symbol is string, and 3 is not"),
        ("paid = 1", "paid is bool, and 1 is not"),
        ("n = true", "n is int32, and True is not"),
        ("price < 1e400", "price is double, and 1"),
        ("symbol matches '('", "'(' is no regular expression"),
        ("symbol contains 3", "the text to search for must be in single quotes, at character 17"),
        ("n contains '3'", "n has no text to search: it is int32"),
        ("symbol = null", "nothing equals null: use 'is null' or 'is not null', at character 10"),
        ("tags = 'a'", "which cannot be compared"),
        ("value = 'a'", "which cannot be compared"),
        ("address.street = 'x'", "address has no part 'street'"),
        ("n.x = 1", "n has no part 'x': it is int32"),
        ("at > 'yesterday'", "at is timestamp[ns, tz=UTC], and 'yesterday' is not: 'yesterday' is no time"),
        ("day = 3", "day is date32[day], and 3 is not"),
        ("day = 'x'", "day is date32[day], and 'x' is not"),
        ("n = 1; drop table x", "'; drop table x' is not understood, at character 6"),
        ("symbol = 'x", "the quote ' is never closed, at character 10"),
        ("symbol = key", "key is binary and symbol is string"),
        ("at = note.x", "at is timestamp[ns, tz=UTC], which no value in JSON can be"),
        ("lower(n) = 'x'", "lower is for text, and n is int32"),
        ("lower(3) = 'x'", "lower needs a column, at character 7"),
        ("header(n) = 'x'", "a number or a text in single quotes is expected, not 'n'"),
        ("header(3) = 'x'", "the name of a header must be in single quotes"),
        ("read_csv('/etc/passwd') = 1", "there is no function 'read_csv'; there are header, length and lower"),
        ("headers[3] = 'x'", "a name in single quotes is expected, not '3'"),
        ("n = 1e9999", "'1e9999' is not understood"),
        ("symbol = '\ud800'", "contains half of a character"),
        ("(" * 50 + "n = 1" + ")" * 50, "nested at most 40 deep"),
        ("n = 1 or " * 1000 + "n = 1", "at most 2000 characters"),
    ],
)
def test_what_means_nothing_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        Filter.parse(text).bind(TYPED)
    assert says in str(caught.value)


_PIECES = [
    *TYPED.payload.names,
    "and",
    "or",
    "not",
    "in",
    "is",
    "null",
    "(",
    ")",
    ",",
    ".",
    "=",
    "<",
    "contains",
    "'a'",
]
_MORE = ["1", "-2.5", "lower", "like", "between", "header", "value", "offset", "[", "]", '"n"', "~"]


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(_PIECES + _MORE)).map(" ".join)))
def test_whatever_is_typed_is_a_filter_or_told_to_be_none(text: str) -> None:
    try:
        Filter.parse(text).bind(TYPED)
    except InvalidFilter:
        return
    chosen(text, TYPED, BATCH, RECORDS)


def test_it_names_the_columns_that_it_reads() -> None:
    bound = Filter.parse("price > 1 and header('x') = 'y' and partition = 0 and value.n = 1").bind(TYPED)
    assert bound.columns == {"price", "_headers", "n"}
    assert Filter.parse("value is null").bind(TYPED).columns == set(TYPED.payload.names)


# Batches, records and DuckDB agree, whatever the values and the filter.

_TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)),
    "u64": (pa.uint64(), st.integers(0, (1 << 64) - 1) | st.integers(0, 3)),
    "f32": (pa.float32(), st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, 1.5])),
    "f64": (pa.float64(), st.floats(allow_nan=False) | st.integers(-3, 3).map(float)),
    "s": (pa.string(), st.text("abA%_é\n\\", max_size=4)),
    "ls": (pa.large_string(), st.text("abA%_é\n\\", max_size=4)),
    "b": (pa.binary(), st.text("abA%_\n\\", max_size=4).map(str.encode)),
    "t": (pa.timestamp("us", "UTC"), st.integers(0, 10**9)),
    "tn": (pa.timestamp("ns"), st.integers(0, 10**12)),
    "d": (pa.date32(), st.integers(-5, 5)),
    "x": (pa.bool_(), st.booleans()),
    "dec": (pa.decimal128(9, 2), st.decimals(-100, 100, places=2)),
}
_COLUMNS = Schema(pa.schema([(name, kind) for name, (kind, _) in _TYPES.items()]))
_NUMBERS = ["i8", "i64", "u64", "f32", "f64", "dec"]
_TEXTS = ["s", "ls", "b"]
_LITERALS: dict[str, st.SearchStrategy[str]] = {
    "number": st.one_of(
        st.integers(-130, 130).map(str),
        st.integers(-(1 << 65), 1 << 65).map(str),
        st.sampled_from(["0.5", "1.5", "-2.25", "0.001", "127.5", "9223372036854775806.5"]),
    ),
    "text": st.text("abA%_é\n\\", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'"),
    "time": st.integers(0, 10**6).map(lambda count: f"'{datetime.fromtimestamp(count / 1000, UTC).isoformat()}'"),
    "date": st.integers(1, 9).map(lambda day: f"'1970-01-0{day}'"),
    "boolean": st.sampled_from(["true", "false"]),
}
_LITERAL_OF = (
    dict.fromkeys(_NUMBERS, "number")
    | dict.fromkeys(_TEXTS, "text")
    | {"t": "time", "tn": "time", "d": "date", "x": "boolean"}
)


@st.composite
def comparisons(draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    name = draw(st.sampled_from(list(_TYPES)))
    literal = _LITERALS[_LITERAL_OF[name]]
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    ways = ["compare", "reverse", "in", "between", "null"]
    ways += ["columns"] if name in _NUMBERS else []
    ways += ["like", "like", "texts", "length"] if name in _TEXTS else []
    ways += ["truth"] if name == "x" else []
    negated = draw(st.sampled_from(["", "not "]))
    match draw(st.sampled_from(ways)):
        case "compare":
            return f"{name} {sign} {draw(literal)}"
        case "reverse":
            return f"{draw(literal)} {sign} {name}"
        case "in":
            return f"{name} {negated}in ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})"
        case "between":
            return f"{name} {negated}between {draw(literal)} and {draw(literal)}"
        case "like":
            return f"{name} {negated}like {draw(_LITERALS['text'])}"
        case "texts":
            return f"{name} {sign} {'b' if name == 'b' else draw(st.sampled_from(['s', 'ls']))}"
        case "length":
            return f"length({name}) {sign} {draw(st.integers(0, 4))}"
        case "columns":
            return f"{name} {sign} {draw(st.sampled_from(_NUMBERS))}"
        case "truth":
            return str(name)
        case _:
            return f"{name} is {negated}null"


filters = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map(lambda parts: f"({''.join(parts)})"),
    ),
    max_leaves=4,
)
tables = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in _TYPES.items()}), max_size=5)


def of_columns(rows: list[dict[str, Any]]) -> tuple[pa.RecordBatch, list[Record]]:
    records = []
    for number, row in enumerate(rows):
        value = {name: python_value(inner, _COLUMNS.payload.field(name).type) for name, inner in row.items()}
        none = all(inner is None for inner in row.values())
        records.append(Record(number, number, None, None if none else value))
    return batch_of(_COLUMNS, rows, records), records


@given(tables, filters)
def test_a_batch_and_its_records_agree(rows: list[dict[str, Any]], text: str) -> None:
    batch, records = of_columns(rows)
    chosen(text, _COLUMNS, batch, records)


@given(tables, filters)
def test_the_same_text_means_the_same_in_sql(rows: list[dict[str, Any]], text: str) -> None:
    batch, records = of_columns(rows)
    table = pa.Table.from_batches([batch])
    with duckdb.connect(":memory:", config={"python_enable_replacements": "false"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table)
        # hw sql shows bytes as text too.
        view = "SELECT * REPLACE (TRY(decode(b)) AS b) FROM rows"
        try:
            answer = connection.sql(f"SELECT _offset FROM ({view}) WHERE {text} ORDER BY _offset").fetchall()
        except duckdb.Error:  # numbers that its types do not hold
            assume(False)
            raise
    assert chosen(text, _COLUMNS, batch, records) == [offset for (offset,) in answer]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab7", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=4), _JSON.map(lambda value: json.dumps(value).encode()))),
    st.sampled_from(["value.a", "value.a.b", "lower(value.a)", "length(value.a)"]),
    st.sampled_from(["= 7", "<> 'a'", "< 0.5", "in (1, 'b', true)", "like '%7%'", "is null", "> value.b", "= offset"]),
)
def test_a_batch_and_its_records_agree_on_json(values: list[bytes | None], operand: str, predicate: str) -> None:
    records = [Record(number, number, None, value) for number, value in enumerate(values)]
    batch = batch_of(RAW, [{"value": value} for value in values], records)
    chosen(f"{operand} {predicate}", RAW, batch, records)
    chosen(f"not ({operand} {predicate})", RAW, batch, records)
