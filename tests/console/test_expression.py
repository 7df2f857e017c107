"""The language in which records are chosen by their columns."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.console.expression import InvalidExpression, parse

TABLE = pa.table(
    {
        "price": pa.array([1.5, 20.0, None]),
        "n": pa.array([1, 2, 3], pa.int32()),
        "symbol": ["HW", "wh", "x"],
        "key": pa.array([b"a", b"b\xff", None]),
        "at": pa.array([0, 10**18, 2 * 10**18], pa.timestamp("ns", "UTC")),
        "address": pa.array([{"city": "Oslo"}, {"city": "Rome"}, None]),
        "paid": [True, False, None],
        "day": pa.array([1, 2, 3], pa.date32()),
        "total": pa.array([Decimal("1.00"), Decimal("2.00"), Decimal("3.00")], pa.decimal128(10, 2)),
        "or": ["1", "2", "3"],
        "tags": pa.array([["a"], [], None]),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("price > 10", [2]),
        ("price > n", [1, 2]),
        ("10 < price", [2]),
        ("n = 1", [1]),
        ("n == 1 or n = 3", [1, 3]),
        ("n != 1 and n <= 2", [2]),
        ("n = 1.5", []),
        ("n in (1, 3)", [1, 3]),
        ("n in (1.5, 2)", [2]),
        ("n in (1e400, 3)", [3]),
        ("total in (1, 2.5)", [1]),
        ("n > 1 and not symbol in ('x', 'y')", [2]),
        ("NOT n > 1", [1]),
        ("not not n > 1", [2, 3]),
        ("n = 1 or n = 2 and price > 100", [1]),
        ("(n = 1 or n = 2) and price > 10", [2]),
        ("address.city contains 'sl'", [1]),
        ("address is null", [3]),
        ("price is not null", [1, 2]),
        ("key = 'a'", [1]),
        ("key starts with 'b'", [2]),
        ("symbol ends with 'W'", [1]),
        ("symbol matches '^[A-Z]+$'", [1]),
        ("lower(symbol) = 'hw'", [1]),
        ("length(symbol) = 1", [3]),
        ("length(key) > 1", [2]),
        ("at > '2001-01-01T00:00:00Z'", [2, 3]),
        ("paid", [1]),
        ("not paid", [2]),
        ("paid = false", [2]),
        ("day = '1970-01-03'", [2]),
        ("total > 1.5", [2, 3]),
        ("total = 2", [2]),
        ("n > -1", [1, 2, 3]),
        ("n < 9999999999", [1, 2, 3]),
        ("`or` = '2'", [2]),
        (r"symbol = 'it\'s'", []),
    ],
)
def test_it_chooses_rows(text: str, rows: list[int]) -> None:
    assert TABLE.filter(parse(text, TABLE.schema)).column("n").to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a column is expected at character 1, not the end"),
        ("nothing = 1", "there is no column 'nothing'; there are price, n,"),
        ("price", "a comparison is expected"),
        ("price >", "a column is expected"),
        ("price > 1 price", "'and', 'or' or the end is expected at character 11, not 'price'"),
        ("1 = 1", "needs a column"),
        ("(n = 1", "')' is expected at character 7, not the end"),
        ("n = 'x'", "n is int32, and 'x' is not"),
        ("symbol > 3", "symbol is string, and 3 is not"),
        ("paid = 1", "paid is bool, and 1 is not"),
        ("n = true", "n is int32, and True is not"),
        ("n = 99999999999999999999", "n is int32, and 99999999999999999999 is not"),
        ("n in (1, 9999999999)", "n is int32, and one of its values is not"),
        ("symbol matches '('", "'(' is no pattern"),
        ("symbol contains 3", "must be in quotes"),
        ("n contains '3'", "n has no text to search: it is int32"),
        ("symbol = null", "use 'is null'"),
        ("tags = 'a'", "which compares with nothing"),
        ("address.street = 'x'", "address has no part 'street'"),
        ("at > 'yesterday'", "at is timestamp[ns, tz=UTC], and 'yesterday' is not"),
        ("n = 1; drop table x", "'; drop table x' is not understood, at character 6"),
        ("symbol = key", "key is binary and symbol is string"),
        ("read_csv('/etc/passwd') = 1", "there is no column 'read_csv'"),
        ("(" * 50 + "n = 1" + ")" * 50, "nested at most 40 deep"),
        ("n = 1 or " * 1000 + "n = 1", "at most 2000 characters"),
    ],
)
def test_what_means_nothing_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        parse(text, TABLE.schema)
    assert says in str(caught.value)


_PIECES = [*TABLE.schema.names, "and", "or", "not", "in", "is", "null", "(", ")", ",", ".", "=", "<", "contains", "'a'"]


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from([*_PIECES, "1", "-2.5", "lower"])).map(" ".join)))
def test_whatever_is_typed_is_an_expression_or_told_to_be_none(text: str) -> None:
    try:
        expression = parse(text, TABLE.schema)
    except InvalidExpression:
        return
    assert TABLE.filter(expression).num_rows <= 3
