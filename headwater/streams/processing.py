"""Processing: a handler for each record, and a place for those that it cannot handle.

A record is acknowledged after it was handled, so a crash repeats records and skips none. A record that fails is tried
again, a limited number of times. Then it goes to a dead-letter topic or to `on_error`, and the next one has its turn;
or its error ends the processing. No record is tried for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from headwater.core.errors import DeadLetterRefused, InvalidConfiguration, InvalidRecord, SchemaError, StaleMember
from headwater.streams.cursor import ConsumedRecord
from headwater.streams.pattern import TopicFilter
from headwater.streams.stopping import Stop, stop_on_signals

if TYPE_CHECKING:
    from headwater.streams.consumer import Consumer
    from headwater.streams.producer import Producer
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)

Handler = Callable[[Any], object]
"""Called with a record, or with a list of records. An exception is a failure; its result does not matter."""

POLL_INTERVAL: Final = 0.2
"""The seconds that a poll waits for records, unless `poll_interval` says otherwise."""

_ERROR_TEXT: Final = 1000
"""The most characters of an error's text that go along with a dead letter."""
_ERROR_HEADER: Final = "dead-letter-error"


class ProcessOptions(TypedDict, total=False):
    """The options of `Consumer.process`. Times are seconds."""

    batch: bool
    """Call the handler with lists of records, not with each. A list fails as a whole, and is given up as a whole."""
    batch_size: int
    """The number of records that are taken at a time, by default `max_poll_records`; commits come in between."""
    retries: int
    """The number of times that a failed call is repeated, by default 3. With many, the next records wait for long."""
    retry_delay: float
    """The time to wait before that, by default 1 second."""
    auto_ack: bool
    """Acknowledge each record that the handler took, by default. With False the handler does that, with `ack` or
    `ack_range` of the consumer, now or later; what it never acknowledges comes again after a restart. Records that fail
    for good are acknowledged either way."""
    poll_interval: float
    """The time that a poll waits when there is nothing to handle, by default 0.2 seconds. New records end it at once. A
    request to stop may go unnoticed for so long; shorter costs more looks at the log."""
    dead_letter: str
    """The topic for records that fail for good: as they were, with what happened in headers. It must be there. One that
    it cannot take, because of its limits or its schema, ends the processing with DeadLetterRefused, and is not done."""
    on_error: Callable[[ConsumedRecord, Exception], object]
    """Told of each record that failed for good. Without a dead-letter topic that is the end of the record; with
    neither of both, the error is raised and the record is not done. An exception of `on_error` ends the processing
    too."""
    on_batch: Callable[[Sequence[ConsumedRecord]], object]
    """Told of the records that were taken at a time, after their position was committed."""
    stop: threading.Event
    """Ends the processing when it is set, after the record at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSummary:
    """The work that `process` has done."""

    handled: int
    """Records that the handler took."""
    retries: int
    """The number of times that it was called again."""
    dead_letters: int
    """Records that went to the dead-letter topic."""
    given_up: int
    """Records that only `on_error` was told of."""
    batches: int
    """The number of batches that were taken from the log."""
    signal: int | None
    """The signal that ended it, None when it was the event."""


@dataclass(slots=True)
class _Counts:
    handled: int = 0
    retries: int = 0
    dead_letters: int = 0
    given_up: int = 0
    batches: int = 0


class _GivenBack(Exception):
    """Someone asked to stop between two attempts: the record is left for the next time."""


class Processing:
    """One call of `Consumer.process`."""

    def __init__(
        self,
        consumer: Consumer,
        store: Store,
        topics: TopicFilter,
        handler: Handler,
        *,
        batch: bool = False,
        batch_size: int | None = None,
        retries: int = 3,
        retry_delay: float = 1.0,
        auto_ack: bool = True,
        poll_interval: float = POLL_INTERVAL,
        dead_letter: str | None = None,
        on_error: Callable[[ConsumedRecord, Exception], object] | None = None,
        on_batch: Callable[[Sequence[ConsumedRecord]], object] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        if consumer.config.auto_ack:
            raise InvalidConfiguration("process acknowledges records by itself: open the consumer without auto_ack")
        if not isinstance(auto_ack, bool):
            raise InvalidConfiguration(f"auto_ack must be True or False, not {auto_ack!r}")
        self._consumer = consumer
        self._handler = handler
        self._batch = batch
        self._batch_size = consumer.config.max_poll_records if batch_size is None else batch_size
        self._attempts = 1 + retries
        self._retry_delay = retry_delay
        self._auto_ack = auto_ack
        self._poll_interval = poll_interval
        self._on_error = on_error
        self._on_batch = on_batch
        self._event = stop
        _check_number("batch_size", self._batch_size, least=1)
        _check_number("retries", retries, least=0)
        _check_seconds("retry_delay", retry_delay)
        _check_seconds("poll_interval", poll_interval)
        if dead_letter is not None and topics(dead_letter):
            raise InvalidConfiguration(f"{dead_letter!r} is read by this consumer: its dead letters would come again")
        self._producer = None if dead_letter is None else store.producer(dead_letter)
        self._counts = _Counts()
        self._alive_at = 0.0
        self._waiting: list[list[ConsumedRecord]] = []
        """The records that were taken from the log and are not done, in the pieces that the handler gets."""

    def run(self) -> ProcessSummary:
        """Handle records until someone asks to stop."""
        try:
            with stop_on_signals(self._event) as stop:
                while not stop:
                    records = self._consumer.poll(self._batch_size, timeout=self._poll_interval)
                    if records:
                        self._take(records, stop)
                return ProcessSummary(**asdict(self._counts), signal=stop.signal)
        finally:
            if self._producer is not None:
                self._producer.close()

    def _take(self, records: list[ConsumedRecord], stop: Stop) -> None:
        self._alive_at = time.monotonic()
        self._counts.batches += 1
        self._waiting = [records] if self._batch else [[record] for record in records]
        try:
            while self._waiting and not stop:
                self._stay_alive()
                if self._waiting:
                    handled = self._handle(self._waiting[0], stop)
                    self._settle(self._waiting.pop(0), handled=handled)
        except _GivenBack:
            pass
        finally:
            whole = not self._waiting
            self._commit_done()
        if whole and self._on_batch is not None:
            self._on_batch(records)

    def _commit_done(self) -> None:
        """Commit what is done, and give back what was not handled, for whoever polls next."""
        left = [record for piece in self._waiting for record in piece]
        self._waiting = []
        try:
            self._consumer.commit()
        except StaleMember as stale:
            _log.warning("some records were handled, and will be again: %s", stale)
        # Not by `seek`: that would forget what a handler that acknowledges by itself has still to acknowledge.
        self._consumer.give_back(left)

    # One piece.

    def _handle(self, piece: list[ConsumedRecord], stop: Stop) -> bool:
        """Call the handler until it succeeds, at most so many times, or give the records up; whether it succeeded."""
        for attempt in range(1, self._attempts + 1):
            try:
                self._handler(piece if self._batch else piece[0])
            except Exception as error:  # noqa: BLE001 - the handler is not ours: anything can come out of it
                if attempt == self._attempts:
                    self._give_up(piece, error, attempt)
                    return False
                _log.warning("%s: attempt %d failed: %r", _location(piece[0]), attempt, error)
            else:
                self._counts.handled += len(piece)
                return True
            self._pause(stop)
            self._counts.retries += 1
        raise AssertionError("the last attempt succeeds or gives up")

    def _pause(self, stop: Stop) -> None:
        """Wait before the next attempt, and keep the group told that this member lives."""
        end = time.monotonic() + self._retry_delay
        while (left := end - time.monotonic()) > 0:
            if stop.wait(min(left, self._consumer.config.refresh_interval)) or not self._stay_alive():
                raise _GivenBack

    def _give_up(self, piece: list[ConsumedRecord], error: Exception, attempts: int) -> None:
        if self._producer is None and self._on_error is None:
            raise error
        if self._producer is not None:
            for record in piece:
                self._send_dead_letter(self._producer, record, error, attempts)
            self._producer.sync()  # before the acknowledgement: else a power loss could take the record from both
            self._counts.dead_letters += len(piece)
        else:
            self._counts.given_up += len(piece)
        if self._on_error is not None:
            for record in piece:
                self._on_error(record, error)

    def _send_dead_letter(self, producer: Producer, record: ConsumedRecord, error: Exception, attempts: int) -> None:
        headers = _letter_headers(record, error, attempts, producer.topic.info.config.max_headers_bytes)
        try:
            producer.send(record.value, record.key, headers)
        except (InvalidRecord, SchemaError) as refusal:
            _log.error("%s failed: %r", _location(record), error)
            position = (record.topic, record.partition, record.offset)
            raise DeadLetterRefused(*position, producer.topic.name, refusal) from error

    def _settle(self, piece: list[ConsumedRecord], *, handled: bool) -> None:
        """Acknowledge records that are done, unless their handler does that."""
        if handled and not self._auto_ack:
            return
        for record in piece:
            try:
                self._consumer.ack(record)
            except StaleMember as stale:
                _log.warning("%s was handled, and will be again: %s", _location(record), stale)

    def _stay_alive(self) -> bool:
        """Tell the group, now and then, that this member lives, whatever time a batch takes.

        Partitions may go to others by that. Records that were taken from those and are not done are theirs. Returns
        whether the piece at hand is still there.
        """
        now = time.monotonic()
        if now - self._alive_at < self._consumer.config.refresh_interval:
            return True
        self._alive_at = now
        mine = self._consumer.assignment()
        current = self._waiting[0]
        kept = [[record for record in piece if (record.topic, record.partition) in mine] for piece in self._waiting]
        self._waiting = [piece for piece in kept if piece]
        return bool(self._waiting) and self._waiting[0] == current


def _check_number(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfiguration(f"{name} must be a whole number from {least} on, not {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise InvalidConfiguration(f"{name} must be seconds, not {value!r}")


def _location(record: ConsumedRecord) -> str:
    return f"{record.topic}/{record.partition} offset {record.offset}"


def _letter_headers(record: ConsumedRecord, error: Exception, attempts: int, limit: int) -> dict[str, bytes]:
    """The record's own headers, and where it came from and why, as far as there is room; the error's text gives way."""
    facts = {
        "dead-letter-topic": record.topic,
        "dead-letter-partition": record.partition,
        "dead-letter-offset": record.offset,
        "dead-letter-attempts": attempts,
        "dead-letter-error-type": f"{type(error).__module__}.{type(error).__qualname__}",
        _ERROR_HEADER: str(error)[:_ERROR_TEXT],
    }
    headers = {name: value for name, value in dict(record.headers or {}).items() if name not in facts}
    room = limit - sum(len(name.encode()) + len(value) for name, value in headers.items())
    for name, fact in facts.items():
        text = str(fact).encode(errors="replace")
        if name == _ERROR_HEADER:
            text = text[: max(room - len(name), 0)].decode(errors="ignore").encode()
        if len(name) + len(text) <= room:
            headers[name] = text
            room -= len(name) + len(text)
    return headers
