"""`hw broker` on a disk that notes in a file what was done to it, for as long as the process lives.

From that file it can be told what a power loss would have left: what was synced, and of the rest any part. Nothing is
synced in earnest. The file is beside the broker's directory.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from headwater.log.files.disk import REAL_DISK
from headwater.testing import Device, RecordingDisk, Step, write_image
from headwater.testing.device import Mood

_LENGTH: Final = struct.Struct("<I")


class TracingDisk(RecordingDisk):
    """Keeps its trace in a file, each step in one write, which the death of the process does not take back."""

    def __init__(self, root: Path, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._steps = itertools.count()
        super().__init__(root)

    def _record(self, kind: Callable[..., Step], *facts: object) -> None:
        with self._mutex:
            step = pickle.dumps(kind(next(self._steps), *facts))
            os.write(self._file, _LENGTH.pack(len(step)) + step)


def trace_of(directory: Path) -> Path:
    """The file with the trace of a broker's directory."""
    return directory.with_name(f"{directory.name}.trace")


def read_trace(file: Path) -> Iterator[Step]:
    """The steps of a process that may have died in the middle of noting one."""
    content = memoryview(file.read_bytes())
    while len(content) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(content)
        step, content = content[_LENGTH.size : _LENGTH.size + length], content[_LENGTH.size + length :]
        if len(step) == length:
            yield pickle.loads(step)


def lose_power(directory: Path, random: Random, mood: Mood | None = None) -> None:
    """Have in a directory what a power loss may leave of it; the broker is dead. The mood is that of the device."""
    device = Device().follow(read_trace(trace_of(directory)))
    torn, reordered = random.random() < 0.3, random.random() < 0.3
    image = device.image(random, torn=torn, reordered=reordered, names=mood, data=mood)
    empty(directory)
    write_image({path: content for path, content in image.items() if path.parts}, directory)


def empty(directory: Path) -> None:
    """Remove all that is in a directory, which may be where a disk is mounted."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    from headwater.cli import main

    _directory = Path(sys.argv[2])
    _directory.mkdir(parents=True, exist_ok=True)
    # Everything that a process changes goes through this one object, which parts of it know by name.
    REAL_DISK.__dict__.update(TracingDisk(_directory, trace_of(_directory)).__dict__)
    REAL_DISK.__class__ = TracingDisk
    main()
