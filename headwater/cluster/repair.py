"""Repair: a replica of which some is damaged gets it again from one that is whole.

It removes all from the damage on and follows. Before that nobody may count on it any more: it registers anew, as
another incarnation, and leaves the in-sync set on the way. Without a new incarnation its leader would go by what it has
told before, and take it in again while it has less. Where too few others are in sync it stays as it is: the damage is
one stretch, and the rest may be the only copy there is.
"""

from __future__ import annotations

from headwater.cluster.metadata import Members, PartitionState


def can_be_spared(state: PartitionState, broker: int, min_insync: int, alive: Members) -> bool:
    """Whether enough others are in sync, and have lived on since, that a replica may begin anew."""
    others = [one for one, since in state.in_sync.items() if one != broker and alive.get(one) == since]
    return len(others) >= min_insync
