"""Data that people have at hand goes into topics and comes out of them: pandas, Polars, DuckDB, Arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headwater as hw
from tests.support.backends import OpenStore

SCHEMA = pa.schema([("symbol", pa.string()), pa.field("price", pa.float64(), nullable=False)])
ROWS: dict[str, list[Any]] = {"symbol": ["HW", "WH", None], "price": [10.5, 9.5, 1.0]}

KINDS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "table": pa.table,
    "batch": pa.RecordBatch.from_pydict,
}


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_any_kind_are_sent(open_store: OpenStore, kind: str) -> None:
    store = open_store()
    trades = store.create_topic("trades", schema=SCHEMA)
    with store.producer("trades") as out:
        out.send_batch(KINDS[kind](ROWS))
        out.flush()
        assert trades.scan(columns=["symbol", "price"]).read_all().to_pydict() == ROWS
        with pytest.raises(hw.InvalidRecord, match=r"unknown.*'volume'.*missing.*'price'"):
            out.send_batch(KINDS[kind]({"symbol": ["HW"], "volume": [1]}))
        out.send_batch(KINDS[kind]({"price": [2.0]}))  # columns that may be null can be left out
        out.flush()
    assert trades.scan(columns=["symbol"]).read_all().to_pydict() == {"symbol": ["HW", "WH", None, None]}


def test_a_scan_is_read_by_others(open_store: OpenStore) -> None:
    store = open_store()
    trades = store.create_topic("trades", schema=SCHEMA)
    with store.producer("trades") as out:
        out.send_batch(pa.table(ROWS))
    assert trades.scan(columns=["price"]).read_pandas()["price"].tolist() == ROWS["price"]
    frame = pl.from_arrow(trades.scan(columns=["symbol", "price"]))
    assert isinstance(frame, pl.DataFrame)
    assert frame.to_dict(as_series=False) == ROWS
    scanned = trades.scan()
    with duckdb.connect() as connection:
        connection.register("trades", scanned)
        assert connection.sql("SELECT max(price), count(symbol) FROM trades").fetchall() == [(10.5, 2)]
