"""The limits of a topic on its records, asked of many records at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.config import TopicConfig
from headwater.core.errors import InvalidRecord
from headwater.core.limits import check_sizes
from headwater.core.schema import Schema
from headwater.streams.typed import largest_value


def check_limits(
    payload: pa.RecordBatch, keys: pa.Array | None, headers: Any, schema: Schema, limits: TopicConfig
) -> None:
    """Raise InvalidRecord for what a producer would not take: what is too large, and what lacks its key.

    `keys` and `headers` are None where no record has any.
    """
    longest = 0 if keys is None else pc.max(pc.binary_length(keys)).as_py() or 0
    check_sizes(limits, value=largest_value(payload), key=longest, headers=_largest_headers(headers))
    if keys is not None and not keys.null_count:
        return
    if limits.compact:
        raise InvalidRecord("the topic is compacted: every record needs a key")
    if schema.raw and _lacks_key(payload.column(0), keys):
        raise InvalidRecord("a delete marker (a value of null) needs a key")


def _lacks_key(values: pa.Array, keys: pa.Array | None) -> bool:
    """Return whether some record has neither a value nor a key."""
    if keys is None or not values.null_count:
        return bool(values.null_count)
    return bool(pc.any(pc.and_(keys.is_null(), values.is_null())).as_py())


def _largest_headers(headers: Any) -> int:
    """Return the size of the largest headers of one record, in bytes."""
    if headers is None:
        return 0
    sizes = pc.add(pc.binary_length(headers.keys), pc.coalesce(pc.binary_length(headers.items), 0))
    by_row = pa.ListArray.from_arrays(headers.offsets, sizes)
    table = pa.table({"row": pc.list_parent_indices(by_row), "size": by_row.flatten()})
    totals = table.group_by("row").aggregate([("size", "sum")]).column("size_sum")
    return int(pc.max(totals).as_py() or 0)
