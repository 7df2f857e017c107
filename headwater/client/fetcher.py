"""The fetcher of a consumer behind a broker: records are fetched while it handles those before.

One stream brings what there is in all of its partitions, as soon as it is there. Fetched frames are kept, undecoded,
until the consumer gets to them. The broker sends no more than it was allowed to, and is allowed more when as much
was taken: so at most twice what one fetch brings is on its way or held, beside what the consumer has in hand; and
the last part of a message that is left holds at most three times as much. When the consumer goes elsewhere, another
stream begins there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import grpc

from headwater.client import fork
from headwater.client.catalog import RemoteCatalog
from headwater.client.commits import Commits
from headwater.client.connection import DELAYED, Channel, Connection, Reachability
from headwater.client.direct import read_extents
from headwater.client.fetch_stream import FetchStream
from headwater.client.fetched_partition import REST, FetchedPartition, Held
from headwater.client.group import RemoteGroup
from headwater.client.leaders import Leaders
from headwater.client.notice import Notice
from headwater.core.config import ConsumerConfig
from headwater.core.errors import (
    DataLost,
    HeadwaterError,
    NotLeader,
    PartitionDeleted,
    UnknownTopic,
)
from headwater.core.filter import BoundFilter
from headwater.core.machine import machine
from headwater.log import Partition
from headwater.streams.cursor import Cursor
from headwater.streams.group import Commit, TopicKey, commit_now
from headwater.streams.ports import Source
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from headwater.wire.packing import Fetched

_UNREADABLE: Final = 60.0
"""For so many seconds a broker sends what could not be read from its files."""


class RemoteFetcher:
    """Fetches records from brokers, ahead of one consumer, and commits for it."""

    def __init__(
        self,
        connection: Connection,
        leaders: Leaders,
        catalog: RemoteCatalog,
        config: ConsumerConfig,
        group: RemoteGroup | None,
    ) -> None:
        self.watch = Notice()
        self._connection = connection
        self._leaders = leaders
        self._catalog = catalog
        self._fetch_bytes = config.fetch_bytes
        self._mutex = threading.Lock()
        self._sources: dict[TopicPartition, FetchedPartition] = {}
        self._streams: list[FetchStream] = []
        """One from each broker that leads some of the partitions; a single broker leads all."""
        self._commits = Commits()
        self._group = group
        self._follows_group = False
        self._reach = Reachability(connection, self.watch.ring)
        self._direct_from = 0.0
        """The broker's files may be read from this time on, in seconds of the monotonic clock."""
        self._closed = False
        fork.watch(self)

    # The consumer's partitions.

    def source(self, tp: TopicPartition, key: TopicKey, partition: Partition, where: BoundFilter | None) -> Source:
        source = FetchedPartition(tp, key, partition.schemas, self._distrust, where)
        self._sources[tp] = source
        return source

    def follow(self, cursors: Sequence[Cursor]) -> None:
        with self._mutex:
            self._sources = {cursor.tp: self._source(cursor) for cursor in cursors}
        if self._group is not None and not self._follows_group:
            self._follows_group = True
            self._group.follow(self.watch.ring)

    def _source(self, cursor: Cursor) -> FetchedPartition:
        source = cursor.source
        assert isinstance(source, FetchedPartition)
        source.cursor = cursor
        return source

    # Looking.

    def look(self, cursors: Sequence[Cursor], member: str | None, *, patiently: bool) -> bool:
        group = self._group
        self._reach.check()
        without = [cursor for cursor in cursors if not self._source(cursor).ready]
        if patiently or not (without or group):
            self._fetch(cursors)
            return False
        if without:
            self._ask(without, member)
            behind = [cursor for cursor in without if self._source(cursor).behind]
            for cursor in behind:
                with suppress(DataLost):  # if the consumer is to be told, it is when its turn comes
                    cursor.fetch(1)  # it goes on where the log begins by now, and says so
            if behind:
                self._ask(behind, member)
        if group is not None and (group.kept_elsewhere or not without):
            group.ask(member)  # what is held here may be another's by now, or of a place before a reset
        self._fetch(cursors)
        return True

    def taken(self, cursors: Sequence[Cursor]) -> None:
        with suppress(HeadwaterError):  # they are taken: whatever is wrong is told by the next look
            self._fetch(cursors)

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        if self._any_ready(cursors):
            return True
        self._reach.check()
        self._fetch(cursors)
        return False

    def _any_ready(self, cursors: Sequence[Cursor]) -> bool:
        return any(self._source(cursor).ready for cursor in cursors)

    def _ask(self, cursors: Sequence[Cursor], member: str | None) -> None:
        """See what is there at this moment."""
        with self._mutex:
            wanted = {cursor.tp: self._source(cursor).tail for cursor in cursors}
        for channel, part in self._by_leader(wanted):
            request = self._request(part, 0.0)
            if self._group is not None:
                request.group = self._group.name
                request.member_id = member or ""
            request.machine = self._machine(part)
            try:
                response = channel.stub.Fetch(
                    request, timeout=self._connection.config.attempt_timeout, metadata=self._connection.metadata
                )
            except grpc.RpcError as failure:
                self._reach.failed(*self._explain(failure, channel, part))
            except ValueError:
                self._reach.failed(None, "the connection was lost")
            else:
                self._hear(response)
                with self._mutex:
                    # The stream may have brought the same meanwhile.
                    missing = {tp: at for tp, at in part.items() if self._sources[tp].tail == at}
                    unreadable = not self._take(response, missing)
                if unreadable:
                    self._ask(cursors, member)

    def _by_leader(self, wanted: dict[TopicPartition, int]) -> list[tuple[Channel, dict[TopicPartition, int]]]:
        """Return the channel to each broker that is to be asked, with the offsets to ask for."""
        leaders = self._leaders
        if not leaders.clustered:
            return [(self._connection.channel(), wanted)]
        by_leader: dict[int, tuple[Channel, dict[TopicPartition, int]]] = {}
        for tp, offset in wanted.items():
            try:
                channel = leaders.channel(tp)
            except UnknownTopic:
                self._catalog.forget(tp.topic)  # the consumer finds out by itself
                continue
            by_leader.setdefault(id(channel), (channel, {}))[1][tp] = offset
        return list(by_leader.values())

    def _machine(self, partitions: Iterable[TopicPartition]) -> bytes:
        """The name of this machine, if these are to be read from the files of a broker that is there too."""
        direct = (
            self._connection.config.direct
            and time.monotonic() >= self._direct_from
            and not any(self._sources[partition].unsound for partition in partitions)
        )
        return machine() if direct else b""

    def _distrust(self, source: FetchedPartition, ask: bool) -> None:
        """Have the broker send what is damaged in its files: then it says what is wrong."""
        with self._mutex:
            source.unsound = True
            source.held.clear()
            for stream in self._streams:
                stream.next.pop(source.partition, None)  # it is further: what it brings does not fit any more
        if ask and source.cursor is not None:
            self._ask([source.cursor], None)

    def _explain(
        self, failure: grpc.RpcError, channel: Channel, partitions: Iterable[TopicPartition]
    ) -> tuple[HeadwaterError | None, str]:
        """Explain a failure. If the broker is gone, the leaders are asked for again before the next try."""
        explained = self._connection.explain(failure, channel)
        if explained[0] is None:
            self._lose(channel, partitions)
        return explained

    def _lose(self, channel: Channel, partitions: Iterable[TopicPartition]) -> None:
        self._connection.lose(channel)
        for partition in partitions:
            self._leaders.lose(partition, channel)

    # Fetching ahead.

    def _fetch(self, cursors: Sequence[Cursor]) -> None:
        """Have a stream for every partition that can be read, and let it bring more."""
        now = time.monotonic()
        if now < self._reach.next_attempt:
            return
        patience = self._connection.config.fetch_wait + self._connection.config.attempt_timeout
        with self._mutex:
            sources = [self._source(cursor) for cursor in cursors]
            wanted = {
                source.partition: source.tail for source in sources if not source.failed and now >= source.rest_until
            }
            streams = self._streams
            silent = [stream for stream in streams if stream.silent(patience)]
            coming = {tp: at for stream in streams for tp, at in stream.next.items()}
            if streams and coming == wanted and not silent:
                for stream in streams:
                    stream.allow(sum(source.bytes for source in sources if source.partition in stream.partitions))
                return
            self._streams = []
        for stream in streams:
            stream.end()
        for stream in silent:
            self._lose(stream.channel, stream.partitions)
        if silent:
            self._reach.failed(None, "no answer")
            return
        for channel, part in self._by_leader(wanted) if wanted else ():
            self._begin(channel, part)

    def _begin(self, channel: Channel, wanted: dict[TopicPartition, int]) -> None:
        request = self._request(wanted, self._connection.config.fetch_wait)
        request.machine = self._machine(wanted)
        if self._group is not None:
            request.group = self._group.name
        try:
            stream = FetchStream(channel, request, wanted, self._connection.metadata)
        except ValueError:
            return  # the channel was lost meanwhile: the next look makes another
        with self._mutex:
            self._streams = [*self._streams, stream]
            stream.allow(0)
        stream.listen(self)

    def _request(self, wanted: dict[TopicPartition, int], wait: float) -> pb.FetchRequest:
        limit = min(self._fetch_bytes * max(len(wanted), 1), self._connection.config.fetch_total_bytes)
        positions = [
            pb.FetchPosition(partition=self._sources[tp].message, offset=offset, where=self._sources[tp].where)
            for tp, offset in wanted.items()
        ]
        return pb.FetchRequest(
            positions=positions,
            max_bytes=limit,
            max_wait_ms=int(wait * 1000),
            generation=0 if self._group is None else self._group.generation(),
        )

    def hear(self, stream: FetchStream, response: Fetched) -> None:
        """For the thread that listens: keep what came, and wake the consumer."""
        self._hear(response)
        with self._mutex:
            if stream not in self._streams:
                return  # it was given up
            stream.took(response)
            self._take(response, stream.next, stream)
        self.watch.ring()

    def ended(self, stream: FetchStream, failure: grpc.RpcError | None) -> None:
        """For the thread that listens: no more will come."""
        with self._mutex:
            known = stream in self._streams
            self._streams = [other for other in self._streams if other is not stream]
        if not known or self._closed:
            return
        try:
            if failure is not None:
                self._reach.failed(*self._explain(failure, stream.channel, stream.partitions))
        except HeadwaterError as refusal:
            self._reach.refusal = refusal
        self.watch.ring()

    def _hear(self, response: Fetched) -> None:
        self._reach.answered()
        if self._group is not None:
            self._group.hear(response.generation)

    def _take(self, response: Fetched, wanted: dict[TopicPartition, int], stream: FetchStream | None = None) -> bool:
        """Hold what came of these partitions; whether all of it could be read. The mutex is held."""
        readable = True
        for fetched, sent in response.partitions:
            tp = TopicPartition(fetched.topic, fetched.partition)
            source = self._sources.get(tp)
            start = wanted.get(tp)
            if source is None or start is None:
                continue
            frames = read_extents(fetched.extents) if fetched.extents else sent
            if frames is None:
                self._direct_from = time.monotonic() + _UNREADABLE
                readable = False
                if stream is not None:
                    del stream.next[tp]  # another one begins there
                continue
            source.unsound = source.unsound and bool(fetched.extents)
            error = unpack_error(fetched.error) if fetched.HasField("error") else None
            if isinstance(error, UnknownTopic | PartitionDeleted):
                self._catalog.forget(tp.topic)
            if isinstance(error, NotLeader):
                self._leaders.moved(tp, error)
                source.rest_until = time.monotonic() + REST
                DELAYED.call(REST, self.watch.ring)
            elif error is not None or fetched.next_offset > start:
                direct, filtered = bool(fetched.extents), fetched.filtered
                source.held.append(Held(start, fetched.next_offset, fetched.log_start, frames, error, direct, filtered))
            if stream is not None and error is not None:
                del stream.next[tp]
            elif stream is not None:
                stream.next[tp] = max(fetched.next_offset, start)
        return readable

    # Committing.

    def commit(
        self,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: dict[TopicKey, int] | None,
        *,
        patiently: bool,
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        group = self._group
        assert group is not None, "there are positions only in a group"
        if patiently:
            return self._commits.send(group, member, commits, known)
        self._commits.finish()
        return commit_now(group, member, commits, known)

    def finish_commits(self) -> None:
        self._commits.finish()

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.end()
        if self._group is not None and self._follows_group:
            self._group.unfollow(self.watch.ring)
        self.watch.close()

    def abandon_in_child(self) -> None:
        """After a fork: nothing comes here, and nobody is told."""
        self._mutex = threading.Lock()
        self._streams = []
        self._commits = Commits()
        self._group = None
        self._closed = True
        self.watch = Notice()
