"""The topics of a broker, as its clients know them: for at most a second without asking again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from headwater.client.connection import Connection, Repeats
from headwater.core.errors import StoreError, TopicExists, UnknownSchema, UnknownTopic
from headwater.core.names import check_name
from headwater.core.schema import RAW, Schema
from headwater.log import Schemas
from headwater.streams.catalog import TopicInfo, grown
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_to_text, unpack_topic

_KEPT: Final = 1.0
"""A description is used for so many seconds."""
_RENEWED: Final = 0.5
"""One that is older than this is asked for anew, without waiting for the answer."""


class RemoteCatalog:
    """The topics of a broker. Thread-safe.

    Descriptions are remembered: a producer looks at its topic for every batch. A description in steady use is renewed
    before it is too old, so nobody waits for it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()
        self._known: dict[str, tuple[float, TopicInfo]] = {}
        self._renewing: set[str] = set()
        self._schemas: dict[bytes, Schemas] = {}

    def names(self) -> list[str]:
        return sorted(self.all())

    def all(self) -> dict[str, TopicInfo]:
        """Return every topic, as it is now."""
        response = self._connection.call("ListTopics", pb.ListTopicsRequest(internal=True))
        topics = {topic.name: unpack_topic(topic) for topic in response.topics}
        now = time.monotonic()
        with self._mutex:
            self._known = {name: (now, self._same(name, info)) for name, info in topics.items()}
        return topics

    def get(self, name: str) -> TopicInfo:
        known = self._known.get(name)
        if known is not None:
            age = time.monotonic() - known[0]
            if age > _RENEWED:
                self._renew(name)
            if age < _KEPT:
                return known[1]
        else:
            check_name("topic", name, internal=True)
        try:
            response = self._connection.call("DescribeTopic", pb.DescribeTopicRequest(name=name))
        except UnknownTopic:
            self.forget(name)
            raise
        return self.learn(response)

    def recall(self, name: str) -> TopicInfo:
        """Return the topic as it was last described, however long ago; an old description is asked for anew."""
        known = self._known.get(name)
        if known is None:
            return self.get(name)
        if time.monotonic() - known[0] > _RENEWED:
            self._renew(name)
        return known[1]

    def learn(self, topic: pb.Topic, asked: float | None = None) -> TopicInfo:
        """Remember a description that has just come, unless a newer one came after it was `asked` for."""
        info = unpack_topic(topic)
        with self._mutex:
            known = self._known.get(info.name)
            if asked is not None and (known is None or known[0] > asked):
                return info
            info = self._same(info.name, info)
            self._known[info.name] = (time.monotonic(), info)
        return info

    def _same(self, name: str, info: TopicInfo) -> TopicInfo:
        """The object that is known already, if nothing has changed: others compare by identity first."""
        known = self._known.get(name)
        return known[1] if known is not None and known[1] == info else info

    def forget(self, name: str) -> None:
        """Ask for the topic the next time: the known description is wrong."""
        with self._mutex:
            self._known.pop(name, None)

    def _renew(self, name: str) -> None:
        with self._mutex:
            if name in self._renewing:
                return
            self._renewing.add(name)
        asked = time.monotonic()
        try:
            channel = self._connection.channel()
            future = channel.stub.DescribeTopic.future(
                pb.DescribeTopicRequest(name=name), timeout=_KEPT, metadata=self._connection.metadata
            )
        except (StoreError, ValueError):  # closed: the next caller that needs the description is told
            self._renewing.discard(name)
            return
        future.add_done_callback(lambda done: self._renewed(name, asked, done))

    def _renewed(self, name: str, asked: float, done: Any) -> None:
        self._renewing.discard(name)
        if not done.cancelled() and done.exception() is None:
            self.learn(done.result(), asked)

    # Changes, by calls.

    def refresh(self, name: str) -> TopicInfo:
        self.forget(name)
        return self.get(name)

    def schemas(self, info: TopicInfo) -> Schemas:
        return self._schemas.setdefault(info.uuid, RemoteSchemas(self._connection, info.name))

    def create(self, info: TopicInfo, schema: Schema) -> None:
        repeats = Repeats()
        request = pb.CreateTopicRequest(
            name=info.name,
            partitions=info.partitions,
            schema=b"" if schema is RAW else schema.serialize(),
            options=options_to_text({field.name: getattr(info.config, field.name) for field in fields(info.config)}),
            internal=info.name.startswith("__"),
            replication=info.replication or 0,
            min_insync=info.min_insync or 0,
        )
        try:
            response = self._connection.call("CreateTopic", request, on_repeat=repeats)
        except TopicExists:
            # The first attempt may have made it, and only its answer was lost.
            existing = self.get(info.name) if repeats else None
            if existing is None or not _is_as_wanted(existing, info):
                raise
        else:
            self.learn(response)

    def alter(
        self,
        name: str,
        partitions: int | None,
        options: Mapping[str, Any],
        replication: int | None = None,
        min_insync: int | None = None,
    ) -> TopicInfo:
        request = pb.AlterTopicRequest(
            name=check_name("topic", name, internal=True),
            partitions=0 if partitions is None else grown(self.get(name), partitions).partitions,
            options=options_to_text(dict(options)),
            replication=replication or 0,
            min_insync=min_insync or 0,
        )
        return self.learn(self._connection.call("AlterTopic", request))

    def evolve(self, name: str, schema: Schema) -> TopicInfo:
        request = pb.EvolveTopicRequest(name=name, schema=schema.serialize())
        return self.learn(self._connection.call("EvolveTopic", request))

    def delete(self, name: str) -> None:
        repeats = Repeats()
        try:
            self._connection.call("DeleteTopic", pb.DeleteTopicRequest(name=name), on_repeat=repeats)
        except UnknownTopic:
            if not repeats:  # the first attempt may have deleted it, and only its answer was lost
                raise
        finally:
            self.forget(name)

    def sweep(self, *, dry_run: bool = False) -> int:  # noqa: ARG002
        """Do nothing: the broker removes the remains of topics when it begins, and when it cleans."""
        return 0


def _is_as_wanted(existing: TopicInfo, info: TopicInfo) -> bool:
    """Return whether a topic is what a request to create `info` would have made."""
    return (
        (existing.partitions, existing.schemas, existing.config) == (info.partitions, info.schemas, info.config)
        and info.replication in (None, existing.replication)
        and info.min_insync in (None, existing.min_insync)
    )


class RemoteSchemas(Schemas):
    """The schemas of one topic, fetched when they are first needed: they never change."""

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__()
        self._connection = connection
        self._topic = topic

    def _load(self, schema_id: int) -> Schema:
        response = self._connection.call("GetSchema", pb.GetSchemaRequest(topic=self._topic, schema_id=schema_id))
        schema = Schema.deserialize(response.schema)
        if schema.id != schema_id:
            raise UnknownSchema(schema_id, f"{self._connection}, which sent another one")
        return schema
