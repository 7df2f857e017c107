"""Mappings: files as memory, shared by all readers of a partition and bounded in number of bytes."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from typing import NamedTuple

import pyarrow as pa


class Span(NamedTuple):
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
        self._spans: OrderedDict[bytes, Span] = OrderedDict()
        self._bytes = 0

    def get(self, log: bytes, length: int, fd: int) -> Span:
        """The first `length` bytes, or more, of the file that `log` names and `fd` is open on."""
        with self._mutex:
            span = self._spans.get(log)
            if span is not None and len(span.view) >= length:
                self._spans.move_to_end(log)
                return span
        mapping = mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        span = Span(0, pa.py_buffer(mapping), memoryview(mapping))
        with self._mutex:
            old = self._spans.pop(log, None)
            self._bytes += length - (len(old.view) if old else 0)
            self._spans[log] = span
            while self._bytes > self._limit and self._spans:
                _, evicted = self._spans.popitem(last=False)
                self._bytes -= len(evicted.view)
        return span

    def keep_only(self, logs: set[bytes]) -> None:
        """Drop the mappings of files that are no longer part of the log."""
        with self._mutex:
            for log in [log for log in self._spans if log not in logs]:
                self._bytes -= len(self._spans.pop(log).view)

    @property
    def mapped_bytes(self) -> int:
        """How much address space the cache holds."""
        return self._bytes
