"""Counters: what a partition's writers, readers and cleaners have done since it was created, over all processes.

They lie in the state page behind the ends, packed, and are published with these: so an append writes them without
another call of the system, and every process sees them. Those of an append stand first, because it changes only them.
Pages of older versions have zeros there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

COUNTERS_BYTES: Final = 276
"""The place that the state page has for them."""

_WRITES: Final = struct.Struct("<5Q")
_SYNCS: Final = struct.Struct("<4Q")
_COMPRESSION: Final = struct.Struct("<5Q")
FIELDS: Final = struct.Struct(f"<{'Q' * 30}{'I' * 8}")
LAYOUT: Final = struct.Struct(f"{FIELDS.format}{COUNTERS_BYTES - FIELDS.size}x")
_AFTER_WRITES: Final = _WRITES.size
_AFTER_SYNCS: Final = _AFTER_WRITES + _SYNCS.size
_AFTER_COMPRESSION: Final = _AFTER_SYNCS + _COMPRESSION.size
NO_COUNTERS: Final = bytes(COUNTERS_BYTES)


@dataclass(frozen=True, slots=True)
class Counters:
    """The activity of a partition since it was created, of all processes; of a topic or a store, the sums.

    Names that end in `_ns` are nanoseconds. A shortest, longest or last time is 0 if there was none.
    """

    writes: int = 0
    """Writes of frames. Appends that arrive together share one."""
    write_ns: int = 0
    shortest_write_ns: int = 0
    longest_write_ns: int = 0
    index_writes: int = 0
    syncs: int = 0
    sync_ns: int = 0
    shortest_sync_ns: int = 0
    longest_sync_ns: int = 0
    compressed_frames: int = 0
    compression_bytes_in: int = 0
    """The bytes of compressed frames before compression."""
    compression_bytes_out: int = 0
    compression_skipped: int = 0
    """Frames that were stored as they are, although their producer compresses: they were too small."""
    compression_ns: int = 0
    """The time that producers in the same process took to compress. Clients of a broker take their own time."""
    rotations: int = 0
    """Segments that were closed, and followed by a new one."""
    rotation_ns: int = 0
    readers: int = 0
    """Handles, of any process, that have read."""
    reads: int = 0
    cache_hits: int = 0
    """Reads of segments that were mapped already."""
    mappings: int = 0
    """Segments that were mapped."""
    remappings: int = 0
    """Segments that were mapped again, because they had grown."""
    evictions: int = 0
    """Mappings that were given back, because the cache was full."""
    errors: int = 0
    """Failures of any kind that were counted."""
    last_error_ns: int = 0
    retention_runs: int = 0
    """Runs of retention that removed something, or kept something for a group that has yet to read it."""
    last_retention_ns: int = 0
    retention_ns: int = 0
    retention_records: int = 0
    """Records that retention has removed."""
    retention_bytes: int = 0
    protected_bytes: int = 0
    """The bytes that the last run kept only because a group has yet to read them."""
    protected_segments: int = 0
    """The same in segments."""
    removed_segments: int = 0
    """Segments that retention has removed."""
    failed_writes: int = 0
    failed_syncs: int = 0
    failed_rotations: int = 0
    failed_index_writes: int = 0
    failed_recoveries: int = 0
    failed_retentions: int = 0

    @property
    def mean_write_ns(self) -> int:
        """The mean time of a write; 0 if there was none."""
        return self.write_ns // self.writes if self.writes else 0

    @property
    def mean_sync_ns(self) -> int:
        """The mean time of a sync; 0 if there was none."""
        return self.sync_ns // self.syncs if self.syncs else 0

    @property
    def compression_ratio(self) -> float:
        """The size of compressed frames as a part of what they were before; 1 if there are none."""
        return self.compression_bytes_out / self.compression_bytes_in if self.compression_bytes_in else 1.0


COUNTER_NAMES: Final = tuple(field.name for field in fields(Counters))
_NUMBER: Final = {name: number for number, name in enumerate(COUNTER_NAMES)}
_MAXIMA: Final = frozenset({"longest_write_ns", "longest_sync_ns", "last_error_ns", "last_retention_ns"})
_MINIMA: Final = frozenset({"shortest_write_ns", "shortest_sync_ns"})


def unpack_counters(content: bytes) -> Counters:
    """The counters in a state."""
    return Counters(*LAYOUT.unpack(content))


def sum_counters(counters: Iterable[Counters]) -> Counters:
    """The counters of several partitions together: the sums, the least of the shortest, the greatest of the longest."""
    listed = tuple(counters)

    def together(name: str) -> int:
        values: list[int] = [getattr(entry, name) for entry in listed]
        if name in _MAXIMA:
            return max(values, default=0)
        if name in _MINIMA:
            return min(filter(None, values), default=0)
        return sum(values)

    return Counters(*map(together, COUNTER_NAMES))


def count_write(counters: bytes, write_ns: int, *, indexed: bool) -> bytes:
    """The counters after one more write, which took so long."""
    writes, total, shortest, longest, index_writes = _WRITES.unpack_from(counters)
    return (
        _WRITES.pack(
            writes + 1,
            total + write_ns,
            write_ns if write_ns < shortest or not shortest else shortest,
            max(longest, write_ns),
            index_writes + 1 if indexed else index_writes,
        )
        + counters[_AFTER_WRITES:]
    )


def count_sync(counters: bytes, sync_ns: int) -> bytes:
    """The counters after one more sync, which took so long."""
    syncs, total, shortest, longest = _SYNCS.unpack_from(counters, _AFTER_WRITES)
    shortest = min(shortest, sync_ns) if shortest else sync_ns
    counted = _SYNCS.pack(syncs + 1, total + sync_ns, shortest, max(longest, sync_ns))
    return counters[:_AFTER_WRITES] + counted + counters[_AFTER_SYNCS:]


def count_compression(counters: bytes, added: Iterable[int]) -> bytes:
    """The counters after more frames: the number of compressed ones, bytes in and out, the others, and the time."""
    before = _COMPRESSION.unpack_from(counters, _AFTER_SYNCS)
    counted = _COMPRESSION.pack(*(old + more for old, more in zip(before, added, strict=True)))
    return counters[:_AFTER_SYNCS] + counted + counters[_AFTER_COMPRESSION:]


def count(counters: bytes, **added: int) -> bytes:
    """The counters with something added to some of them."""
    values = list(LAYOUT.unpack(counters))
    for name, amount in added.items():
        number = _NUMBER[name]
        values[number] += amount
    return _pack(values)


def put(counters: bytes, **values: int) -> bytes:
    """The counters with some of them set."""
    changed = list(LAYOUT.unpack(counters))
    for name, value in values.items():
        changed[_NUMBER[name]] = value
    return _pack(changed)


def count_failure(counters: bytes, kind: str, now_ns: int) -> bytes:
    """The counters after a failure, of which `kind` names the counter."""
    return put(count(counters, errors=1, **{kind: 1}), last_error_ns=max(now_ns, 0))


def _pack(values: list[int]) -> bytes:
    """Counters of four bytes stop at their greatest value, long before anybody would count further."""
    small = len(values) - _SMALL
    return LAYOUT.pack(*values[:small], *(min(value, 0xFFFFFFFF) for value in values[small:]))


_SMALL: Final = 8
"""The number of counters of four bytes, which stand last."""
