"""Mappings: files as memory, shared by all readers of a partition and bounded in number of bytes.

A mapping holds no descriptor. Python's own `mmap` keeps a copy of the one that it was made with for as long as it
lives, so a log of a thousand small segments would take a thousand of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

_LIBC: Final[Any] = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED: Final = ctypes.c_void_p(-1).value


class _Mapping:
    """Some memory that a file is mapped to, until nothing refers to it any more."""

    __slots__ = ("_unmap", "address", "length")

    def __init__(self, fd: int, length: int) -> None:
        self._unmap = _LIBC.munmap  # at the end of the program, modules may be gone before their objects
        self.length = length
        self.address = _LIBC.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if self.address == _FAILED:
            self.address = None
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def __del__(self) -> None:
        if self.address is not None:
            self._unmap(self.address, self.length)


def map_file(fd: int, length: int) -> pa.Buffer:
    """The first `length` bytes of an open file, which may be closed at once: the buffer keeps them by itself.

    Raises ValueError when the file is shorter: to read behind its end would kill the process.
    """
    size = os.fstat(fd).st_size
    if size < length:
        raise ValueError(f"a file of {size} bytes cannot be mapped up to {length}")
    mapping = _Mapping(fd, length)
    return pa.foreign_buffer(mapping.address, length, mapping)


class MappedSpan(NamedTuple):
    """Bytes of a file from position `start` on, as a view that keeps them alive."""

    start: int
    buffer: pa.Buffer
    view: memoryview


class MappingCache:
    """Maps files for reading and keeps the most recently used mappings, up to a number of bytes.

    An evicted mapping lives on for as long as views on it are held; the cache only bounds what nobody uses.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mutex = threading.Lock()
        self._spans: OrderedDict[tuple[int, bytes], MappedSpan] = OrderedDict()
        self._bytes = 0
        self.activity: Counter[str] = Counter()
        """The number of times that each name of `Counters` was met since it was last taken."""

    def get(self, base: int, log: bytes, length: int, fd: int) -> MappedSpan:
        """The first `length` bytes, or more, of the segment that `base` and `log` name and `fd` is open on."""
        key = (base, log)
        with self._mutex:
            span = self._spans.get(key)
            if span is not None and len(span.view) >= length:
                self._spans.move_to_end(key)
                self.activity["cache_hits"] += 1
                return span
        buffer = map_file(fd, length)
        span = MappedSpan(0, buffer, memoryview(buffer))
        with self._mutex:
            old = self._spans.pop(key, None)
            self._bytes += length - (len(old.view) if old else 0)
            self._spans[key] = span
            self.activity["mappings" if old is None else "remappings"] += 1
            while self._bytes > self._limit and self._spans:
                _, evicted = self._spans.popitem(last=False)
                self._bytes -= len(evicted.view)
                self.activity["evictions"] += 1
        return span

    def mapped(self) -> list[tuple[int, bytes]]:
        """The base and the log of each segment that is mapped."""
        with self._mutex:
            return list(self._spans)

    def drop(self, segments: Iterable[tuple[int, bytes]]) -> None:
        """Drop the mappings of segments that are no longer part of the log."""
        with self._mutex:
            for key in segments:
                span = self._spans.pop(key, None)
                self._bytes -= len(span.view) if span else 0

    def take_activity(self) -> Counter[str]:
        """Return what has happened since the last call."""
        with self._mutex:
            activity, self.activity = self.activity, Counter()
        return activity

    @property
    def mapped_bytes(self) -> int:
        """The bytes of address space that the cache holds."""
        return self._bytes
