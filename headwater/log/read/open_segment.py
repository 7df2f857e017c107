"""Opening the file of a segment, if it is the one that the list or the state names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headwater.core.errors import Damaged, FrameDamaged, OpenFailed
from headwater.log.files.disk import open_plain
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, SegmentHeader, seed_of
from headwater.log.files.segment_list import ListedSegment
from headwater.log.files.state import State
from headwater.log.recover.inventory import EMPTY, FOREIGN, MISSING

_NO_FILE: Final = (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
"""The errors of opening something that has the name of a segment and cannot be its file."""


class OpenSegment(NamedTuple):
    """A segment that is open. It is `whole` when nothing of it is missing at its end; `end` is None while it grows."""

    segment: Segment
    file: FrameFile
    whole: bool
    end: int | None


class SegmentLost(FrameDamaged):
    """The file of a segment is not there, or another one. If its header alone is damaged, recovery may mend it."""

    def __init__(self, file: Path, reason: str, *, mendable: bool = False) -> None:
        super().__init__(reason, file=file, position=0)
        self.file: Path = file
        self.mendable = mendable


@contextmanager
def open_segment(directory: Path, entry: ListedSegment | None, state: State) -> Iterator[OpenSegment]:
    """The file of a closed segment, or of the growing one, bounded by what may be read of it.

    Raises SegmentLost when it is not there, or another one.
    """
    base = state.segment_base if entry is None else entry.base
    path = directory / f"{base:020d}.log"
    try:
        fd = open_plain(path)
    except FileNotFoundError:
        raise SegmentLost(path, MISSING) from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise OpenFailed(directory, error) from error
        raise SegmentLost(path, FOREIGN) from error
    try:
        content = os.pread(fd, SEGMENT_HEADER_BYTES, 0)
        size = os.fstat(fd).st_size
        if entry is None:
            segment, length = _growing(path, content, state), state.position
        else:
            segment, length = _matching(path, content, entry, state)
        file = FrameFile(fd, min(size, length), seed_of(state.partition), path)
        yield OpenSegment(segment, file, size >= length, None if entry is None else entry.end)
    finally:
        os.close(fd)


def _growing(path: Path, content: bytes, state: State) -> Segment:
    """The growing segment, if this is its header."""
    try:
        header = SegmentHeader.unpack(content)
    except Damaged as error:
        raise SegmentLost(path, error.reason, mendable=True) from None
    if header.log != state.segment or header.partition != state.partition:
        raise SegmentLost(path, FOREIGN)
    return Segment(path, header)


def _matching(path: Path, content: bytes, entry: ListedSegment, state: State) -> tuple[Segment, int]:
    """The closed segment, or the one that it is just replacing, with its length; raises unless this is its header."""
    directory = path.parent
    segment = entry.segment(directory, state.partition)
    if content == segment.header.pack():
        return segment, entry.length
    former = entry.former(directory, state.partition)
    if former is not None and content == former.header.pack():
        return former, entry.former_length
    if not content:
        raise SegmentLost(path, EMPTY)
    try:
        SegmentHeader.unpack(content)
    except Damaged as error:
        raise SegmentLost(path, error.reason, mendable=not entry.lost) from None
    raise SegmentLost(path, FOREIGN)
