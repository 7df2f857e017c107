"""The fetch collector: takes the result of a poll from the cursors of a consumer, in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headwater.core.errors import HeadwaterError
from headwater.log.format.projection import Projection
from headwater.streams.consumer_assignment import ConsumerAssignment
from headwater.streams.cursor import ConsumedBatch, ConsumedRecord, Cursor
from headwater.streams.subscription import Subscription

if TYPE_CHECKING:
    from headwater.streams.store import Store

_Consumed = TypeVar("_Consumed", ConsumedRecord, ConsumedBatch)


class FetchCollector:
    """Collects records or batches. A partition that fails does not hold the others up: its error comes after them."""

    def __init__(
        self, store: Store, subscription: Subscription, assignment: ConsumerAssignment, fetch_bytes: int
    ) -> None:
        self._store = store
        self._subscription = subscription
        self._assignment = assignment
        self._cursors = assignment.cursors
        self._fetch_bytes = fetch_bytes
        self._projections: dict[bytes, Projection] = {}
        self.passed_over = False
        """True if the last call has read frames that may have held nothing for the consumer: more may be behind."""

    def records(self, limit: int) -> list[ConsumedRecord]:
        """Take at most `limit` records."""
        records: list[ConsumedRecord] = []
        failure: HeadwaterError | None = None
        self.passed_over = False
        for cursor in self._cursors.active():
            try:
                while len(records) < limit and cursor.fetch(self._fetch_bytes):
                    if not cursor.records and not cursor.unpack():
                        self.passed_over = True
                        break  # the other partitions have their turn, and the caller its say
                    records.extend(cursor.take(limit - len(records)))
            except HeadwaterError as error:
                failure = self._failure(cursor, error) or failure
            self._cursors.next_turn()  # the next poll begins with another partition
            if len(records) >= limit:
                break
        return _collected(records, failure)

    def batches(self) -> list[ConsumedBatch]:
        """Take everything that is read ahead, as Arrow batches."""
        batches: list[ConsumedBatch] = []
        failure: HeadwaterError | None = None
        self.passed_over = False
        for cursor in self._cursors.active():
            try:
                cursor.unread()
                if cursor.fetch(self._fetch_bytes):
                    batches.extend(cursor.take_batches(self._projection(cursor)))
                    self.passed_over = True
            except HeadwaterError as error:
                failure = self._failure(cursor, error) or failure
        return _collected(batches, failure)

    def _failure(self, cursor: Cursor, error: HeadwaterError) -> HeadwaterError | None:
        """Return the error of a partition that cannot be read; None if its topic is gone: a refresh takes it out."""
        if self._subscription.key(cursor.tp) == cursor.key:
            return error
        self._assignment.refresh_soon()
        return None

    def _projection(self, cursor: Cursor) -> Projection:
        projection = self._projections.get(cursor.key[0])
        if projection is None:
            projection = Projection(self._store.topic(cursor.tp.topic).schema, None)
            self._projections[cursor.key[0]] = projection
        return projection


def _collected(results: list[_Consumed], failure: HeadwaterError | None) -> list[_Consumed]:
    """Return the results; raise the failure if there are none."""
    if failure is not None and not results:
        raise failure
    return results
