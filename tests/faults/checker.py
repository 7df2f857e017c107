"""The checker: what was sent and acknowledged, held against what was read back."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from tests.faults.violation import Kind, Violation

Id = TypeVar("Id", bound=Hashable)


def check(
    acknowledged: Mapping[str, Sequence[Id]],
    read: Sequence[Id],
    sent: Mapping[str, Sequence[Id]] | None = None,
) -> Iterator[Violation]:
    """Yield every violation in what was `read` from one partition, in its order.

    `acknowledged` has, for each producer, the ids of the records that it was told are safe, and `sent` those
    that it sent, both in the order of sending. Records that were sent and never acknowledged may be there or not, but
    once at most and in its place. Without `sent`, everything that was sent was acknowledged. An id belongs to
    one record of one producer.
    """
    places = _places(acknowledged if sent is None else sent)
    for producer, ids in acknowledged.items():
        for identity in ids:
            if identity not in places:
                raise ValueError(f"{producer} has an acknowledgement for {identity!r}, which it did not send")

    yield from _read_wrongly(places, read)
    there = set(read)
    for producer, ids in acknowledged.items():
        for identity in ids:
            if identity not in there:
                yield Violation(Kind.LOST_WRITE, f"{identity!r}, acknowledged to {producer}, is not there")


def _read_wrongly(places: Mapping[Id, tuple[str, int]], read: Sequence[Id]) -> Iterator[Violation]:
    positions: dict[Id, int] = {}
    furthest: dict[str, tuple[int, Id]] = {}
    for position, identity in enumerate(read):
        if identity in positions:
            first = positions[identity]
            yield Violation(Kind.DUPLICATE, f"{identity!r} was read at {first} and again at {position}")
            continue
        positions[identity] = position
        if identity not in places:
            yield Violation(Kind.UNSEEN, f"{identity!r}, read at {position}, was sent by nobody")
            continue
        producer, place = places[identity]
        before = furthest.get(producer)
        if before is not None and place < before[0]:
            order = f"{producer} sent it before {before[1]!r}, which was read earlier"
            yield Violation(Kind.REORDERED, f"{identity!r}, read at {position}: {order}")
        else:
            furthest[producer] = place, identity


def _places(sent: Mapping[str, Sequence[Id]]) -> dict[Id, tuple[str, int]]:
    places: dict[Id, tuple[str, int]] = {}
    for producer, ids in sent.items():
        for place, identity in enumerate(ids):
            if identity in places:
                raise ValueError(f"{identity!r} was sent twice, by {places[identity][0]} and {producer}")
            places[identity] = producer, place
    return places
