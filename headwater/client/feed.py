"""The feed of a consumer behind a broker: records are fetched while it handles those before.

There is no thread for it. A fetch is under way for every partition of which nothing is held here; it waits at the
broker until there is something. What comes is kept, undecoded, until the consumer gets to it, and only then the next
fetch for that partition begins. So at most twice what one fetch brings is held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from headwater.client.connection import Channel, Connection, pauses
from headwater.client.frames import verified
from headwater.client.group import RemoteGroup
from headwater.client.later import LATER
from headwater.client.notice import Notice
from headwater.client.partition import partition_seed
from headwater.config import ConsumerConfig
from headwater.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NotLeader,
    OffsetOutOfRange,
    PartitionDeleted,
    UnknownTopic,
)
from headwater.log import Bounds, Partition, Schemas, StoredFrame
from headwater.log.frame import stored_frame
from headwater.store.cursor import Cursor
from headwater.store.feed import Feed, Source
from headwater.store.group import Group, TopicKey
from headwater.store.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error

if TYPE_CHECKING:
    from headwater.client.store import RemoteStore

_log = logging.getLogger(__name__)
_CALLS: Final = 3
"""So many fetches may be under way at once; then they become one again."""
_FORGOTTEN: Final = 15.0
"""A failure so long ago says nothing of the present. Seconds."""
_REST: Final = 0.1
"""How long a partition that could not be read is left alone. Seconds."""


class Held(NamedTuple):
    """What a fetch has brought of one partition: everything from `start` up to, and without, `end`."""

    start: int
    end: int
    log_start: int
    frames: Any
    error: HeadwaterError | None


class FetchedPartition:
    """What is held of one partition, as its cursor reads it. Only `held` is touched by other threads."""

    def __init__(self, place: TopicPartition, key: TopicKey, schemas: Schemas) -> None:
        self.place = place
        self.key = key
        self.message = pb.TopicPartition(topic=place.topic, partition=place.partition, topic_uuid=key[0])
        self.held: Held | None = None
        self.cursor: Cursor | None = None
        self.rest_until = 0.0
        self._seed = partition_seed(*key)
        self._schemas = schemas

    @property
    def position(self) -> int:
        """Where the next fetch goes on if nothing is held: behind what the cursor has."""
        assert self.cursor is not None, "a cursor is followed before it is read"
        frames = self.cursor.frames
        return frames[-1].header.next_offset if frames else self.cursor.next

    def fits(self) -> bool:
        """Whether what the cursor needs next is held; what is of another place is dropped."""
        if self.held is not None and self.held.start != self.position:
            self.held = None
        return self.held is not None

    @property
    def ready(self) -> bool:
        """Whether the cursor has something to hand out, or to be told."""
        cursor = self.cursor
        return cursor is not None and bool(cursor.records or cursor.frames or self.fits())

    @property
    def behind(self) -> bool:
        """Whether what the cursor needs next was removed before it was read."""
        held = self.held if self.fits() else None
        return held is not None and isinstance(held.error, OffsetOutOfRange) and held.log_start > held.start

    def bounds(self) -> Bounds:
        position = self.position
        held = self.held if self.fits() else None
        if held is None:
            return Bounds(position, position, position)
        if isinstance(held.error, OffsetOutOfRange):
            # Removed before it was read; or not there any more, after a power loss, and not there again yet.
            if not self.behind:
                self.rest_until = time.monotonic() + _REST
            self.held = None
            start = max(held.log_start, position)
            return Bounds(start, start, start)
        return Bounds(position, max(held.end, position + 1), position)

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:  # noqa: ARG002 - it is here already
        held, self.held = self.held, None
        assert held is not None, "bounds were looked at before"
        if held.error is not None:
            self.rest_until = time.monotonic() + _REST
            raise held.error
        schema_of = self._schemas.get
        return [stored_frame(*located, schema_of) for located in verified(held.frames, self._seed, offset)]


class _Call:
    """A fetch under way."""

    def __init__(self, wanted: dict[TopicPartition, int], channel: Channel) -> None:
        self.wanted = wanted
        self.channel = channel
        self.future: Any = None


class RemoteFeed(Feed):
    """Records come by fetches from a broker. For one consumer."""

    def __init__(self, store: RemoteStore, connection: Connection, config: ConsumerConfig) -> None:
        super().__init__(store)
        self.watch: Notice = Notice()
        self._remote = store
        self._connection = connection
        self._fetch_bytes = config.fetch_bytes
        self._mutex = threading.Lock()
        self._sources: dict[TopicPartition, FetchedPartition] = {}
        self._calls: list[_Call] = []
        self._group: RemoteGroup | None = None
        self._pauses = pauses()
        self._failing_since: float | None = None
        self._failed_last = 0.0
        self._failure = ""
        self._refusal: HeadwaterError | None = None
        self._next_attempt = 0.0
        self._closed = False

    # Who reads what.

    def source(self, place: TopicPartition, key: TopicKey, partition: Partition) -> Source:
        source = FetchedPartition(place, key, partition.schemas)
        self._sources[place] = source
        return source

    def follow(self, cursors: Sequence[Cursor], group: Group | None) -> None:
        with self._mutex:
            self._sources = {cursor.place: self._source(cursor) for cursor in cursors}
        if group is not None and self._group is None:
            assert isinstance(group, RemoteGroup)
            self._group = group
            group.follow()

    def _source(self, cursor: Cursor) -> FetchedPartition:
        source = cursor.source
        assert isinstance(source, FetchedPartition)
        source.cursor = cursor
        return source

    # Looking.

    def look(self, cursors: Sequence[Cursor], group: Group | None, member: str | None, *, patiently: bool) -> bool:
        self._check_reachable()
        without = [cursor for cursor in cursors if not self._source(cursor).ready]
        if patiently or not (without or group):
            self._fetch(cursors)
            return False
        if without:
            self._ask(without, group, member)
            behind = [cursor for cursor in without if self._source(cursor).behind]
            for cursor in behind:
                cursor.fetch(1)  # it goes on where the log begins by now, and says so
            if behind:
                self._ask(behind, group, member)
        elif isinstance(group, RemoteGroup):
            group.ask(member)  # what is held here may be another's by now, or of a place before a reset
        self._fetch(cursors)
        return True

    def taken(self, cursors: Sequence[Cursor]) -> None:
        if not all(self._source(cursor).held for cursor in cursors):
            with suppress(HeadwaterError):  # they are taken: whatever is wrong is told by the next look
                self._fetch(cursors)

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        if self._has_some(cursors):
            return True
        self._check_reachable()
        self._fetch(cursors)
        return False

    def _has_some(self, cursors: Sequence[Cursor]) -> bool:
        return any(self._source(cursor).ready for cursor in cursors)

    def _ask(self, cursors: Sequence[Cursor], group: Group | None, member: str | None) -> None:
        """See what is there at this moment."""
        wanted = {cursor.place: self._source(cursor).position for cursor in cursors}
        with self._mutex:
            needless = [call for call in self._calls if not wanted.keys().isdisjoint(call.wanted)]
            self._calls = [call for call in self._calls if call not in needless]
        for call in needless:
            call.future.cancel()  # it would bring the same
        for channel, part in self._by_leader(wanted):
            request = self._request(part, 0.0)
            if group is not None:
                request.group = group.name
                request.member_id = member or ""
            try:
                response = channel.stub.Fetch(
                    request, timeout=self._connection.config.attempt_timeout, metadata=self._connection.metadata
                )
            except grpc.RpcError as failure:
                self._failed(*self._explain(failure, channel, part))
            except ValueError:
                self._failed(None, "the connection was lost")
            else:
                self._take(response, part)

    def _by_leader(self, wanted: dict[TopicPartition, int]) -> list[tuple[Channel, dict[TopicPartition, int]]]:
        """The way to each broker that is to be asked, and what for."""
        leaders = self._remote.leaders
        if not leaders.clustered:
            return [(self._connection.channel(), wanted)]
        found: dict[int, tuple[Channel, dict[TopicPartition, int]]] = {}
        for place, offset in wanted.items():
            channel = leaders.channel(place)
            found.setdefault(id(channel), (channel, {}))[1][place] = offset
        return list(found.values())

    def _explain(
        self, failure: grpc.RpcError, channel: Channel, wanted: dict[TopicPartition, int]
    ) -> tuple[HeadwaterError | None, str]:
        """What a failure says; for whom the channel was the way to a leader it is none any more."""
        found = self._connection.explain(failure, channel)
        if found[0] is None:
            for place in wanted:
                self._remote.leaders.lose(place, channel)
        return found

    # Fetching ahead.

    def _fetch(self, cursors: Sequence[Cursor]) -> None:
        """Have a fetch under way for every partition of which nothing is held."""
        now = time.monotonic()
        if now < self._next_attempt:
            return
        wanted: dict[TopicPartition, int] = {}
        for cursor in cursors:
            source = self._source(cursor)
            if not source.fits() and now >= source.rest_until:
                wanted[cursor.place] = source.position
        needless: list[_Call] = []
        with self._mutex:
            for call in list(self._calls):
                if call.wanted.items() <= wanted.items():
                    continue
                # It is for a place that is read from elsewhere by now, or not at all.
                self._calls.remove(call)
                needless.append(call)
            missing = dict(wanted.items() - {pair for call in self._calls for pair in call.wanted.items()})
            if missing and len(self._calls) >= _CALLS * self._remote.leaders.count:
                needless += self._calls
                self._calls = []
                missing = wanted
        for call in needless:
            call.future.cancel()
        for channel, part in self._by_leader(missing) if missing else ():
            self._begin(channel, part)

    def _begin(self, channel: Channel, wanted: dict[TopicPartition, int]) -> None:
        wait = self._connection.config.fetch_wait
        request = self._request(wanted, wait)
        if self._group is not None:
            request.group = self._group.name
        try:
            call = _Call(wanted, channel)
            call.future = channel.stub.Fetch.future(
                request, timeout=wait + self._connection.config.attempt_timeout, metadata=self._connection.metadata
            )
        except ValueError:
            return  # the channel was lost meanwhile: the next look makes another
        with self._mutex:
            self._calls.append(call)
        call.future.add_done_callback(lambda _: self._done(call))

    def _request(self, wanted: dict[TopicPartition, int], wait: float) -> pb.FetchRequest:
        limit = min(self._fetch_bytes * max(len(wanted), 1), self._connection.config.fetch_total_bytes)
        positions = [
            pb.FetchPosition(partition=self._sources[place].message, offset=offset) for place, offset in wanted.items()
        ]
        return pb.FetchRequest(
            positions=positions,
            max_bytes=limit,
            max_wait_ms=int(wait * 1000),
            generation=0 if self._group is None else self._group.generation(),
        )

    def _done(self, call: _Call) -> None:
        """In a thread of gRPC: keep what came, and wake the consumer."""
        with self._mutex:
            known = call in self._calls
            if known:
                self._calls.remove(call)
        if not known or self._closed:
            return
        try:
            response = call.future.result()
        except grpc.RpcError as failure:
            try:
                self._failed(*self._explain(failure, call.channel, call.wanted))
            except HeadwaterError as refusal:
                self._refusal = refusal
                self.watch.ring()
        else:
            self._take(response, call.wanted)
            self.watch.ring()

    def _take(self, response: pb.FetchResponse, wanted: dict[TopicPartition, int]) -> None:
        self._failing_since = None
        self._pauses = pauses()
        if self._group is not None:
            self._group.hear(response.generation)
        with self._mutex:
            for found in response.partitions:
                place = TopicPartition(found.topic, found.partition)
                source = self._sources.get(place)
                start = wanted.get(place)
                if source is None or start is None:
                    continue
                error = unpack_error(found.error) if found.HasField("error") else None
                if isinstance(error, NotLeader):
                    self._remote.leaders.moved(place, error)
                    source.rest_until = time.monotonic() + _REST
                    LATER.call(_REST, self.watch.ring)
                    continue
                if isinstance(error, UnknownTopic | PartitionDeleted):
                    self._remote.forget_topic(place.topic)
                if error is not None or found.next_offset > start:
                    source.held = Held(start, found.next_offset, found.log_start, found.frames, error)

    # When nobody answers.

    def _failed(self, error: HeadwaterError | None, why: str) -> None:
        now = time.monotonic()
        pause = next(self._pauses)
        if self._failing_since is None or now - self._failed_last > _FORGOTTEN:
            self._failing_since = now  # nobody has tried for long: that counts as no failure
        self._failed_last = now
        self._failure = str(error or why)
        self._next_attempt = now + pause
        LATER.call(pause, self.watch.ring)

    def _check_reachable(self) -> None:
        self._connection.check_open()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        since = self._failing_since
        if since is not None and self._failed_last - since > self._connection.config.timeout:
            self._failing_since = None  # the next poll tries anew
            raise BrokerUnavailable(
                str(self._connection), "Fetch", self._connection.config.timeout, self._failure or "no answer"
            )

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            calls, self._calls = self._calls, []
        for call in calls:
            call.future.cancel()
        if self._group is not None:
            self._group.unfollow()
        super().close()
