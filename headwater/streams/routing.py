"""Routing: which partition a record goes to.

A record with a key always goes to the same partition, in every process and every language: CRC-32 of the key, modulo
the number of partitions. Without a key a producer stays with one partition for a whole batch and then moves to the
next, which keeps frames large.
"""

from __future__ import annotations

from zlib import crc32


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return crc32(key) % partitions
