"""Membership as a state machine: whoever joins, leaves, dies or settles, and in whatever order.

A model of the members goes along: each one holds what it was last told is its own, as a consumer does, and lets go
only when it settles. No partition is ever held by two.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.streams.membership import Member, Membership
from headwater.streams.topic import TopicPartition


class GroupMachine(RuleBasedStateMachine):
    """Members of one group over one topic, which may grow."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Membership()
        self.held: dict[str, frozenset[TopicPartition]] = {}
        self.numbers = count()
        self.partitions = 0

    def partitions_of(self, _: Member) -> list[TopicPartition]:
        return [TopicPartition("orders", number) for number in range(self.partitions)]

    @initialize(partitions=st.integers(0, 12))
    def create(self, partitions: int) -> None:
        self.partitions = partitions

    @rule()
    def join(self) -> None:
        member_id = f"{next(self.numbers):03d}"
        before = dict(self.group.target)
        self.group.join(member_id, Member(["orders"], 0))
        self.group.assign(self.partitions_of)
        self.held[member_id] = frozenset()
        moved = {partition for partition, member in self.group.target.items() if before.get(partition) != member}
        assert moved == {partition for partition, member in self.group.target.items() if member == member_id}
        assert len(moved) == self.partitions // len(self.held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave_or_die(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.held)))
        before, targets = self.group.generation, dict(self.group.target)
        assert self.group.remove(member_id)
        assert not self.group.remove(member_id)
        assert self.group.generation == before + 1
        del self.held[member_id]
        self.group.assign(self.partitions_of)
        moved = {partition for partition, member in targets.items() if self.group.target.get(partition) != member}
        assert moved == {partition for partition, member in targets.items() if member == member_id}

    @precondition(lambda self: self.held)
    @rule(data=st.data(), holds_on=st.booleans())
    def settle(self, data: st.DataObject, holds_on: bool) -> None:
        """With `holds_on` the member still has work in the partitions that it should let go."""
        self.settle_one(data.draw(st.sampled_from(sorted(self.held))), holds_on)

    def settle_one(self, member_id: str, holds_on: bool) -> bool:
        """Settle a member, and return whether it waits for others."""
        before = self.held[member_id]
        settled = self.group.rebalance(member_id, before)
        assert settled.leaving <= before
        assert settled.taken == settled.owned - before
        if settled.leaving and not holds_on:
            self.held[member_id] = before - settled.leaving
            settled = self.group.rebalance(member_id, self.held[member_id])
            assert not settled.leaving
        self.held[member_id] = settled.owned | settled.leaving
        return settled.waiting

    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        self.partitions += more
        before = dict(self.group.target)
        assert self.group.assign(self.partitions_of) is bool(self.held)
        assert not self.group.assign(self.partitions_of)
        assert before.items() <= self.group.target.items()

    @rule()
    def go_through_a_file(self) -> None:
        again = Membership.from_dict(self.group.to_dict())
        assert again == self.group
        self.group = again

    @precondition(lambda self: self.held)
    @rule()
    def everybody_settles(self) -> None:
        for member_id in self.held:
            self.settle_one(member_id, holds_on=False)
        # The first time some waited for those who came later.
        waiting = [member_id for member_id in self.held if self.settle_one(member_id, holds_on=False)]
        assert not waiting
        owners = Counter(partition for held in self.held.values() for partition in held)
        assert owners == Counter(self.partitions_of(Member([], 0)))
        shares = [len(held) for held in self.held.values()]
        assert max(shares) - min(shares) <= 1

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners = Counter(partition for held in self.held.values() for partition in held)
        assert all(number == 1 for number in owners.values())
        assert {partition: member for member, held in self.held.items() for partition in held} == self.group.owners


GroupMachine.TestCase.settings = settings(stateful_step_count=40)
TestMembership = GroupMachine.TestCase


def test_members_share_only_what_they_want() -> None:
    topics = {"a": 3, "b": 2}

    def partitions_of(member: Member) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in member.topics for number in range(topics[name])]

    group = Membership()
    group.join("one", Member(["a"], 0))
    group.join("two", Member(["a", "b"], 0))
    group.assign(partitions_of)
    targets = {partition for partition, member in group.target.items() if member == "one"}
    assert targets <= set(partitions_of(Member(["a"], 0)))
    assert set(group.target) == set(partitions_of(Member(["a", "b"], 0)))


def group_of(topics: dict[str, int], *wishes: list[str]) -> Membership:
    """A group whose members, `a` and on, have joined in turn and have what is theirs."""
    group = Membership()
    for number, wanted in enumerate(wishes):
        group.join(chr(ord("a") + number), Member(wanted, 0))
        group.assign(lambda member: all_of(member, topics))
        for _ in range(2):
            for member_id in group.members:
                group.rebalance(member_id)
    return group


def all_of(member: Member, topics: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name in member.topics for number in range(topics.get(name, 0))]


def loads(group: Membership) -> list[int]:
    counts = Counter(group.target.values())
    return [counts[member_id] for member_id in sorted(group.members)]


def test_topics_that_come_and_go_move_as_little_as_they_can() -> None:
    topics = {"m": 6, "z": 2}
    group = group_of(topics, *[["a", "m", "z"]] * 4)
    before = dict(group.target)
    topics["a"] = 3
    assert group.assign(lambda member: all_of(member, topics))
    assert before.items() <= group.target.items()
    assert sorted(loads(group)) == [2, 3, 3, 3]
    before = dict(group.target)
    del topics["m"]
    group.assign(lambda member: all_of(member, topics))
    share = Counter(member for partition, member in before.items() if partition.topic != "m")
    moved = [partition for partition, member in group.target.items() if before[partition] != member]
    assert len(moved) == sum(max(share[member] - 2, 0) for member in share)
    assert max(loads(group)) - min(loads(group)) <= 1


def test_a_join_leaves_every_topic_spread() -> None:
    group = group_of({"hot": 4, "cold": 4}, *[["cold", "hot"]] * 2)
    spread = Counter((partition.topic, member) for partition, member in group.target.items())
    assert set(spread.values()) == {2}


def test_members_that_want_different_topics_are_as_even_as_that_allows() -> None:
    group = group_of({"x": 6, "y": 1}, ["x"], ["x", "y"], ["y"])
    assert loads(group) == [3, 3, 1]
    assert all(member != "a" for partition, member in group.target.items() if partition.topic == "y")


def test_a_partition_that_nobody_has_taken_yet_goes_back_to_its_owner() -> None:
    group = group_of({"t": 4}, ["t"], ["t"])
    owners = dict(group.owners)
    group.join("c", Member(["t"], 0))
    group.assign(lambda member: all_of(member, {"t": 4}))
    assert loads(group) == [1, 2, 1] or loads(group) == [2, 1, 1]
    group.remove("c")
    group.assign(lambda member: all_of(member, {"t": 4}))
    assert group.target == owners == group.owners


def test_a_document_without_the_generation_of_its_targets_is_read() -> None:
    group = group_of({"t": 4}, ["t"], ["t"])
    document = group.to_dict()
    del document["assigned"]
    again = Membership.from_dict(document)
    assert not again.assign(lambda member: all_of(member, {"t": 4}))
    assert again == group
