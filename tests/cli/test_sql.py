"""`hw sql`: topics as tables, and nothing else unless it is asked for."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import headwater
from tests.support.command import Command, hw, local_hw

__all__ = ["hw", "local_hw"]


@pytest.fixture
def filled(hw: Command) -> Command:
    hw("topic", "create", "trades", "-p", 2, "-c", "symbol:string,price:float64")
    hw("produce", "trades", "-k", "symbol", stdin='{"symbol": "A", "price": 1.5}\n{"symbol": "B", "price": 2.5}\n')
    hw("topic", "create", "orders.eu")
    hw("produce", "orders.eu", stdin=b'{"symbol": "A", "n": 3}\n\xff\n')
    return hw


def test_topics_are_tables(filled: Command, tmp_path: Path) -> None:
    assert filled.lines("sql", "SELECT symbol, price FROM trades ORDER BY price DESC") == [
        {"symbol": "B", "price": 2.5},
        {"symbol": "A", "price": 1.5},
    ]
    joined = """
        SELECT t.symbol, t._key, o.value->>'n' AS n
        FROM trades t JOIN "orders.eu" o ON o.value->>'symbol' = t.symbol
    """
    assert filled.lines("sql", "-", stdin=joined) == [{"symbol": "A", "_key": "A", "n": "3"}]
    raw = filled.lines("sql", 'SELECT value, hex(value_bytes) AS bytes, "offset" FROM "orders.eu" ORDER BY "offset"')
    assert raw[1] == {"value": None, "bytes": "FF", "offset": 1}
    twice = filled.lines("sql", "SELECT count(*) AS n FROM trades a, trades b, trades c")
    assert twice == [{"n": 8}], "a table can be joined with itself"
    assert filled("sql", "SELECT count(*) AS n FROM trades", "-o", "csv") == "n\n2\n"
    content = filled.binary("sql", "FROM trades", "-o", "parquet")
    assert pa.parquet.read_table(io.BytesIO(content)).num_rows == 2
    pa.parquet.write_table(pa.table({"symbol": ["A"], "name": ["Ah"]}), tmp_path / "names.parquet")
    query = f"SELECT name FROM trades JOIN '{tmp_path}/names.parquet' USING (symbol)"
    assert filled.lines("sql", "--files", query) == [{"name": "Ah"}]
    filled.refused("sql", query, text="hw: ")


OUTSIDE = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM glob('/*')",
    "COPY (SELECT 1) TO '{new}'",
    "EXPORT DATABASE '{new}'",
    "ATTACH '{new}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM read_csv('https://localhost/x.csv')",
    "SET enable_external_access = true",
    "SET temp_directory = '{new}'",
    "SET allowed_directories = ['/']",
    "RESET lock_configuration",
    "SELECT * FROM text",
    "SELECT * FROM bogus",
]


def test_sql_reaches_nothing_but_topics(local_hw: Command, tmp_path: Path) -> None:
    local_hw("topic", "create", "trades")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    before = sorted(tmp_path.iterdir())
    for query in OUTSIDE:
        local_hw.refused("sql", query.format(file=tmp_path / "secret.csv", new=tmp_path / "new"), text="hw: ")
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_format_is_refused(local_hw: Command) -> None:
    local_hw("topic", "create", "trades")
    local_hw.refused("sql", "FROM trades", "-o", "xml", code=2, text="unknown format 'xml'")


def test_damage_is_named_in_one_line(local_hw: Command) -> None:
    local_hw("topic", "create", "orders")
    with headwater.open(local_hw.store) as store, store.producer("orders") as out:
        out.send_batch([b"x"] * 1000)  # one frame
    (segment,) = (Path(local_hw.store) / "orders" / "0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    local_hw.refused(
        "sql", "SELECT count(*) FROM orders", text="offset 0 to 999)\n"
    )  # and no word of Python's behind it
    local_hw.refused("consume", "orders", text="offset 0 to 999); hw check lists all damage\n")


def test_a_table_that_is_not_there_is_no_topic(local_hw: Command) -> None:
    local_hw("topic", "create", "orders")
    local_hw.refused("sql", "FROM oders", text="hw topic list shows the topics")
