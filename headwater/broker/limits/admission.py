"""Admission: frames from clients are checked once, here, before they become part of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from headwater.broker.backend import Backend
from headwater.core.errors import FrameDamaged, PartitionDeleted, UnknownSchema, UntrustedFrame
from headwater.core.limits import check_sizes
from headwater.core.schema import Schema
from headwater.log import Frame, Plain, admit
from headwater.log.format.frame import CODEC_MASK, WRITER, read_header
from headwater.streams.catalog import TopicInfo
from headwater.streams.limits import check_limits

_FUTURE_NS: Final = 3600 * 10**9
"""The clocks of producers may be so far ahead of this broker's clock."""


class Admission:
    """Checks frames that come from outside."""

    def __init__(self, backend: Backend, max_decoded_bytes: int) -> None:
        """A frame may have so many bytes when it is decompressed."""
        self._backend = backend
        self._max_decoded_bytes = max_decoded_bytes

    def batch(self, owner: str, topic_uuid: bytes, data: Callable[[], Sequence[bytes | memoryview]]) -> ClientFrames:
        """Frames that the user `owner` has sent for one partition. `data` gets them, in the thread that writes."""
        return ClientFrames(self, owner, topic_uuid, data)

    def admit(self, data: pa.Buffer, info: TopicInfo, owner: str) -> Frame:
        """A frame, proved sane; raises UntrustedFrame, which says what is wrong, and InvalidRecord."""
        try:
            header = read_header(memoryview(data))
        except FrameDamaged as error:
            raise UntrustedFrame(error.reason) from None
        try:
            schema = self._backend.catalog.schema_by_id(info, header.schema_id)
        except UnknownSchema:
            raise UntrustedFrame(
                f"a frame has schema {header.schema_id:016x}, which topic {info.name!r} does not have"
            ) from None
        if header.attributes & WRITER:
            raise UntrustedFrame("only transactions write frames of this kind: stage the frame in a transaction")
        frame = admit(
            data,
            schema,
            max_decoded_bytes=self._max_decoded_bytes,
            latest_timestamp=time.time_ns() + _FUTURE_NS,
            keys_required=info.config.compact,
            look=partial(_check_limits, info, schema),
        ).unstamped()
        if frame.identity is not None and not self._backend.secrets.owns(owner, frame.identity.producer_id):
            raise UntrustedFrame("a frame is under the id of a producer that this broker has not given to its sender")
        if info.config.compression != "none" and not header.attributes & CODEC_MASK:
            return frame._replace(encoded_bytes=frame.message.size)  # its producer found it too small to compress
        return frame


class ClientFrames:
    """Frames that a client has sent for one partition. An `AppendBatch`."""

    def __init__(
        self, admission: Admission, owner: str, topic_uuid: bytes, data: Callable[[], Sequence[bytes | memoryview]]
    ) -> None:
        self._admission = admission
        self._owner = owner
        self._topic_uuid = topic_uuid
        self._data = data

    def frames(self, info: TopicInfo) -> list[Frame]:
        """The frames, proved sane; raises UntrustedFrame, InvalidRecord and PartitionDeleted."""
        if self._topic_uuid and self._topic_uuid != info.uuid:
            raise PartitionDeleted(f"topic {info.name!r}")
        return [self._admission.admit(pa.py_buffer(data), info, self._owner) for data in self._data()]


def _check_limits(info: TopicInfo, schema: Schema, rows: pa.RecordBatch | Plain) -> None:
    """Raise InvalidRecord for records that a producer would not take."""
    if isinstance(rows, Plain):
        check_sizes(info.config, value=rows.longest[-1], key=rows.longest[0] if len(rows.longest) > 1 else 0)
        return
    names = rows.schema.names
    keys, headers = (
        rows.column(name) if (name := schema.system(noun)) in names else None for noun in ("key", "headers")
    )
    check_limits(rows.select(schema.payload.names), keys, headers, schema, info.config)
