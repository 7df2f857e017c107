"""The synchronous producer as an event loop can use it: its `send` takes records and never writes."""

from __future__ import annotations

from collections.abc import Callable

from headwater.core.config import ProducerConfig
from headwater.core.errors import BufferFull
from headwater.log import Frame
from headwater.streams.batch import Batch
from headwater.streams.ports import Appender
from headwater.streams.producer import Producer
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic


class NoRoom(Exception):
    """The batch that the record belongs to is full, and has to be written first. The record was not taken."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.batch = batch


class _TellingAppender:
    """Says so when a batch has left the buffer, before it goes to the disk: from then on there is room again."""

    def __init__(self, appender: Appender, tell: Callable[[], None]) -> None:
        self.identity = appender.identity
        self.prompt = appender.prompt
        self.staging = appender.staging
        self._appender = appender
        self._tell = tell

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        self._tell()
        self._appender.append(topic, partition, frame, outcome)

    def room(self, partition: int, timeout: float) -> bool:
        return self._appender.room(partition, timeout)

    @property
    def pending(self) -> int:
        return self._appender.pending

    def flush(self) -> None:
        self._appender.flush()

    def sync(self, topic: Topic) -> None:
        self._appender.sync(topic)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        self._appender.on_failure(tell)

    def close(self) -> None:
        self._appender.close()


class Buffer(Producer):
    """Batches that are full or have lingered long enough become `due`, and `write_due` writes them, in a thread.

    `left` is called, in that thread, whenever a batch has left the buffer.
    """

    def __init__(
        self, topic: Topic, config: ProducerConfig, appender: Appender | None, left: Callable[[], None]
    ) -> None:
        super().__init__(topic, config, _TellingAppender(appender or topic._new_appender(), left))
        self.due: set[Batch] = set()

    def _write_busily(self, batch: Batch, timeout: float) -> None:  # noqa: ARG002 - whoever writes it has the time
        self.due.add(batch)

    def _make_room(self, batch: Batch) -> None:
        self.due.add(batch)
        raise NoRoom(batch)

    def holds(self, batch: Batch) -> bool:
        """Return whether the batch is still in the buffer."""
        return self._batches[batch.outcome.partition] is batch

    def write_due(self) -> None:
        """Write what is due. Errors go to the receipts, and to the next call of the producer."""
        while self.due:
            batch = self.due.pop()
            try:
                self._write(batch)
            except BufferFull:
                self._watch()  # somebody else has been writing for long: its records stay, and are tried again
            except Exception as error:  # noqa: BLE001 - whatever it was, the next call is told
                self._keep_error(error)
