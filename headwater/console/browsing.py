"""Browsing: pages of messages, one message whole, and the live tail, as the page asks for them."""

from __future__ import annotations

from typing import Any, Final

from headwater.console.asked import Asked
from headwater.console.decoding import decoder_named
from headwater.console.messages import (
    MOST,
    Direction,
    MessagePage,
    cursor_from_text,
    cursor_to_text,
    one_record,
    partitions_from_text,
    place,
    row_document,
    start_from_text,
)
from headwater.console.selection import Selection
from headwater.console.tail import LiveTail
from headwater.core.errors import InvalidConfiguration
from headwater.streams.topic import Topic

_WHOLE: Final = 4 << 20
"""So many characters of one value are shown; what is longer is for a download."""


def _selection(asked: Asked, topic: Topic) -> Selection:
    return Selection(topic.schema, key=asked.text("key"), text=asked.text("text"), where=asked.text("where"))


def page(asked: Asked) -> dict[str, Any]:
    """Messages from a position (`from`) or a place where a page has ended (`at`) on, older or newer ones."""
    topic = asked.store.topic(asked.path["topic"])
    direction: Direction = "newer" if asked.text("direction") == "newer" else "older"
    if asked.text("at"):
        known = range(topic.info.partitions)
        cursor = {number: at for number, at in cursor_from_text(asked.text("at")).items() if number in known}
    else:
        numbers = partitions_from_text(asked.text("partition"))
        cursor = place(topic, numbers, start_from_text(asked.text("from")))
    found = MessagePage(topic, _selection(asked, topic), cursor, direction)
    rows = found.read(asked.number("limit", 50, 1, MOST))
    decoder = decoder_named(asked.text("decode", "auto"))
    return {
        "rows": [row_document(row, decoder) for row in rows],
        "at": cursor_to_text(found.cursor),
        "began": cursor_to_text(cursor),
        "done": found.done,
        "looked_at": found.looked_at,
        "damage": found.damage,
    }


def message(asked: Asked) -> dict[str, Any]:
    """One message, whole."""
    topic = asked.store.topic(asked.path["topic"])
    row = one_record(topic, Selection(topic.schema), asked.path["partition"], asked.path["offset"])
    decoder = decoder_named(asked.text("decode", "auto"))
    return row_document(row, decoder, _WHOLE) | {"ns": str(row.timestamp)}


def tail(asked: Asked, last_place: str) -> LiveTail:
    """A tail from where a browser says that it is, else from a position (`from`), else from the end."""
    topic = asked.store.topic(asked.path["topic"])
    numbers = partitions_from_text(asked.text("partition"))
    if numbers is not None and not all(0 <= number < topic.info.partitions for number in numbers):
        raise InvalidConfiguration(f"topic {topic.name!r} has {topic.info.partitions} partitions")
    place_text = last_place or asked.text("at")
    if place_text:
        cursor = cursor_from_text(place_text)
        if numbers is not None:  # the others are not for who looks: they need not be read from their beginning
            cursor = place(topic, None, "latest") | cursor
    else:
        cursor = place(topic, None, start_from_text(asked.text("from")))
    return LiveTail(
        asked.store,
        topic.name,
        cursor,
        _selection(asked, topic),
        decoder_named(asked.text("decode", "auto")),
        None if numbers is None else frozenset(numbers),
    )
