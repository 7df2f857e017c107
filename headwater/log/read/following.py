"""Following the frames of a segment, from one to the next, past damage."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress

from headwater.core.errors import FrameDamaged
from headwater.log.files.mapping import MappedSpan
from headwater.log.files.segment import FrameFile
from headwater.log.format.frame import (
    AFTER_GAP,
    BASE_OFFSET,
    GROUP,
    LAST_OFFSET_DELTA,
    LENGTH,
    PREVIOUS,
    STAMP_CRC,
    Fields,
    FrameHeader,
    Take,
    Taken,
)
from headwater.log.format.verify import verify_frame, verify_stamp
from headwater.log.recover.report import Damage, OnDamage


def follow(
    file: FrameFile,
    span: MappedSpan,
    position: int,
    base: int,
    offset: int,
    stop: int,
    take: Take[Taken],
    on_damage: OnDamage,
) -> Generator[Taken, None, tuple[int, int]]:
    """The frames from `position` on, from `offset` up to `stop`; returns the next offset and position.

    All reading goes through this loop, so it makes the fewest calls.
    """
    start, buffer, view = span
    seed, limit = file.seed, file.end
    size = min(len(view), limit - start)  # a file that was cut may have been mapped when it was longer
    position, previous, passed = _skip(file, view, start, position, base, offset)
    while position < limit:
        resume = position
        try:
            at = position - start
            fields = verify_frame(view, at, size, seed)
            length, first, follows = fields[LENGTH], fields[BASE_OFFSET], fields[PREVIOUS]
            if first >= stop:
                offset = _before_next(fields, previous, offset, stop)
                break
            if follows != previous and previous is not None:
                # Behind a gap it is good; in the very place of another frame it is not the one that was there.
                resume = position if first > offset else position + length
                raise FrameDamaged("a frame does not follow the one before it")
        except FrameDamaged as error:
            lost_to, good = _beyond_damage(file, resume, passed, offset, stop)
            if lost_to > offset:
                on_damage(Damage(file.path, position, offset, lost_to, error.reason))
                offset = lost_to
            if good is None:
                break
            position, previous = good, None
            continue
        passed = first + fields[LAST_OFFSET_DELTA] + 1
        if passed > offset:  # else it ends before a gap in which `offset` is
            offset = passed
            taken = take(fields, buffer, at)
            if taken is not None:
                yield taken
        previous = fields[STAMP_CRC]
        position += length
    return offset, position


def _beyond_damage(file: FrameFile, resume: int, passed: int, offset: int, stop: int) -> tuple[int, int | None]:
    """Return the offset up to which records are lost, and the position of the next good frame, None if none is left."""
    match = file.find_beyond(resume, passed, offset)
    if match is None:
        return stop, None
    position, header = match
    return min(header.base_offset, stop), position


def frames_between(
    file: FrameFile, position: int, start: int, end: int, most_bytes: int
) -> tuple[int, int, FrameHeader, int | None] | None:
    """Between which positions the frames with records in [start, end) lie, up to about so many bytes.

    With them, the header of the last one, and the offset where the one behind it begins, if there is one. None where
    there are none, or they do not follow one another. Raises FrameDamaged.
    """
    first, stop = position, file.end
    lead = previous = None
    following: int | None = None
    for at, header in file.walk(position):
        if previous is not None and header.previous != previous.stamp_crc:
            return None
        if header.base_offset >= end or (header.base_offset > start and at - first >= most_bytes):
            stop, following = at, header.base_offset
            break
        if lead is None or header.base_offset <= start:
            first, lead = at, header
        previous = header
    if lead is None or previous is None:
        return None
    if lead.next_offset <= start:
        # It ends before a gap in which `start` is, or so says a part of it that the stamp does not vouch for.
        if not file.is_whole(first):
            return None
        first += lead.length
    return (first, stop, previous, following) if first < stop else None


def _before_next(fields: Fields, previous: int | None, offset: int, stop: int) -> int:
    """Return the end of the known log before a frame at or beyond `stop`: `stop`, if the frame vouches for it."""
    follows = previous is None or fields[PREVIOUS] == previous
    return stop if fields[GROUP] & AFTER_GAP and follows else offset


def _skip(
    file: FrameFile, view: memoryview, start: int, position: int, passed: int, offset: int
) -> tuple[int, int | None, int]:
    """From `position` on to the last frame that begins at or before `offset`, or else to the first damaged one.

    Where frames begin is in their stamps, which are verified here. How far they reach is not, and not gone by.
    Returns its position, the stamp before it, and the offset up to which everything was passed over.
    """
    previous = None
    with suppress(FrameDamaged):
        header = verify_stamp(view, position - start, file.seed)
        while position + header.length < file.end:
            following = verify_stamp(view, position + header.length - start, file.seed)
            if following.base_offset > offset:
                break
            previous, passed = header.stamp_crc, following.base_offset
            position, header = position + header.length, following
    return position, previous, passed
