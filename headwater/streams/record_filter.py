"""The filter of a consumer: one text for all of its topics, bound to the schema of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.core.errors import InvalidFilter
from headwater.core.filter import LONGEST_SENT, BoundFilter, Filter

if TYPE_CHECKING:
    from headwater.core.schema import Schema
    from headwater.streams.topic import Topic


class RecordFilter:
    """Chooses the records that a consumer gets."""

    def __init__(self, where: str, topics: Iterable[Topic]) -> None:
        """Raises InvalidFilter if the text is wrong, or does not fit one of these topics."""
        self._filter = Filter.parse(where, longest=LONGEST_SENT)
        for topic in topics:
            self.bind(topic)

    def bind(self, topic: Topic) -> BoundFilter:
        """Return the filter for records of a topic; raises InvalidFilter, which names the topic."""
        return _bound(self._filter, topic, topic.schema)


def bind_filter(where: str, topic: Topic, schema: Schema) -> BoundFilter:
    """Return a filter for records of a topic, which has this schema; raises InvalidFilter."""
    return _bound(Filter.parse(where, longest=LONGEST_SENT), topic, schema)


def _bound(where: Filter, topic: Topic, schema: Schema) -> BoundFilter:
    try:
        return where.bind(schema)
    except InvalidFilter as error:
        refusal = InvalidFilter(f"topic {topic.name!r}: {error}")
        refusal.position = error.position
        raise refusal from None
