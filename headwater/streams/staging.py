"""Staging: frames that one process writes, and a transaction of another publishes.

A job that is spread over many processes writes in all of them and decides in one. Each process stages its part,
durably, in a file of its own, and sends the few bytes that `seal` returns to whoever decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from headwater.core.errors import InvalidRecord
from headwater.log import Frame
from headwater.streams.catalog import TopicInfo
from headwater.streams.decision import Extent, Output
from headwater.streams.stage import Stage


@dataclass(frozen=True, slots=True)
class Staged:
    """What is staged in one file, and for which partitions. It can be pickled and sent."""

    outputs: tuple[Output, ...] = ()
    records: int = 0
    tokens: tuple[bytes, ...] = ()
    """What a broker knows it by, if it is staged at one."""

    @property
    def files(self) -> frozenset[str]:
        """The files that it is in; none when it is empty."""
        return frozenset(extent.file for output in self.outputs for extent in output.extents)


class Staging:
    """Takes frames for any partitions. Nobody sees them until a transaction has adopted them. For one thread.

    Leaving the block without `seal` removes what was staged. What is sealed and never adopted, a steward removes after
    a day.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._outputs: dict[tuple[str, bytes, int], list[Extent]] = {}
        self._records = 0

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> None:
        """Stage one frame. It needs no identity: it gets that of the transaction."""
        limit = topic.config.max_frame_bytes
        if frame.length > limit:
            raise InvalidRecord(
                f"{topic.name}/{partition}: a frame of {frame.length} bytes is over the limit of {limit} "
                f"(max_frame_bytes)"
            )
        self._outputs.setdefault((topic.name, topic.uuid, partition), []).append(self._keep(topic, partition, frame))
        self._records += frame.record_count

    def _keep(self, topic: TopicInfo, partition: int, frame: Frame) -> Extent:  # noqa: ARG002 - a stage is for any
        return self._stage.append(frame)

    def seal(self) -> Staged:
        """Make everything durable, with one sync, and leave it to a transaction."""
        if not self._outputs:
            return Staged()
        file = self._stage.leave()
        outputs = [
            Output(*place, tuple(extent._replace(file=file) for extent in extents))
            for place, extents in self._outputs.items()
        ]
        return Staged(tuple(outputs), self._records)

    def discard(self) -> None:
        """Remove everything, unless it is sealed."""
        self._stage.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
