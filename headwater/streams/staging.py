"""Staging: frames that one process writes, and a transaction of another publishes.

A job that is spread over many processes writes in all of them and decides in one. Each process stages its part,
durably, in a file of its own, and sends the few bytes that `seal` returns to whoever decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from headwater.core.limits import check_frame_size
from headwater.log import Frame
from headwater.streams.catalog import TopicInfo

if TYPE_CHECKING:
    from headwater.streams.ports import FrameStage

OutputKey = tuple[str, bytes, int]
"""A topic's name and uuid, and the number of one of its partitions."""


class StagedExtent(NamedTuple):
    """The place of a staged frame: its file (the decision's own if that has no name), its position and its length."""

    file: str
    position: int
    length: int


class Output(NamedTuple):
    """The frames for one partition, in order. They are appended as one atomic group."""

    topic: str
    uuid: bytes
    partition: int
    extents: Sequence[StagedExtent]


@dataclass(frozen=True, slots=True)
class Staged:
    """The frames that are staged in one file, by partition. It can be pickled and sent."""

    outputs: tuple[Output, ...] = ()
    records: int = 0
    tokens: tuple[bytes, ...] = ()
    """The broker's names for it, if it is staged at one."""

    @property
    def files(self) -> frozenset[str]:
        """The files that it is in; none when it is empty."""
        return frozenset(extent.file for output in self.outputs for extent in output.extents)


class Staging:
    """Takes frames for any partitions. Nobody sees them until a transaction has adopted them. For one thread.

    Leaving the block without `seal` removes what was staged. A steward removes sealed stages that no transaction has
    adopted after a day.
    """

    def __init__(self, stage: FrameStage) -> None:
        self._stage = stage
        self._outputs: dict[OutputKey, list[StagedExtent]] = {}
        self._records = 0

    def append(self, topic: TopicInfo, partition: int, frame: Frame) -> None:
        """Stage one frame. It needs no identity: it gets that of the transaction."""
        check_frame_size(topic.config, frame.length, f"{topic.name}/{partition}")
        extent = self._stage.append(topic, partition, frame)
        self._outputs.setdefault((topic.name, topic.uuid, partition), []).append(extent)
        self._records += frame.record_count

    def seal(self) -> Staged:
        """Make everything durable, with one sync, and leave it to a transaction."""
        return self._stage.leave(self._outputs, self._records) if self._outputs else Staged()

    def discard(self) -> None:
        """Remove everything, unless it is sealed."""
        self._stage.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
