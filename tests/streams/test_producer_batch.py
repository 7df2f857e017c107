"""A producer's batch holds what it was given, in whatever portions, and nothing of what was taken back."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import RAW
from headwater.core.config import Compression, TopicConfig
from headwater.core.record import NO_HEADERS
from headwater.streams.batch import Batch
from tests.support.strategies import stored

TIMES = st.integers(-(2**63), 2**63 - 1)
KEYS = st.none() | st.binary(max_size=3)
SINGLE = st.tuples(st.binary(max_size=9), TIMES, KEYS)
MANY = st.tuples(st.lists(st.binary(max_size=9), min_size=1, max_size=60), TIMES)
CUT = st.integers(0, 30)


@pytest.mark.parametrize("compression", ["none", "lz4"])
@given(steps=st.lists(SINGLE | MANY | CUT, max_size=12))
def test_single_records_and_lists_share_a_frame(compression: str, steps: list[object]) -> None:
    batch = Batch(0)
    batch.begin(1 << 20, 0)
    expected: list[tuple[bytes, int, bytes | None]] = []
    for step in (*steps, (b"last", 7, None)):
        match step:
            case int(count):
                del expected[count:]
                batch.cut(count)
            case list(values), int(time):
                expected += [(value, time, None) for value in values]
                batch.add_all(values, sum(map(len, values)), time)
            case bytes(value), int(time), key:
                expected.append((value, time, cast("bytes | None", key)))
                batch.add(value, len(value), time, expected[-1][2], None)
    config = TopicConfig(compression=cast("Compression", compression), compression_threshold=1)
    records = stored(batch.frame(RAW, config, None)).records()
    assert [(record.value, record.timestamp, record.key) for record in records] == expected
    assert all(record.headers is NO_HEADERS for record in records)
