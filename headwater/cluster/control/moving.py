"""Moving: how the replicas of a partition come to be where they are wanted, step by step.

New replicas are added and catch up like any that were away. Only when all that are wanted are in sync does one of them
lead, and only then do the others leave. So there are never fewer copies than before, whichever broker dies at any
moment. Each step is one change of the partition's key; the controller of that moment takes the next one.
"""

from __future__ import annotations

from dataclasses import replace

from headwater.cluster.control.metadata import Members, Move, PartitionState


class Moving:
    """The rules by which replicas move. They say what to do next, and do nothing themselves."""

    def begin(self, state: PartitionState, to: tuple[int, ...]) -> PartitionState:
        """The partition with the wish that its replicas be there; whatever was wished for before counts no more."""
        back = state.replicas if state.move is None else state.move.back
        return replace(state, move=Move(to, back))

    def cancel(self, state: PartitionState) -> PartitionState:
        """The partition with the wish that its replicas be where they were."""
        return state if state.move is None else replace(state, move=Move(state.move.back, state.move.back))

    def has_begun(self, state: PartitionState) -> bool:
        """True if there are replicas by now that were not there before."""
        return state.move is not None and not set(state.replicas) <= set(state.move.back)

    def step(self, state: PartitionState, alive: Members, steady: Members) -> PartitionState | None:
        """The next step for a partition that is led; None if there is nothing to do, or a replica to wait for.

        Those who are `steady` are alive and about to stay: they may lead.
        """
        move = state.move
        if move is None:
            return None
        # Wanted replicas come first, so that any election prefers them.
        together = (*move.to, *(broker for broker in state.replicas if broker not in move.to))
        if state.replicas != together:
            return replace(state, replicas=together)
        vain = [broker for broker in state.replicas if self._came_in_vain(broker, state, move)]
        if vain:
            return self._with_replicas(state, tuple(broker for broker in state.replicas if broker not in vain))
        if set(state.replicas) == set(move.to) <= set(move.back):
            return replace(state, move=None)  # nobody comes, and nobody leaves
        if not self._are_in_sync(move.to, state, alive):
            return None
        if state.leader not in move.to:
            leader = self._next_leader(state, move, steady)
            if leader is None:
                return None
            return replace(state, leader=leader, leader_incarnation=alive[leader], epoch=state.epoch + 1)
        return replace(self._with_replicas(state, move.to), move=None)

    def _came_in_vain(self, broker: int, state: PartitionState, move: Move) -> bool:
        """Return whether a replica was added, is wanted no more, and nobody counts on it."""
        return broker not in move.to and broker not in move.back and broker not in state.in_sync

    def _are_in_sync(self, brokers: tuple[int, ...], state: PartitionState, alive: Members) -> bool:
        return all(broker in state.in_sync and alive.get(broker) == state.in_sync[broker] for broker in brokers)

    def _next_leader(self, state: PartitionState, move: Move, steady: Members) -> int | None:
        """One that is in sync, so that it has everything that was acknowledged."""
        return next(
            (broker for broker in move.to if broker in state.in_sync and steady.get(broker) == state.in_sync[broker]),
            None,
        )

    def _with_replicas(self, state: PartitionState, replicas: tuple[int, ...]) -> PartitionState:
        """The partition without some of its replicas.

        The epoch rises: what a leader has heard from those who leave counts no more, should they come back without what
        they had.
        """
        kept = {broker: since for broker, since in state.in_sync.items() if broker in replicas}
        return replace(state, replicas=replicas, in_sync=kept, epoch=self._later(state))

    def _later(self, state: PartitionState) -> int:
        return state.epoch + 1
