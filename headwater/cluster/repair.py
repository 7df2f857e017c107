"""Repair: a replica of which some is damaged gets it again from one that is whole.

It removes all from the damage on and follows. Before that nobody may count on it any more: it registers anew, as
another incarnation, and leaves the in-sync set on the way. Without a new incarnation its leader would go by what it has
told before, and take it in again while it has less. Where too few others are in sync it stays as it is: the damage is
one stretch, and the rest may be the only copy there is.

But if it leads, whoever is to be the next in sync may need that very stretch, and would wait for it for ever. Then it
lets one lead that is in sync as well, and stays in sync itself: nobody has less than before, and once the third has
caught up this one can be spared.
"""

from __future__ import annotations

from headwater.cluster.metadata import Members, PartitionState


def can_be_spared(state: PartitionState, broker: int, min_insync: int, alive: Members) -> bool:
    """Whether enough others are in sync, and have lived on since, that a replica may begin anew."""
    others = [one for one, since in state.in_sync.items() if one != broker and alive.get(one) == since]
    return len(others) >= min_insync


def should_hand_over(state: PartitionState, broker: int, alive: Members) -> bool:
    """Whether a damaged leader that cannot be spared lets another one lead, for one that has to catch up."""
    behind = [one for one in state.replicas if one not in state.in_sync and one in alive]
    return state.leader == broker and bool(behind) and can_be_spared(state, broker, 1, alive)
