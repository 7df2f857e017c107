"""The progress of a consumer that is part of a transaction: the transaction commits its positions."""

from __future__ import annotations

from headwater.core.errors import StaleMember, StoreError
from headwater.streams.consumer_assignment import ConsumerAssignment
from headwater.streams.group import Commit, PositionClaim
from headwater.streams.group_member import GroupMember
from headwater.streams.topic import TopicPartition


class TransactionProgress:
    """The work of a consumer since `hold`, which counts with the transaction or not at all. Not thread-safe."""

    def __init__(self, assignment: ConsumerAssignment, member: GroupMember, *, auto_ack: bool) -> None:
        self._assignment = assignment
        self._member = member
        self._auto_ack = auto_ack

    def hold(self) -> None:
        """Commit nothing from now on: what is done is part of a transaction, and partitions are kept until its end."""
        assignment = self._assignment
        if assignment.holding:
            raise StoreError("the consumer is part of another transaction: end that one first")
        refused = assignment.commit()
        if refused:
            assignment.refresh_soon()
            assignment.forget(refused)
            assignment.lost = False  # as told here
            raise StaleMember(self._member.refusal(refused))
        assignment.refresh()  # what others wait for goes now, even if it was handed out and never acknowledged
        assignment.holding = True

    def claim(self) -> PositionClaim | None:
        """Return what is done since `hold`; raises StaleMember when something of it was taken away."""
        if self._assignment.lost:
            raise StaleMember("this consumer lost partitions that it had read from: others handle those records")
        cursors, member = self._assignment.cursors, self._member
        if self._auto_ack:
            cursors.take_as_done()
        commits = cursors.done()
        if member.group_name is None or not commits:
            return None
        return PositionClaim(member.group_name, member.id, commits, member.known(cursors, commits))

    def decided(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """These positions were decided over in a generation of the group."""
        for partition in commits:
            self._assignment.cursors[partition].generation = generation

    def begin_anew(self) -> None:
        """Nobody knows whether what is done was committed: go on from the group's positions."""
        self._assignment.refresh_soon()
        self._assignment.drop(frozenset(self._assignment.cursors))

    def let_go(self, *, committed: bool) -> None:
        """The transaction is over. Records that it has not committed are read again."""
        assignment = self._assignment
        assignment.holding = assignment.lost = False
        if assignment.owing:
            assignment.refresh_soon()  # they are let go at the next poll, or when the next transaction begins
        for cursor in assignment.cursors.values():
            if committed:
                cursor.committed = cursor.acks.position
            elif cursor.delivered > cursor.committed:
                cursor.move(cursor.committed)
