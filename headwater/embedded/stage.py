"""A stage: where frames wait until it is decided whether they count.

A stage in memory is gone with its process. A file is made durable before anybody decides over it.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headwater.embedded.decision import Decision
from headwater.log import Frame
from headwater.log.files.disk import Disk
from headwater.log.files.refusals import opening, writing
from headwater.log.format.frame import GROUP_ONLY
from headwater.streams.staging import StagedExtent

SEED: Final = 0x5A6E
"""The seed of the stamp checksums of staged frames, which are no part of any log."""


class Stage(ABC):
    """Frames that wait for a decision."""

    @abstractmethod
    def append(self, frame: Frame) -> StagedExtent:
        """Keep a frame; returns where it is."""

    @abstractmethod
    def seal(self, decision: Decision) -> None:
        """Make everything durable, with what is to be decided."""

    @abstractmethod
    def leave(self) -> str:
        """Make the frames durable and leave them to the transaction of another process; returns their file's name."""

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Return whether it is still there, and undecided."""

    @abstractmethod
    def discard(self) -> None:
        """Remove it, unless it is decided; twice does no harm."""


class MemoryStage(Stage):
    """Frames in memory."""

    def __init__(self, left: dict[str, list[Frame]]) -> None:
        self.frames: list[Frame] = []
        self._left = left
        self._waiting = True

    def append(self, frame: Frame) -> StagedExtent:
        self.frames.append(frame)
        return StagedExtent("", len(self.frames) - 1, 1)

    def seal(self, decision: Decision) -> None:
        """Memory is all there is."""

    def leave(self) -> str:
        name = os.urandom(16).hex()
        self._left[name] = self.frames
        return name

    @property
    def waiting(self) -> bool:
        return self._waiting

    def discard(self) -> None:
        self._waiting = False


class FileStage(Stage):
    """Frames in a file of their own, made when the first one comes."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._mutex = threading.Lock()
        self._fd: int | None = None
        self._size = 0

    def append(self, frame: Frame) -> StagedExtent:
        head, _ = frame.stamp(0, durable_end=0, leader_epoch=0, previous=0, group=GROUP_ONLY, seed=SEED)
        with self._mutex:
            extent = StagedExtent("", self._size, frame.length)
            self._write([head, frame.message], frame.length)
        return extent

    def _write(self, buffers: list[Any], size: int) -> None:
        with writing(self.path):
            if self._fd is None:
                self._fd = self._disk.create(self.path)
            self._disk.writev(self._fd, buffers, self._size, size)
        self._size += size

    def seal(self, decision: Decision) -> None:
        content = decision.pack()
        with self._mutex:
            self._write([content], len(content))
            assert self._fd is not None
            with writing(self.path):
                self._disk.sync(self._fd)

    def leave(self) -> str:
        with self._mutex:
            assert self._fd is not None
            with writing(self.path):
                self._disk.sync(self._fd)
            fd, self._fd = self._fd, None
        self._disk.close(fd)
        return self.path.name

    @property
    def waiting(self) -> bool:
        with opening(self.path):
            return self.path.exists()

    def discard(self) -> None:
        with self._mutex:
            fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)
            with suppress(OSError):  # what cannot be removed now, a steward removes
                self._disk.unlink(self.path)
