"""Offsets of a stream: its position in every partition, as Spark keeps it in the checkpoint.

As JSON they look like those of Spark's Kafka source, `{"orders": {"0": 23, "1": 7}}`, with each topic's id beside its
partitions. Spark compares them as text, so their order is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ID = "id"


class TopicOffsets(NamedTuple):
    """The position of a stream in the partitions of one topic. The id tells topics of one name apart."""

    id: str
    partitions: dict[int, int]


Offsets = dict[str, TopicOffsets]


def to_json(offsets: Offsets) -> dict[str, Any]:
    """The offsets as Spark keeps them."""
    return {
        name: {ID: topic.id, **{str(number): topic.partitions[number] for number in sorted(topic.partitions)}}
        for name, topic in sorted(offsets.items())
    }


def from_json(document: Mapping[str, Any]) -> Offsets:
    """The reverse of `to_json`."""
    return {
        name: TopicOffsets(topic[ID], {int(number): offset for number, offset in topic.items() if number != ID})
        for name, topic in document.items()
    }


def shares(sizes: Mapping[Any, int], limit: int) -> dict[Any, int]:
    """Divide `limit` records among keys of these sizes: one each, then in proportion, so that all end about together.

    The sum is the limit, or all there is.
    """
    if sum(sizes.values()) <= limit:
        return dict(sizes)
    if limit <= len(sizes):
        largest = sorted(sizes, key=lambda key: -sizes[key])[:limit]
        return {key: int(key in largest) for key in sizes}
    room = limit - len(sizes)
    total = sum(sizes.values()) - len(sizes)
    taken = {key: 1 + (size - 1) * room // total for key, size in sizes.items()}
    rounded_down_most = sorted(sizes, key=lambda key: -((sizes[key] - 1) * room % total))
    for key in rounded_down_most[: limit - sum(taken.values())]:
        taken[key] += 1
    return taken
