"""The producer: takes records one by one and writes them in large frames.

`send` only appends to a buffer, which costs about a microsecond. The caller that fills a batch, or finds it older
than the linger, writes it: there is no flushing thread to fall behind. A thread serves only producers that have gone
quiet with something in their buffers.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any, Final, Self

import pyarrow as pa

from headwater.core.config import ProducerConfig
from headwater.core.errors import BufferFull, InvalidRecord, StoreClosed, TransactionAborted
from headwater.log.delayed_calls import DelayedCalls
from headwater.streams.batch import RECORD_BYTES, Batch
from headwater.streams.catalog import TopicInfo
from headwater.streams.gathered import Gathered, Piece, piece_of
from headwater.streams.ports import Appender
from headwater.streams.receipt import Outcome, Receipt
from headwater.streams.routing import Router
from headwater.streams.topic import Topic
from headwater.streams.turn import Turn
from headwater.streams.typed import (
    check_batches,
    pieces,
    raw_values,
    to_batches,
)

_log = logging.getLogger(__name__)
IDLE: Final = DelayedCalls("headwater-idle")
"""The idle threads write the last records of producers that have gone quiet; busy producers write by themselves.

They look at each producer once its linger has passed, and hold on to it meanwhile: one that is dropped with records in
its buffer still gets them written."""
_FRAME_OVERHEAD: Final = 1536
"""More than a frame's header and Arrow's own metadata take."""
_SHORTEST_LOOK: Final = 0.001
"""The idle thread leaves so many seconds between two looks at a producer."""
_AGAIN: Final = 0.01
"""The idle thread waits so many seconds before it tries again to write a batch behind another one."""
_GRACE_NS: Final = 1_000_000
"""An overdue batch is left for so long to a sender that may be about to write it."""
_BUSY_SHARE: Final = 4
"""A busy sender fills a batch for so many times as long as the last one took to be written."""
_LONGEST_PAUSE: Final = 10
"""But for no longer than so many times the linger."""


class Producer:
    """Writes to one topic. Thread-safe: many threads may send through one producer, each in its own order.

    A batch that cannot be written fails as a whole: its receipts raise the error, and so does the call that wrote it,
    or the next one. Nothing of it is in the log then; send it again when the cause is gone. Changes to the topic, such
    as more partitions, are seen from the next batch on.
    """

    def __init__(self, topic: Topic, config: ProducerConfig, appender: Appender | None = None) -> None:
        self.topic = topic.pinned()
        self.config = config
        self._appender: Appender = appender or topic._new_appender()
        self._appender.on_failure(self._keep_error)
        self._mutex = threading.Lock()
        self._batches: list[Batch] = []
        self._writing: list[threading.Lock] = []
        self._sticky = 0
        self._linger_ns = self._pause_ns = int(config.linger * 1e9)
        self._last_number = config.batch_records - 1
        self._watched = False
        self._error: BaseException | None = None
        self._closed = False
        self._info: TopicInfo | None = None
        self._adopt(self.topic.info)
        pa.array([])  # makes pyarrow import pandas, if it is there: at the end of the program that would fail
        _open.add(self)

    def _adopt(self, info: TopicInfo) -> None:
        """Go on with the topic as it is now."""
        if info is self._info or info == self._info:
            return
        schema = self.topic.schema
        with self._mutex:
            self._info = info
            self._limits = info.config
            self._schema = schema
            self._raw = schema.raw
            self._router = Router(info, schema)
            self._most = info.config.max_frame_bytes - _FRAME_OVERHEAD
            self._bytes = min(self.config.batch_bytes, self._most // 2)
            self._most_whole = min(self.config.atomic_bytes, self._most // 2)
            self._max_value = info.config.max_value_bytes
            for number in range(len(self._batches), info.partitions):
                self._batches.append(Batch(number))
                self._writing.append(threading.Lock())
            self._count = info.partitions
            self._choose_way()

    def _choose_way(self) -> None:
        """Decide which records may go the short way through `send`. The mutex is held."""
        self._unready = self._closed or self._error is not None or self._limits.compact
        self._plain = self._max_value if self._raw and not self._unready else -1

    # Taking records.

    def send(
        self,
        value: Any,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Take one record. It is pending until its batch is written; the receipt tells its offset then.

        A key decides the partition; without one a batch at a time goes to each in turn. `value` is bytes, or a dict of
        columns in a typed topic; None is a delete marker. An error of an earlier, lingering batch is raised here once.
        A record that finds no room within `block_timeout` is not taken: that raises BufferFull.
        """
        if type(value) is bytes and key is None and partition is None and headers is None and timestamp is None:
            # Nearly all records without a key go this way. The rest, such as the first of a batch and the one that
            # fills it, have no room here and go the long way.
            now = time_ns()
            size = len(value)
            with self._mutex:
                batch = self._batches[self._sticky]
                values = batch.values
                number = len(values)
                room = batch.room - size - RECORD_BYTES
                if room > 0 and number < self._last_number and now < batch.due_ns and size <= self._plain:
                    try:
                        values.append(value)
                        batch.timestamps.append(now)
                        batch.room = room
                    except BaseException:
                        batch.cut(number)
                        raise
                    return Receipt((batch.outcome, number))
        return self._send(value, key, headers, partition, timestamp)

    def _send(
        self,
        value: Any,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        partition: int | None,
        timestamp: int | None,
    ) -> Receipt:
        """Take any record, and write the batch that it fills or finds overdue."""
        router = self._router
        value, size = router.value(value, key)
        if self._unready:
            self._raise_pending()
        partition = router.partition(key, partition, self._sticky)
        size += RECORD_BYTES + router.extras(key, headers, timestamp)
        if size > self._most:
            raise InvalidRecord(f"a record of {size} bytes does not fit in a frame of {self._most} (max_frame_bytes)")
        now = time_ns()
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreClosed(f"the producer of {self.topic.name!r}")
                batch = self._batches[partition]
                number = len(batch.values)
                if number == 0:
                    batch.begin(self._bytes, now + self._pause_ns)
                full = batch.room <= 0 or number > self._last_number
                if not full and size - batch.room <= self._most - self._bytes:
                    batch.add(value, size, now if timestamp is None else timestamp, key, headers)
                    break
            self._make_room(batch)
        if number >= self._last_number or batch.room <= 0:
            self._write_busily(batch, self.config.block_timeout)
        elif now >= batch.due_ns:
            self._write_busily(batch, 0)
        elif number == 0 and not self._watched:
            self._watch()
        return Receipt((batch.outcome, number))

    def send_batch(
        self,
        data: Any,
        *,
        keys: Sequence[bytes | None] | pa.Array | None = None,
        partition: int | None = None,
        timestamps: int | Sequence[int] | pa.Array | None = None,
        atomic: bool = False,
    ) -> list[Receipt]:
        """Write many records at once: a list of values, or Arrow, pandas or Polars data in a typed topic.

        Pending records go first. The records are written when it returns, or on their way to a broker: then `flush`
        and the receipts wait for them, and the next call raises what went wrong. There is one receipt for each frame
        that they fill, which tells the offset of the first record. With keys the rows are spread by them; otherwise
        all of them go to one partition. Input that cannot be stored is refused before anything is written.

        The rows of one partition are one frame, up to `atomic_bytes`: readers see all of them or none, also after a
        crash. Larger batches are several frames, and a crash or a full disk can leave the first ones in the log
        without the rest. With `atomic`, such a batch, and one for several partitions, is written by a transaction:
        all of it or nothing. It is durable, and visible, when the call returns.
        """
        if self._appender.prompt or atomic:
            self.flush()
        elif type(data) is list and keys is None and (timestamps is None or type(timestamps) is int):
            receipt = self._take_values(data, partition, timestamps)
            if receipt is not None:
                return [receipt]
        batches = to_batches(raw_values(data) if self._raw else data, self._schema)
        listed = _listed(keys)
        times = timestamps if timestamps is None or isinstance(timestamps, int) else pa.array(timestamps)
        check_batches(batches, listed, times, self._schema, self._limits)
        number = self._sticky if partition is None and not self._unready else None
        if self._unready:
            self._raise_pending()
        route, sticky = self._router.partition, self._sticky
        if listed is None and number is None:
            number = route(None, partition, sticky)
        routes = [route(key, partition, sticky) for key in listed] if listed is not None else number
        assert routes is not None, "rows without keys have one partition"
        portions = self._portions(batches, listed, routes, times)
        if atomic and not self._appender.staging:
            all_portions = list(portions)
            if len(all_portions) > 1:
                return self._write_together(all_portions)
            portions = iter(all_portions)
        take = self._write_piece if self._appender.prompt else self._gather
        receipts = [take(piece, target) for target, piece in portions]
        if listed is None and number is not None:
            self._move_on(number)
        return receipts

    def _portions(
        self, batches: list[pa.RecordBatch], keys: list[Any] | None, routes: list[int] | int, times: Any
    ) -> Iterator[tuple[int, Piece]]:
        """Yield the pieces of batches, each with its partition. `routes` has that of each key, or that of all rows."""
        start = 0
        for batch in batches:
            rows = slice(start, start + batch.num_rows)
            own_times = times if times is None or isinstance(times, int) else times[rows]
            if isinstance(routes, int):
                for piece in self._pieces(batch, None, own_times):
                    yield routes, piece
            else:
                assert keys is not None, "rows without keys have one partition"
                yield from self._routed_portions(batch, keys[rows], routes[rows], own_times)
            start += batch.num_rows

    def _routed_portions(
        self, batch: pa.RecordBatch, keys: list[Any], routes: list[int], times: Any
    ) -> Iterator[tuple[int, Piece]]:
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(routes):
            rows.setdefault(number, []).append(row)
        for number, chosen in sorted(rows.items()):
            own = times if times is None or isinstance(times, int) else times.take(pa.array(chosen))
            for piece in self._pieces(batch.take(chosen), [keys[row] for row in chosen], own):
                yield number, piece

    def _pieces(self, batch: pa.RecordBatch, keys: list[Any] | None, timestamps: Any) -> Iterator[Piece]:
        """Yield the rows of one partition as one piece, or as several of about the size of a batch."""
        whole = piece_of(batch, keys, timestamps)
        if batch.num_rows and whole.size <= self._most_whole:
            yield whole
            return
        for start, count in pieces(batch, self._bytes):
            part = slice(start, start + count)
            times = timestamps if timestamps is None or isinstance(timestamps, int) else timestamps[part]
            yield piece_of(batch.slice(start, count), None if keys is None else keys[part], times)

    def _write_together(self, portions: list[tuple[int, Piece]]) -> list[Receipt]:
        """Write pieces by a transaction: all of them or none."""
        receipts: list[Receipt] = []
        with self.topic._new_transaction() as transaction:
            appender = transaction.appender
            for number, piece in portions:
                outcome = Outcome(number)
                frame = piece.frame(self._schema, self._limits, appender.identity)
                appender.append(self.topic, number, frame, outcome)
                receipts.append(Receipt((outcome, 0)))
        return receipts

    def _write_piece(self, piece: Piece, partition: int) -> Receipt:
        """Write it as a frame of its own."""
        frame = piece.frame(self._schema, self._limits, self._appender.identity)
        outcome = Outcome(partition)
        with self._turn(partition, self.config.block_timeout):
            self._appender.append(self.topic, partition, frame, outcome)
        return Receipt((outcome, 0))

    def _take_values(self, values: list[Any], partition: int | None, timestamp: int | None) -> Receipt | None:
        """Take a list of plain values as `send` would take each of them. None if there is anything special about it."""
        if not self._raw or set(map(type, values)) != {bytes}:
            return None
        count, size = len(values), sum(map(len, values)) + RECORD_BYTES * len(values)
        if size > min(self._bytes, self._max_value) or count > self._last_number + 1:
            return None
        if self._unready:
            self._raise_pending()
        number, now = self._router.partition(None, partition, self._sticky), time_ns()
        self._router.extras(None, None, timestamp)
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreClosed(f"the producer of {self.topic.name!r}")
                batch = self._batches[number]
                first = len(batch.values)
                if first == 0:
                    batch.begin(self._bytes, now + self._pause_ns)
                if batch.room >= size and first + count <= self._last_number + 1:
                    batch.add_all(values, size, now if timestamp is None else timestamp)
                    break
            self._write(batch)
        self._send_soon(batch, begun=first == 0)
        self._move_on(number)
        return Receipt((batch.outcome, first))

    def _gather(self, piece: Piece, partition: int) -> Receipt:
        """Take Arrow data for the next frame, or for the one that waits."""
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreClosed(f"the producer of {self.topic.name!r}")
                held = self._batches[partition]
                if not held.values:
                    held = self._batches[partition] = Gathered(partition, self._schema)
                most = self._bytes, self._last_number + 1
                number = held.gather(piece, self._schema, *most) if isinstance(held, Gathered) else None
            if number is not None:
                break
            self._write(held)
        self._send_soon(held, begun=number == 0)
        return Receipt((held.outcome, number))

    def _send_soon(self, batch: Batch, *, begun: bool) -> None:
        """Send the batch, or have it wait for more while enough is on its way. A batch that has just begun is looked
        after."""
        try:
            self._write(batch, 0)
        except BufferFull:
            if begun:
                self._write_later(batch)

    # Writing batches.

    def _write(self, batch: Batch, timeout: float | None = None) -> None:
        """Write the batch, unless someone else has taken it. The order of batches is that of their first records.

        Raises BufferFull when the batch before it is still being written after `timeout` seconds.
        """
        partition = batch.outcome.partition
        with self._turn(partition, self.config.block_timeout if timeout is None else timeout):
            try:
                with self._mutex:
                    if self._batches[partition] is not batch or not batch.values:
                        return
                    self._batches[partition] = Batch(partition)
                    if partition == self._sticky:
                        self._sticky = (partition + 1) % self._count
                self._adopt(self.topic.recent_info)
                frame = batch.frame(self._schema, self._limits, self._appender.identity)
                self._appender.append(self.topic, partition, frame, batch.outcome)
            except BaseException as error:
                # An interruption (Ctrl-C) may have come before the batch was taken: then it is still pending.
                if self._batches[partition] is not batch and not batch.outcome.done:
                    batch.outcome.fail(error)
                raise

    def _make_room(self, batch: Batch) -> None:
        """For `send`, which cannot take its record while this batch is there."""
        self._write(batch)

    def _write_busily(self, batch: Batch, timeout: float) -> None:
        """For `send`: write the batch now, or have it written later when the one before it takes too long.

        A caller that comes here sends faster than the linger ends. Where writing is slow, because of the disk or of
        others that sync there too, the next batch gets more time to fill: most of the sender's time is its own.
        """
        begun = time_ns()
        try:
            self._write(batch, timeout)
        except BufferFull:
            # Not at once again: the next send would find the same.
            batch.due_ns = time_ns() + max(self._linger_ns, _GRACE_NS)
            self._write_later(batch)  # its records were taken: only the next can be refused
        else:
            pause = min(_BUSY_SHARE * (time_ns() - begun), _LONGEST_PAUSE * self._linger_ns)
            self._pause_ns = max(pause, self._linger_ns)

    def _turn(self, partition: int, timeout: float) -> Turn:
        return Turn(self._writing[partition], self._appender, partition, timeout, self.topic.name)

    def _move_on(self, partition: int) -> None:
        with self._mutex:
            if partition == self._sticky:
                self._sticky = (partition + 1) % self._count

    def _watch(self) -> None:
        """Have the idle thread look after this producer; once is enough."""
        with self._mutex:
            watched, self._watched = self._watched, True
        if not watched:
            IDLE.call(max(self.config.linger, _SHORTEST_LOOK), self.write_overdue)

    def write_overdue(self) -> None:
        """For the idle thread: write what has lingered long enough.

        It comes a little late on purpose: a sender that is still busy writes its batch itself, and two threads at it
        would wait for each other. The next look is arranged before anything is written: a slow one holds up no other.
        """
        now = time_ns() - _GRACE_NS
        longest = _LONGEST_PAUSE * self._linger_ns + 2 * _GRACE_NS  # more than that is left if the clock was set back
        with self._mutex:
            pending = [batch for batch in self._batches if batch.values]
            overdue = [batch for batch in pending if not 0 < batch.due_ns - now <= longest]
            self._watched = len(overdue) < len(pending)
        if self._watched:
            left = min(batch.due_ns - now for batch in pending if batch not in overdue) / 1e9
            IDLE.call(max(min(left, self.config.linger), _SHORTEST_LOOK), self.write_overdue)
        for batch in overdue[1:]:
            IDLE.call(0, partial(self._write_idle, batch))
        for batch in overdue[:1]:
            self._write_idle(batch)

    def _write_later(self, batch: Batch) -> None:
        """Have the idle thread try again in a while; once is enough."""
        if not batch.waits:
            batch.waits = True
            IDLE.call(_AGAIN, partial(self._write_idle, batch))

    def _write_idle(self, batch: Batch) -> None:
        batch.waits = False
        if self._batches[batch.outcome.partition] is not batch:
            return  # a sender has written it
        self._pause_ns = self._linger_ns
        try:
            self._write(batch, 0)
        except BufferFull:
            self._write_later(batch)  # someone is writing
        except Exception as error:  # noqa: BLE001 - whatever it was, the next call is told
            self._keep_error(error)

    def _keep_error(self, error: BaseException) -> None:
        with self._mutex:
            self._error = error
            self._choose_way()

    def _take_error(self) -> BaseException | None:
        with self._mutex:
            error, self._error = self._error, None
            self._choose_way()
        return error

    def _raise_pending(self) -> None:
        """An error that nobody has been told yet, or that the producer is closed."""
        if (error := self._take_error()) is not None:
            raise error
        if self._closed:
            raise StoreClosed(f"the producer of {self.topic.name!r}")

    def flush(self) -> None:
        """Write everything that is pending. With `sync="always"` it is durable, and visible, when this returns.

        An error of an earlier, lingering batch is raised here too, after the rest is written.
        """
        if self._closed:
            self._raise_pending()
        self._write_all()

    def _write_all(self) -> None:
        first: BaseException | None = None
        for number in range(self._count):
            batch = self._batches[number]
            try:
                if batch.values:
                    self._write(batch)
                else:
                    with self._turn(number, self.config.block_timeout):
                        pass  # one that another thread is writing counts as pending too
            except Exception as error:  # noqa: BLE001 - raised below, when the others are written
                first = first or error
        self._appender.flush()
        if (first := self._take_error() or first) is not None:
            raise first

    @property
    def pending(self) -> int:
        """The number of records that are not written yet."""
        return sum(map(len, list(self._batches))) + self._appender.pending

    @property
    def _busy(self) -> bool:
        """True if a batch is being written: the idle thread's would be cut off by the end of the program."""
        return any(lock.locked() for lock in list(self._writing))

    def sync(self) -> None:
        """Write everything that is pending and make it durable, whatever the topic's mode."""
        self.flush()
        self._appender.sync(self.topic)

    def close(self) -> None:
        """Write everything that is pending, and take no more."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._choose_way()
        try:
            self._write_all()
        finally:
            if not self.pending:
                _open.discard(self)
                self._appender.close()

    def discard(self) -> None:
        """Take no more, and forget what is pending: it was part of something that was given up."""
        with self._mutex:
            self._closed = True
            self._choose_way()
            pending = [batch for batch in self._batches if batch.values]
            self._batches = [Batch(number) for number in range(self._count)]
        for batch in pending:
            batch.outcome.fail(TransactionAborted("the transaction of this record was given up"))
        _open.discard(self)

    def _abandon(self) -> None:
        """After a fork, in the child: what is pending is the parent's to write, and no lock can be relied on."""
        self._mutex = threading.Lock()
        self._batches = [Batch(number) for number in range(self._count)]
        self._closed = True
        self._choose_way()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listed(keys: Any) -> list[Any] | None:
    if keys is None:
        return None
    values: list[Any] = keys.to_pylist() if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys)
    return values


_open: weakref.WeakSet[Producer] = weakref.WeakSet()


def _write_at_exit() -> None:
    """Write what is pending when the program ends, within a time limit, and say what could not be."""
    begun = time.monotonic()
    writers: list[tuple[Producer, int, threading.Thread]] = []
    for producer in list(_open):
        if producer.pending or producer._busy:
            writers.append((producer, producer.pending, threading.Thread(target=_write_quietly, args=(producer,))))
            writers[-1][2].daemon = True
            writers[-1][2].start()
    for producer, pending, writer in writers:
        writer.join(max(begun + producer.config.close_timeout - time.monotonic(), 0))
        if writer.is_alive():
            _log.error("%d records or more for %r were not written before the program ended", pending, producer.topic)


def _write_quietly(producer: Producer) -> None:
    try:
        producer._write_all()
    except Exception as error:  # noqa: BLE001 - nobody is left to raise it to
        _log.error("records for %r were lost at the end of the program: %s", producer.topic, error)


def _abandon_after_fork() -> None:
    for producer in list(_open):
        producer._abandon()
    _open.clear()


atexit.register(_write_at_exit)
os.register_at_fork(after_in_child=_abandon_after_fork)
