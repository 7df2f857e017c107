"""The tail of a log: how far the frames behind a known place can be believed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple

from headwater.core.errors import FrameDamaged
from headwater.log.files.disk import Disk
from headwater.log.files.segment import FrameFile
from headwater.log.format.frame import AFTER_GAP, GROUP_FIRST, GROUP_LAST, FrameHeader
from headwater.log.recover.report import Damage

_COPY: Final = 1024 * 1024


class LogTail(NamedTuple):
    """The end of a walk over the growing segment, and the least offset that is known to have been synced."""

    end: int
    position: int
    stamp: int
    floor: int
    frames: list[tuple[int, FrameHeader]]
    damage: list[Damage]


def walk(file: FrameFile, position: int, offset: int, previous: int, floor: int) -> LogTail:
    """Follow the chain of frames from `position`, where the frame with `offset` must name `previous`.

    A bad frame is damage, and passed over, if it lies below the floor, or if a frame behind it was written when it had
    been synced. Otherwise it is the torn end of the log.
    """
    frames: list[tuple[int, FrameHeader]] = []
    damage: list[Damage] = []
    end = LogTail(offset, position, previous, floor, [], [])
    whole = 0
    open_group = False
    while position < file.end:
        try:
            header = _next(file, position, offset, previous, open_group)
        except FrameDamaged as error:
            good = _synced_behind(file, position, offset, floor)
            if good is None:
                break
            bad, (position, header) = position, good
            if header.base_offset > offset:
                damage.append(Damage(file.path, bad, offset, header.base_offset, error.reason))
        floor = max(floor, header.durable_end)
        frames.append((position, header))
        position, offset, previous = position + header.length, header.next_offset, header.stamp_crc
        open_group = not header.group & GROUP_LAST
        if not open_group or offset <= floor:
            end, whole = end._replace(end=offset, position=position, stamp=previous), len(frames)
    return end._replace(floor=floor, frames=frames[:whole], damage=damage)


def _next(file: FrameFile, position: int, offset: int, previous: int, open_group: bool) -> FrameHeader:
    """The frame at `position`, if it is the one that comes next."""
    header = file.frame(position)
    in_place = header.base_offset > offset if header.group & AFTER_GAP else header.base_offset == offset
    if header.previous != previous or not in_place or bool(header.group & GROUP_FIRST) == open_group:
        raise FrameDamaged("a frame does not follow the one before it", file=file.path, position=position)
    return header


def _synced_behind(file: FrameFile, position: int, offset: int, floor: int) -> tuple[int, FrameHeader] | None:
    """The next good frame after a bad place at `offset`, if that had been synced; None if it is a torn end."""
    with suppress(FrameDamaged):
        header = file.frame(position)
        if header.base_offset <= offset:
            position += header.length  # whole, but not the one that was there: left over from an earlier life
    first = good = file.find(position, offset)
    if offset < floor:
        return first
    while good is not None:
        if good[1].durable_end > offset:
            return first
        good = file.find(good[0] + good[1].length, good[1].next_offset)
    return None


def rewrite(disk: Disk, fd: int, position: int, end: int) -> None:
    """Write the bytes of a file over themselves."""
    while position < end:
        content = os.pread(fd, min(_COPY, end - position), position)
        disk.write(fd, content, position)
        position += len(content)
