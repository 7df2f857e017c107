"""Groups: who reads what, how partitions change hands, and which commits are refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headwater as hw
from headwater import Consumer, Store, TopicPartition
from headwater.embedded.directory_group import DirectoryGroup
from headwater.embedded.group import EmbeddedGroup
from headwater.streams.fixed_share import shares_of
from headwater.streams.group import Commit, Group, TopicKey
from headwater.testing import ManualClock
from tests.support.backends import Handles
from tests.support.patience import PACES, Patience

LATE = 400.0
ON_A_CLUSTER = True


@pytest.fixture
def handle(handle: Handles) -> Handles:
    """The store has a topic of four partitions that have ten records each."""
    handle().create_topic("orders", partitions=4)
    fill(handle(), 10)
    return handle


def fill(store: Store, count: int) -> None:
    with store.producer("orders") as out:
        for partition in range(4):
            for number in range(count):
                out.send(str(number).encode(), partition=partition)


def tp(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


def committed(store: Store, number: int, group: str = "g") -> int | None:
    position = store.group(group).position((store.describe_topic("orders").uuid, number))
    return None if position is None else position.offset


def settle(*members: Consumer) -> None:
    """Let every member notice what has changed, twice: the first time some wait for those who come later."""
    for _ in range(2):
        for member in members:
            member._assignment.refresh_soon()
            member.assignment()


def test_members_share_the_partitions_and_nobody_reads_twice(handle: Handles) -> None:
    first = handle().consumer("orders", group="g")
    assert len(first.assignment()) == 4
    second = handle().consumer("orders", group="g")
    assert second.assignment() == frozenset()
    settle(first, second)
    assert len(first.assignment()) == len(second.assignment()) == 2
    read = [(record.partition, record.offset) for member in (first, second) for record in member.poll()]
    assert len(read) == len(set(read)) == 40
    second.close()
    settle(first)
    assert len(first.assignment()) == 4
    first.close()


def test_members_keep_what_others_do_not_need(handle: Handles) -> None:
    store = handle()
    revoked: list[TopicPartition] = []
    members = [handle().consumer(["o*"], group="g", on_revoke=revoked.extend)]
    settle(*members)
    for moved in (2, 1, 1):
        members.append(handle().consumer(["o*"], group="g", on_revoke=revoked.extend))
        settle(*members)
        assert len(revoked) == moved
        revoked.clear()
    before = [member.assignment() for member in members]
    store.create_topic("oats", partitions=5)
    settle(*members)
    assert not revoked
    after = [member.assignment() for member in members]
    assert sorted(map(len, after)) == [2, 2, 2, 3]
    assert all(old <= new for old, new in zip(before, after, strict=True))
    members.pop().close()
    settle(*members)
    assert not revoked
    assert sorted(len(member.assignment()) for member in members) == [3, 3, 3]
    for member in members:
        member.close()


def test_a_partition_changes_hands_only_when_its_owner_lets_go_and_with_what_it_has_done(handle: Handles) -> None:
    store = handle()
    with store.consumer("orders", group="g") as holder:
        for record in holder.poll():
            holder.ack(record)
        with handle().consumer("orders", group="g") as newcomer:
            assert newcomer.poll() == []  # the other one has not polled since
            assert holder.poll() == []
            assert newcomer.poll(timeout=0.05) == []
            assert len(newcomer.assignment()) == 2
            assert [committed(store, number) for number in range(4)] == [10, 10, 10, 10]


@pytest.mark.parametrize("which", [0, 3])
def test_what_was_read_ahead_of_a_lost_partition_is_not_handed_out(handle: Handles, which: int) -> None:
    with handle().consumer("orders", group="g") as holder:
        first = [holder.poll(1)[0] for _ in range(4)]  # of each partition, and the rest of their frames is read ahead
        lost = tp(first[which].partition)
        with handle().consumer("orders", group="g") as newcomer:
            settle(holder, newcomer)
            (owner, other) = (holder, newcomer) if lost in holder.assignment() else (newcomer, holder)
            assert lost not in {tp(record.partition) for record in other.poll()}
            offsets = [record.offset for record in owner.poll() if tp(record.partition) == lost]
            assert offsets == list(range(1 if owner is holder else 0, 10))
            if owner is newcomer:
                with pytest.raises(hw.StaleMember):
                    holder.ack(first[which])


def test_callbacks_tell_what_comes_and_goes_and_the_last_word_is_committed(handle: Handles) -> None:
    store = handle()
    events: list[tuple[str, int]] = []
    holder: Consumer

    def revoked(partitions: frozenset[TopicPartition]) -> None:
        events.append(("revoke", len(partitions)))
        for lost in partitions:  # still its own: the work at hand can be finished
            holder.ack_range(*lost, 0, 10)

    holder = store.consumer(
        "orders", group="g", on_assign=lambda new: events.append(("assign", len(new))), on_revoke=revoked
    )
    holder.poll()
    with handle().consumer("orders", group="g") as newcomer:
        settle(holder, newcomer)
        mine = {partition.partition for partition in newcomer.assignment()}
        assert events == [("assign", 4), ("revoke", 2)]
        assert [committed(store, number) for number in mine] == [10, 10]
        assert newcomer.poll() == []
    holder.close()


def test_a_callback_may_seek(handle: Handles) -> None:
    inbox: Consumer

    def assigned(partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            inbox.seek(*partition, -1)

    inbox = handle().consumer("orders", group="g", on_assign=assigned)
    assert [record.offset for record in inbox.poll()] == [9, 9, 9, 9]
    inbox.close()


def test_a_member_that_does_not_poll_in_time_loses_all_and_joins_again(
    handle: Handles, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = handle()
    slow = store.consumer("orders", group="g")
    old = slow.poll()
    clock.advance(LATE)
    with handle().consumer("orders", group="g") as quick:
        assert len(quick.assignment()) == 4
        for record in quick.poll():
            if record.partition == 0:
                quick.ack(record)
        quick.commit()
        for record in old:
            slow.ack(record)
        with pytest.raises(hw.StaleMember):
            slow.commit()
        assert [committed(store, number) for number in range(4)] == [10, 0, 0, 0]
        with caplog.at_level(logging.WARNING):
            assert slow.poll() == []
        assert "refused" in caplog.text
        with pytest.raises(hw.StaleMember):
            slow.ack(old[0])
        settle(quick, slow)
        assert len(slow.assignment()) == len(quick.assignment()) == 2
        repeated = [(record.partition, record.offset) for member in (slow, quick) for record in member.poll()]
        assert {number for number, _ in repeated} <= {1, 2, 3}
    slow.close()


def test_a_member_that_waits_for_records_is_not_late(handle: Handles) -> None:
    def stays(pace: int) -> bool:
        with handle().consumer("orders", group="g", max_poll_interval=0.3 * pace) as inbox:
            while records := inbox.poll():
                for record in records:
                    inbox.ack(record)
            member = inbox._member.id
            assert inbox.poll(timeout=0.5 * pace) == []
            inbox.assignment()
            return inbox._member.id == member

    assert any(stays(pace) for pace in PACES)


def test_reset_moves_running_members_and_refuses_what_they_did_before(handle: Handles) -> None:
    store = handle()
    with store.consumer("orders", group="g") as inbox:
        for record in inbox.poll():
            inbox.ack(record)
        inbox.commit()
        fill(store, 5)
        late = inbox.poll()
        uuid = store.describe_topic("orders").uuid
        handle().group("g").reset({tp(0): Commit((uuid, 0), 3), tp(1): Commit((uuid, 1), 12)})
        for record in late:
            inbox.ack(record)
        with pytest.raises(hw.StaleMember):
            inbox.commit()
        assert [committed(store, number) for number in range(4)] == [3, 12, 15, 15]
        read = sorted((record.partition, record.offset) for record in inbox.poll())
        assert read == [(0, offset) for offset in range(3, 15)] + [(1, offset) for offset in range(12, 15)]


def test_reset_moves_fixed_shares_too_and_refuses_what_they_did_before(handle: Handles) -> None:
    store = handle()
    uuid = store.describe_topic("orders").uuid
    told: list[tuple[str, list[int]]] = []

    def tell(event: str) -> Callable[[frozenset[TopicPartition]], None]:
        return lambda partitions: told.append((event, sorted(partition.partition for partition in partitions)))

    shares = [
        handle().consumer("orders", group="g", static=(n, 2), on_assign=tell("assign"), on_revoke=tell("revoke"))
        for n in shares_of("orders", 4, 2)[:2]
    ]
    assert [sorted(partition.partition for partition in share.assignment()) for share in shares] == [[0, 3], [1, 2]]
    for share in shares:
        for record in share.poll():
            share.ack(record)
        share.commit()
    fill(store, 5)
    late = shares[0].poll()
    told.clear()
    handle().group("g").reset({tp(0): Commit((uuid, 0), 3), tp(1): Commit((uuid, 1), 12)})
    for record in late:
        shares[0].ack(record)
    for _ in range(2):
        with pytest.raises(hw.StaleMember, match="orders/0"):
            shares[0].commit()
    assert [committed(store, number) for number in range(4)] == [3, 12, 10, 15]
    read = [(record.partition, record.offset) for record in shares[0].poll()]
    assert read == [(0, offset) for offset in range(3, 15)]
    read = sorted((record.partition, record.offset) for record in shares[1].poll())
    assert read == [(1, offset) for offset in range(12, 15)] + [(2, offset) for offset in range(10, 15)]
    assert told == [("revoke", [0]), ("assign", [0]), ("revoke", [1]), ("assign", [1])]
    for share in shares:
        share.ack_range("orders", shares.index(share), 0, 15)
        share.commit()
        share.close()
    assert [committed(store, number) for number in range(4)] == [15, 15, 10, 15]


def test_the_transaction_of_a_fixed_share_is_refused_after_a_reset_and_otherwise_goes_on(handle: Handles) -> None:
    store = handle()
    store.create_topic("copies")
    uuid = store.describe_topic("orders").uuid

    def copy(share: Consumer, limit: int) -> None:
        with store.transaction(share) as together:
            out = together.producer("copies")
            for record in share.poll(limit):
                out.send(record.value)
                share.ack(record)
            if limit == 3:
                handle().group("g").reset({tp(0): Commit((uuid, 0), 9)})

    with store.consumer("orders", group="g", static=(shares_of("orders", 4, 4)[0], 4)) as share:
        copy(share, 2)
        handle().group("g").reset({tp(1): Commit((uuid, 1), 5)})  # another's: its generation rises, no more
        copy(share, 2)
        share.ack_range("orders", 0, 0, len(share.poll(1)) + 4)
        share.commit()
        assert committed(store, 0) == 5
        with pytest.raises(hw.StaleMember, match="orders/0"):
            copy(share, 3)
        assert committed(store, 0) == 9
        assert [record.offset for record in share.poll()] == [9]
    assert [record.value for record in store.topic("copies").recent()] == [b"0", b"1", b"2", b"3"]


def test_a_fixed_share_that_waits_is_woken_by_a_reset(handle: Handles) -> None:
    store = handle()
    uuid = store.describe_topic("orders").uuid
    with store.consumer("orders", group="g", static=(shares_of("orders", 4, 4)[0], 4), refresh_interval=60) as share:
        share.ack_range("orders", 0, 0, len(share.poll()))
        reset = threading.Timer(0.05, handle().group("g").reset, [{tp(0): Commit((uuid, 0), 7)}])
        reset.start()
        assert [record.offset for record in share.poll(timeout=300)] == [7, 8, 9]
        reset.join()


def test_positions_move_back_only_by_reset(handle: Handles) -> None:
    store = handle()
    group = store.group("g")
    uuid = store.describe_topic("orders").uuid
    assert group.commit(None, {tp(0): Commit((uuid, 0), 7)}) == frozenset()
    with pytest.raises(hw.CommitRefused, match="use reset"):
        group.commit(None, {tp(1): Commit((uuid, 1), 5), tp(0): Commit((uuid, 0), 6)})
    assert (committed(store, 0), committed(store, 1)) == (7, None)
    group.reset({tp(0): Commit((uuid, 0), 2)})
    assert committed(store, 0) == 2


def test_a_position_beyond_the_end_is_brought_back_to_it(handle: Handles) -> None:
    store = handle()
    uuid = store.describe_topic("orders").uuid
    store.group("g").reset({tp(0): Commit((uuid, 0), 99)})
    with store.consumer("orders", group="g") as inbox:
        assert {record.partition for record in inbox.poll()} == {1, 2, 3}
        assert committed(store, 0) == 10
        fill(store, 2)
        records = [record for record in inbox.poll() if record.partition == 0]
        assert [record.offset for record in records] == [10, 11]
        inbox.ack(records[0])
        inbox.commit()
        assert committed(store, 0) == 11


def test_a_group_has_members_or_fixed_shares(handle: Handles) -> None:
    store, other = handle(), handle()
    with store.consumer("orders", group="g") as inbox, other.consumer("orders", group="g", static=(0, 1)) as share:
        inbox.poll()
        for record in share.poll():
            share.ack(record)
        with pytest.raises(hw.StaleMember, match="not both"):
            share.poll()


def test_a_group_without_members_keeps_its_positions(handle: Handles) -> None:
    with handle().consumer("orders", group="g", auto_ack=True) as inbox:
        inbox.poll()
    info = handle().group("g").describe()
    assert (info.members, info.owners) == ({}, {})
    assert sorted(position.offset for position in info.positions.values()) == [10, 10, 10, 10]


@pytest.mark.embedded("pruning is a steward's work, done where the group is kept")
def test_positions_in_topics_that_are_gone_are_pruned_after_a_time(handle: Handles, clock: ManualClock) -> None:
    store, other = handle(), handle()
    group, gone, kept = store.group("g"), bytes(16), store.describe_topic("orders").uuid
    group.commit(None, {TopicPartition("gone", 0): Commit((gone, 0), 5), tp(0): Commit((kept, 0), 6)})
    clock.advance(10)
    group.commit(None, {TopicPartition("gone", 1): Commit((gone, 1), 7)})
    before_ns = clock.now_ns() - 5 * 10**9

    def is_old(committed_ns: int) -> bool:
        return committed_ns < before_ns

    assert other.group("g").position((gone, 0)) is not None
    coordinator = embedded(store)
    assert coordinator.prune({kept}, is_old, dry_run=True) == 1
    assert len(group.committed()) == 3
    assert coordinator.prune({kept}, is_old) == 1
    assert coordinator.prune({kept}, is_old) == 0
    for reader in (group, other.group("g")):
        assert {key: position.offset for key, position in reader.committed().items()} == {(gone, 1): 7, (kept, 0): 6}
        assert reader.position((gone, 0)) is None


def embedded(store: Store) -> EmbeddedGroup:
    """The coordinator of the group, where the store keeps it itself."""
    coordinator = store._coordinator("g")
    assert isinstance(coordinator, EmbeddedGroup)
    return coordinator


def commit_and_look(group: Group, key: TopicKey) -> Iterator[str]:
    """Commit to one partition, and to one of a topic that is gone, each time another one; says what is wrong."""
    for offset in range(1, 300):
        gone = bytes([key[1], offset % 256] * 8)
        group.commit(None, {tp(key[1]): Commit(key, offset), TopicPartition("gone", 0): Commit((gone, 0), offset)})
        position = group.position(key)
        if position is None or position.offset != offset:
            yield f"{offset} was committed, {position} found"


def look(group: Group, keys: list[TopicKey], stop: threading.Event) -> Iterator[str]:
    """Read positions until told to stop; says what is wrong."""
    last = dict.fromkeys(keys, 0)
    while not stop.is_set():
        for key in keys:
            position = group.position(key)
            if position is not None and (position[:2] != key or position.offset < last[key]):
                yield f"{position} after {last[key]}"
            last[key] = last[key] if position is None else position.offset


@pytest.mark.embedded("pruning is a steward's work, done where the group is kept")
def test_pruning_disturbs_neither_those_who_commit_nor_those_who_read(handle: Handles) -> None:
    uuid, stop = handle().describe_topic("orders").uuid, threading.Event()
    keys = [(uuid, number) for number in range(4)]

    def prune(group: EmbeddedGroup) -> None:
        while not stop.is_set():
            group.prune({uuid}, lambda _: True)

    with ThreadPoolExecutor(6) as pool:
        pruner = pool.submit(prune, embedded(handle()))
        reader = pool.submit(list, look(handle().group("g"), keys, stop))
        committers = [pool.submit(list, commit_and_look(handle().group("g"), key)) for key in keys]
        assert [committer.result() for committer in committers] == [[], [], [], []]
        stop.set()
        pruner.result()
        assert reader.result() == []
    group = embedded(handle())
    group.prune({uuid}, lambda _: True)
    assert {key: position.offset for key, position in group.committed().items()} == dict.fromkeys(keys, 299)


def test_a_damaged_document_costs_the_memberships_and_no_position(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=4)
        fill(store, 10)
        with store.consumer("orders", group="g", refresh_interval=0.001) as inbox:
            for record in inbox.poll():
                inbox.ack(record)
            inbox.commit()
            document = next((tmp_path / "store").glob("**/group.json"))
            document.write_bytes(document.read_bytes()[:-20])
            inbox._assignment.refresh_soon()
            assert inbox.poll() == []
            assert len(inbox.assignment()) == 4
            fill(store, 1)
            assert len(inbox.poll()) == 4


def test_members_of_a_closed_store_are_dead(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=4)
        other = hw.open(tmp_path / "store")
        assert len(other.consumer("orders", group="g").assignment()) == 4
        other.close()
        with store.consumer("orders", group="g") as inbox:
            assert len(inbox.assignment()) == 4
            group = store._coordinator("g")
            assert isinstance(group, DirectoryGroup)
            assert len(group.describe().members) == 1


def test_a_group_without_members_can_be_forgotten(handle: Handles) -> None:
    store = handle()
    whenever = (1 << 63) - 1
    with store.consumer("orders", group="g", auto_ack=True) as inbox:
        while sum(committed(store, number) or 0 for number in range(4)) < 40:
            inbox.poll(timeout=0.1)
        assert not store.group("g").expire(whenever)
    assert committed(store, 0) == 10
    assert not store.group("g").expire(0)
    assert store.group("g").expire(whenever, dry_run=True)
    assert committed(store, 0) == 10
    assert store.group("g").expire(whenever)
    assert not store.group("g").describe().positions
    assert not store.group("g").expire(whenever)
    with store.consumer("orders", group="g") as inbox:
        assert next(iter(inbox.poll(timeout=300))).offset == 0


def test_a_group_with_a_fixed_share_is_not_forgotten(handle: Handles) -> None:
    store, whenever = handle(), (1 << 63) - 1
    share = store.consumer("orders", group="g", static=(0, 1))
    for record in share.poll(timeout=300):
        share.ack(record)
    share.commit()
    done = {number: committed(store, number) for number in range(4)}
    assert 10 in done.values()
    assert not handle().group("g").expire(whenever, dry_run=True)
    assert not handle().group("g").expire(whenever)
    assert {number: committed(store, number) for number in range(4)} == done
    assert [member.static for member in handle().group("g").describe().members.values()] == [True]
    share.close()
    assert not handle().group("g").describe().members
    assert handle().group("g").expire(whenever)


def test_a_fixed_share_that_was_taken_out_uses_the_group_again(handle: Handles) -> None:
    store = handle()
    with store.consumer("orders", group="g", static=(0, 1), refresh_interval=0.01) as share:
        share.poll(timeout=300)
        user = share._member.user
        assert user is not None
        handle()._coordinator("g").leave(user, lambda _: [])  # as if nothing had been heard of it for too long
        patience = Patience(60)
        while share._member.user == user and not patience.exhausted():
            share.poll(timeout=0.01)
        assert list(store.group("g").describe().members) == [share._member.user]
        assert not store.group("g").expire((1 << 63) - 1)


def test_members_and_fixed_shares_of_a_group_take_nothing_from_each_other(handle: Handles) -> None:
    with (
        handle().consumer("orders", group="g", static=(0, 1)),
        handle().consumer("orders", group="g") as member,
    ):
        assert len(member.assignment()) == 4
