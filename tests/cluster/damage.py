"""Damage to the files of a replica, frame by frame."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.format.frame import HEADER_BYTES


class FramePlace(NamedTuple):
    """The place of a frame in a replica's files, and the offsets that it holds."""

    file: Path
    position: int
    length: int
    offset: int
    next_offset: int


def frames_in(directory: Path) -> list[FramePlace]:
    """The frames of a replica that are there now, in the order of their offsets."""
    frames: list[FramePlace] = []
    for path in sorted(directory.glob("*.log")):
        segment = Segment.read(path)
        fd = os.open(path, os.O_RDONLY)
        try:
            file = FrameFile(fd, os.fstat(fd).st_size, seed_of(segment.header.partition), path)
            frames += [
                FramePlace(path, position, header.length, header.base_offset, header.next_offset)
                for position, header in file.walk(SEGMENT_HEADER_BYTES)
            ]
        finally:
            os.close(fd)
    return frames


def flip(frame: FramePlace, bit: int = 8 * HEADER_BYTES) -> None:
    """Change one bit of a frame, by default one of its records."""
    position = frame.position + bit // 8
    with frame.file.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit % 8]))


LOSSES: Final = ("missing", "emptied", "garbled", "cut")
"""The ways in which a closed segment is lost."""


def lose(log: Path, how: str, random: Random | None = None) -> None:
    """Lose a closed segment, or what is behind one of its frames."""
    random = random or Random(0)
    content = log.read_bytes()
    frames = [frame for frame in frames_in(log.parent) if frame.file == log]
    match how:
        case "missing":
            log.unlink()
        case "emptied":
            log.write_bytes(b"")
        case "garbled":
            log.write_bytes(random.randbytes(len(content)))
        case "cut":
            log.write_bytes(content[: random.choice(frames).position])
