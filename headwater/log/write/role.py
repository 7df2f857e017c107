"""The role in which a replicated partition is written: one guard for the leader's appends and a follower's copies.

A leader gives frames their offsets. A follower copies frames with the offsets that its leader gave them. A partition
that is not replicated has no role, and every process that holds its lock may append.
"""

from __future__ import annotations

from typing import NamedTuple


class WriterRole(NamedTuple):
    """To lead a partition in an epoch, or to follow the leader of that epoch. Epoch 0 has no leader."""

    epoch: int
    leads: bool


class NotLeading(Exception):
    """This replica does not lead the partition, or follow its leader, or not in that epoch."""
