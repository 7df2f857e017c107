"""Offsets of a stream: where it is in every partition, as Spark keeps them in its checkpoint.

As JSON they look like those of Spark's Kafka source, `{"orders": {"0": 23, "1": 7}}`, with each topic's id beside its
partitions. Spark compares them as text, so their order is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ID = "id"


class TopicOffsets(NamedTuple):
    """Where a stream is in the partitions of one topic; the id tells topics of one name apart."""

    id: str
    partitions: dict[int, int]


Offsets = dict[str, TopicOffsets]


def to_json(offsets: Offsets) -> dict[str, Any]:
    """The offsets as Spark keeps them."""
    return {
        name: {ID: one.id, **{str(number): one.partitions[number] for number in sorted(one.partitions)}}
        for name, one in sorted(offsets.items())
    }


def from_json(found: Mapping[str, Any]) -> Offsets:
    """The reverse of `to_json`."""
    return {
        name: TopicOffsets(one[ID], {int(number): offset for number, offset in one.items() if number != ID})
        for name, one in found.items()
    }


def shares(sizes: Mapping[Any, int], limit: int) -> dict[Any, int]:
    """How `limit` records are taken from these: in proportion, so that all come to their end together.

    What remains from rounding goes to those that got nothing, and then to those that were rounded down most. The sum
    is the limit, or all there is.
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    taken = {key: size * limit // total for key, size in sizes.items()}
    waiting = sorted(
        (key for key, size in sizes.items() if taken[key] < size),
        key=lambda key: (taken[key] > 0, -(sizes[key] * limit % total)),
    )
    for key in waiting[: limit - sum(taken.values())]:
        taken[key] += 1
    return taken
