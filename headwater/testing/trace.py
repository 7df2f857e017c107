"""A trace: what was done to the files below one directory, step by step.

Files are numbered by identity, not by name: a name can be given to another file, and a file can lose its name while
its bytes are still on the device. Paths are relative to the directory that is traced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened, the `number`-th from 0."""

    number: int


@dataclass(frozen=True, slots=True)
class Created(Step):
    """A new, empty file got a name."""

    path: PurePath
    file: int


@dataclass(frozen=True, slots=True)
class Written(Step):
    """Bytes of a file changed, in the kernel's memory so far."""

    file: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated(Step):
    """A file got another length."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced(Step):
    """The device has the file's bytes and length."""

    file: int


@dataclass(frozen=True, slots=True)
class SyncFailed(Step):
    """The kernel gave up on the file's changed pages: it calls them clean, so no later sync writes them."""

    file: int


@dataclass(frozen=True, slots=True)
class Renamed(Step):
    """A name was moved, in one step, over whatever had the new one."""

    source: PurePath
    target: PurePath


@dataclass(frozen=True, slots=True)
class Unlinked(Step):
    """A name was removed."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class DirectoryCreated(Step):
    """A new, empty directory got a name."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class DirectorySynced(Step):
    """The device has the names in the directory."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class Marked(Step):
    """A note of the program that recorded the trace: an acknowledgement, say."""

    note: object
