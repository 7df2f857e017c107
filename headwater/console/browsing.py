"""Browsing: pages of messages, one message whole, and the live tail, as the page asks for them."""

from __future__ import annotations

from typing import Any, Final

from headwater.console.decoding import decoder_named
from headwater.console.messages import (
    MOST,
    Direction,
    MessagePage,
    cursor_at,
    cursor_from_text,
    cursor_to_text,
    one_record,
    partitions_from_text,
    row_document,
    start_from_text,
)
from headwater.console.page_request import PageRequest
from headwater.console.selection import Selection
from headwater.console.tail import LiveTail
from headwater.core.errors import InvalidConfiguration
from headwater.streams.topic import Topic

_WHOLE: Final = 4 << 20
"""The most characters of one value that are shown; a download has the rest."""


def _selection(request: PageRequest, topic: Topic) -> Selection:
    return Selection(topic.schema, key=request.text("key"), text=request.text("text"), where=request.text("where"))


def page(request: PageRequest) -> dict[str, Any]:
    """Messages from a position (`from`) or a place where a page has ended (`at`) on, older or newer ones."""
    topic = request.store.topic(request.path["topic"])
    direction: Direction = "newer" if request.text("direction") == "newer" else "older"
    if request.text("at"):
        known = range(topic.info.partitions)
        cursor = {number: at for number, at in cursor_from_text(request.text("at")).items() if number in known}
    else:
        numbers = partitions_from_text(request.text("partition"))
        cursor = cursor_at(topic, numbers, start_from_text(request.text("from")))
    message_page = MessagePage(topic, _selection(request, topic), cursor, direction)
    rows = message_page.read(request.number("limit", 50, 1, MOST))
    decoder = decoder_named(request.text("decode", "auto"))
    return {
        "rows": [row_document(row, decoder) for row in rows],
        "at": cursor_to_text(message_page.cursor),
        "began": cursor_to_text(cursor),
        "done": message_page.done,
        "looked_at": message_page.looked_at,
        "damage": message_page.damage,
    }


def message(request: PageRequest) -> dict[str, Any]:
    """One message, whole."""
    topic = request.store.topic(request.path["topic"])
    row = one_record(topic, Selection(topic.schema), request.path["partition"], request.path["offset"])
    decoder = decoder_named(request.text("decode", "auto"))
    return row_document(row, decoder, _WHOLE) | {"ns": str(row.timestamp)}


def tail(request: PageRequest, last_event_id: str) -> LiveTail:
    """A tail from where a browser says that it is, else from a position (`from`), else from the end."""
    topic = request.store.topic(request.path["topic"])
    numbers = partitions_from_text(request.text("partition"))
    if numbers is not None and not all(0 <= number < topic.info.partitions for number in numbers):
        raise InvalidConfiguration(f"topic {topic.name!r} has {topic.info.partitions} partitions")
    cursor_text = last_event_id or request.text("at")
    if cursor_text:
        cursor = cursor_from_text(cursor_text)
        if numbers is not None:  # other partitions are not shown: they need not be read from their beginning
            cursor = cursor_at(topic, None, "latest") | cursor
    else:
        cursor = cursor_at(topic, None, start_from_text(request.text("from")))
    return LiveTail(
        request.store,
        topic.name,
        cursor,
        _selection(request, topic),
        decoder_named(request.text("decode", "auto")),
        None if numbers is None else frozenset(numbers),
    )
