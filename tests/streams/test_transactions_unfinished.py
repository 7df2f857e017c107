"""Transactions that fail: before the decision nothing has happened, after it everything will, whoever comes next."""

# ruff: noqa: PT012 - it is the end of a block that raises, and a block has several statements

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater as hw
from headwater import Store
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.transactions import LedgerCoordinator
from headwater.streams.group import Commit
from headwater.streams.transaction import STAGES_KEPT
from headwater.testing import FailingDisk, Failpoint, ManualClock
from tests.log.test_fork import in_child
from tests.streams.test_transactions import ORDERS, committed, fill, transform, values
from tests.support.backends import OpenDirectoryStore

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

TRANSACTIONS = "__transactions"


def create(store: Store) -> None:
    for name in ("orders", "invoices", "shipments"):
        store.create_topic(name)


def files(store: Store, suffix: str = "") -> list[str]:
    """Return the names of the files that transactions have left."""
    return sorted(path.name for path in Path(str(store), TRANSACTIONS).glob(f"*{suffix}") if path.is_file())


def slots(store: Store) -> list[str]:
    return sorted(path.name for path in Path(str(store), TRANSACTIONS, "writers").glob("slot-*.lock"))


def is_log_of(topic: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix == ".log" and path.parent.parent.name == topic


def no_room_for(disk: FailingDisk, topic: str) -> Failpoint:
    point = Failpoint(operation="pwritev", path=is_log_of(topic), error=errno.ENOSPC, times=1_000)
    disk.failpoints.append(point)
    return point


def leave_undone(store: DirectoryStore, disk: FailingDisk, writer: str | None = None) -> None:
    """Decide a transaction whose second topic has no room."""
    no_room_for(disk, "shipments")
    sequence = None if writer is None else 1
    with pytest.raises(hw.TransactionUnfinished), store.transaction(writer=writer, sequence=sequence) as block:
        block.producer("invoices", linger=3600.0).send(b"first")
        receipt = block.producer("shipments", linger=3600.0).send(b"second")
    assert block.state == "committed"
    with pytest.raises(hw.TransactionUnfinished):
        receipt.wait(60)


def is_done(store: Store) -> bool:
    """Everything is there once, and nothing is left to do."""
    assert values(store, "invoices") == [b"first"]
    assert values(store, "shipments") in ([], [b"second"])
    return values(store, "shipments") == [b"second"] and files(store) == []


# Decided, and not carried out.


def test_opening_the_store_carries_it_out(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk)
    assert not is_done(store)
    assert is_done(open_directory_store())


def test_a_store_that_cannot_carry_it_out_opens_all_the_same(
    open_directory_store: OpenDirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk)
    again = open_directory_store(disk=disk)
    assert "cannot be carried out yet" in caplog.text
    assert not is_done(again)
    disk.failpoints.clear()
    again.steward().run_once()
    assert is_done(again)


def test_the_steward_carries_it_out_and_says_so(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk)
    report = store.steward().run_once()
    assert report.finished_transactions == 0
    assert any(error.startswith("transactions:") for error in report.errors)
    disk.failpoints.clear()
    assert store.steward().run_once(dry_run=True).finished_transactions == 1
    assert not is_done(store)
    assert store.steward().run_once().finished_transactions == 1
    assert is_done(store)
    assert store.steward().run_once().finished_transactions == 0


def test_the_next_transaction_in_its_place_carries_it_out_first(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk)
    with pytest.raises(hw.WriteFailed), store.transaction() as block:
        block.producer("invoices").send(b"third")
    assert block.state == "aborted"
    disk.failpoints.clear()
    with store.transaction() as block:
        block.producer("shipments").send(b"third")
    assert values(store, "invoices") == [b"first"]
    assert values(store, "shipments") == [b"second", b"third"]
    assert files(store) == []


def test_one_that_is_stuck_does_not_hold_the_others_up(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    store.create_topic("returns")
    with store.transaction():
        pass  # what comes now has a higher number than the one that is stuck, and its turn behind that
    with store.transaction() as other:
        other.producer("returns").send(b"other")
        leave_undone(store, disk)
        disk.failpoints.append(Failpoint(path=is_log_of("returns"), error=errno.ENOSPC))
        with pytest.raises(hw.TransactionUnfinished):
            other.commit()
    assert len(files(store, ".committed")) == 2
    with pytest.raises(hw.WriteFailed):
        store.roll_forward()
    assert values(store, "returns") == [b"other"]
    disk.failpoints.clear()
    store.roll_forward()
    assert is_done(store)


def test_a_named_block_that_is_undone_is_carried_out_by_its_repetition(
    open_directory_store: OpenDirectoryStore,
) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk, "nightly")
    disk.failpoints.clear()
    with store.transaction(writer="nightly", sequence=1) as block:
        block.producer("invoices").send(b"not again")
    assert block.state == "repeated"
    assert is_done(store)


def test_whoever_takes_over_the_partition_carries_it_out_first(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store, other = open_directory_store(disk=disk), open_directory_store()
    create(store)
    fill(store, 4)
    no_room_for(disk, "invoices")
    with store.consumer("orders", group="billing") as inbox:
        with pytest.raises(hw.TransactionUnfinished):
            transform(inbox, 2)
        assert committed(other) == 0
        # This consumer goes on behind what is decided, and cannot decide anything before it is done.
        with pytest.raises(hw.WriteFailed):
            transform(inbox, 2)
    with other.consumer("orders", group="billing") as successor:
        assert transform(successor) == [b"2", b"3"]
    assert values(other, "invoices") == [b"0", b"1", b"2", b"3"]
    assert committed(other) == 4


def test_a_consumer_that_cannot_carry_it_out_does_not_begin(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store, other = open_directory_store(disk=disk), open_directory_store(disk=disk)
    create(store)
    fill(store, 4)
    no_room_for(disk, "invoices")
    with store.consumer("orders", group="billing") as inbox, pytest.raises(hw.TransactionUnfinished):
        transform(inbox, 2)
    with other.consumer("orders", group="billing") as successor:
        with pytest.raises(hw.WriteFailed):
            successor.poll()
        disk.failpoints.clear()
        assert [record.value for record in successor.poll()] == [b"2", b"3"]


def test_a_reset_after_the_decision_wins(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    fill(store, 4)
    no_room_for(disk, "invoices")
    with store.consumer("orders", group="billing") as inbox:
        with pytest.raises(hw.TransactionUnfinished):
            transform(inbox)
        key = (store.describe_topic("orders").uuid, 0)
        store.group("billing").reset({ORDERS: Commit(key, 1)})
        disk.failpoints.clear()
        store.roll_forward()
        assert committed(store) == 1
        assert values(store, "invoices") == [b"0", b"1", b"2", b"3"]  # what is decided happens all the same
        assert transform(inbox) == [b"1", b"2", b"3"]


def test_positions_that_are_passed_already_do_not_move_back(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    fill(store, 4)
    no_room_for(disk, "invoices")
    with store.consumer("orders", group="billing") as inbox:
        with pytest.raises(hw.TransactionUnfinished):
            transform(inbox, 2)
        for record in inbox.poll():
            inbox.ack(record)
        inbox.commit()
        disk.failpoints.clear()
        store.roll_forward()
        assert committed(store) == 4


def test_a_group_whose_generation_a_power_loss_took_moves_all_the_same(
    open_directory_store: OpenDirectoryStore,
) -> None:
    store = open_directory_store()
    create(store)
    fill(store, 4)
    for _ in range(3):  # generations pass
        with store.consumer("orders", group="billing") as inbox:
            transform(inbox, 1)
    store.close()
    group = Path(str(store)) / "__groups" / "billing"
    (group / "lock").unlink()
    (group / "group.json").unlink()
    store = open_directory_store()
    with store.consumer("orders", group="billing") as inbox:
        assert transform(inbox) == [b"3"]
    assert committed(store) == 4
    key = (store.describe_topic("orders").uuid, 0)
    before = store.group("billing").position(key)
    store.group("billing").reset({ORDERS: Commit(key, 0)})
    after = store.group("billing").position(key)
    assert before is not None
    assert after is not None
    assert after.generation > before.generation


def test_two_that_carry_out_the_same_decision_do_it_once(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    leave_undone(store, disk)
    disk.failpoints.clear()
    coordinator = store.transactions
    assert isinstance(coordinator, LedgerCoordinator)
    (decision,) = coordinator.ledger.decided()
    assert len(coordinator.apply(decision)) == 2
    assert coordinator.apply(decision) == {}  # gone
    assert is_done(store)


def test_an_interruption_after_the_decision_does_not_take_it_back(
    open_directory_store: OpenDirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_directory_store()
    create(store)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), store.transaction() as block:
        block.producer("invoices").send(b"first")
        receipt = block.producer("shipments").send(b"second")
        patched.setattr(store._transactions, "apply", interrupted)
    assert block.state == "committed"
    with pytest.raises(hw.TransactionUnfinished):
        receipt.wait(60)
    store.roll_forward()
    assert is_done(store)


# Not decided.


def prepared(store: Store, disk: FailingDisk) -> int:
    """Return how many operations a transaction takes up to its decision, which is the rename of its stage."""
    before = len(disk.operations)
    with store.transaction() as block:
        block.producer("invoices").send(b"a")
    done = disk.operations[before:]
    return next(n for n, call in enumerate(done, 1) if call.operation == "rename" and call.path.suffix == ".stage")


def test_a_disk_that_fails_before_the_decision_leaves_nothing(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    prepared(store, disk)
    steps = prepared(store, disk)
    for number in range(1, steps + 1):
        disk.failpoints.append(Failpoint(number=len(disk.operations) + number, error=errno.ENOSPC))
        with pytest.raises(hw.WriteFailed), store.transaction() as block:
            block.producer("invoices").send(b"no")
        disk.failpoints.clear()
        assert block.state == "aborted"
        assert files(store) == []
    assert values(store, "invoices") == [b"a", b"a"]
    assert slots(store) == ["slot-0.lock"]


def test_a_slot_that_could_not_be_reserved_is_used_again(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    point = Failpoint(path=lambda path: path.parent.name == "writers", error=errno.ENOSPC, times=1_000)
    disk.failpoints.append(point)
    for _ in range(5):
        with pytest.raises(hw.WriteFailed):
            store.transaction()
    disk.failpoints.clear()
    with store.transaction() as block:
        block.producer("invoices").send(b"a")
    assert len(slots(store)) == 1
    assert values(store, "invoices") == [b"a"]


def test_slots_are_as_many_as_transactions_at_once(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    create(store)
    for _ in range(10):
        with store.transaction() as first, open_directory_store() as other, other.transaction() as second:
            first.producer("invoices").send(b"a")
            second.producer("invoices").send(b"b")
    assert len(slots(store)) == 2


def test_a_slot_is_kept_by_its_transaction_when_the_store_is_closed(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    create(store)
    block = store.transaction()
    store.close()
    with open_directory_store() as other, other.transaction():
        assert slots(store) == ["slot-0.lock", "slot-1.lock"]
    block.abort()
    with open_directory_store() as first, open_directory_store() as second, first.transaction(), second.transaction():
        assert slots(store) == ["slot-0.lock", "slot-1.lock"]


def test_a_consumer_that_cannot_begin_takes_no_slot(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    create(store)
    with store.consumer("orders", group="billing") as inbox, store.transaction(inbox):
        for _ in range(5):
            with pytest.raises(hw.StoreError, match="another transaction"):
                store.transaction(inbox)
    assert len(slots(store)) == 2


def test_a_stage_that_nobody_touches_for_a_day_is_dropped(open_directory_store: OpenDirectoryStore) -> None:
    clock = ManualClock()
    store = open_directory_store(clock=clock)
    create(store)
    block = store.transaction()
    with block.producer("invoices") as out:
        receipt = out.send(b"a")
    (name,) = files(store, ".stage")
    leftover = Path(str(store), TRANSACTIONS, "writers", "slot-9.1.1.tmp")
    leftover.touch()
    for path in (Path(str(store), TRANSACTIONS, name), leftover):
        os.utime(path, (clock.now_ns() / 1e9,) * 2)
    clock.advance(STAGES_KEPT - 60)
    assert store.steward().run_once().dropped_stages == 0
    clock.advance(120)
    assert store.steward().run_once(dry_run=True).dropped_stages == 1
    assert store.steward().run_once().dropped_stages == 1
    assert files(store) == []
    assert not leftover.exists()
    with pytest.raises(hw.TransactionAborted, match="dropped"):
        block.commit()
    with pytest.raises(hw.TransactionAborted):
        _ = receipt.offset
    assert block.state == "aborted"


# Damage.


@pytest.mark.parametrize("damage", ["empty", "cut", "trailer", "content", "name", "frame"])
def test_a_damaged_decision_is_reported_and_the_store_goes_on(
    open_directory_store: OpenDirectoryStore, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    create(store)
    with pytest.raises(hw.TransactionUnfinished), store.transaction() as block:
        block.producer("invoices").send(b"lost")
        block.producer("shipments").send(b"lost")
        disk.failpoints.append(Failpoint(operation="sync_directory", error=errno.EIO))
    (name,) = files(store, ".committed")
    path = Path(str(store), TRANSACTIONS, name)
    content = bytearray(path.read_bytes())
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[:-100])
        case "trailer":
            path.write_bytes(content[:-1] + b"\0")
        case "content":
            path.write_bytes(content.replace(b'"named":false', b'"named":0    '))
        case "name":
            path.rename(path.with_name(f"{'0' * 32}.5.0.committed"))
        case _:
            second = content.index(b"HWF1", 10)
            content[second + 200] ^= 1
            path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        again = open_directory_store()
    assert caplog.text.count("decided and is damaged") == 1
    assert TRANSACTIONS in caplog.text
    with again.transaction() as block:
        block.producer("invoices").send(b"next")
    assert again.steward().run_once().errors == ()
    assert caplog.text.count("decided and is damaged") == 1
    assert values(again, "invoices") == [b"next"]
    assert values(again, "shipments") == []


def test_a_damaged_slot_is_passed_over_and_a_damaged_name_is_told(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    create(store)
    for block in (store.transaction(), store.transaction(writer="nightly", sequence=1)):
        block.producer("invoices").send(b"a")
        block.commit()
    store.close()
    for path in Path(str(store), TRANSACTIONS, "writers").iterdir():
        path.write_bytes(b"{")
    again = open_directory_store()
    with again.transaction() as block:
        block.producer("invoices").send(b"b")
    with pytest.raises(hw.Damaged, match="not a writer"), again.transaction(writer="nightly", sequence=1) as block:
        block.producer("invoices").send(b"c")
    assert values(again, "invoices") == [b"a", b"a", b"b"]


# Forks.


def test_a_forked_child_cannot_use_the_transaction_and_leaves_it_alone(
    open_directory_store: OpenDirectoryStore,
) -> None:
    store = open_directory_store()
    create(store)
    fill(store, 2)
    with store.consumer("orders", group="billing") as inbox, store.transaction(inbox) as block:
        out = block.producer("invoices")
        for record in inbox.poll():
            out.send(record.value)
            inbox.ack(record)
        out.flush()
        assert in_child(block.commit) == hw.PartitionForked.__name__
        assert in_child(lambda: block.producer("invoices")) == hw.PartitionForked.__name__
        assert in_child(block.abort) == "None"
        assert in_child(lambda: block.__exit__(ValueError, None, None)) == "None"
    assert values(store, "invoices") == [b"0", b"1"]
    assert committed(store) == 2
    assert in_child(store.transaction) == hw.PartitionForked.__name__


def test_a_childs_copies_of_the_locks_do_not_outlive_the_parent(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    create(store)
    with store.transaction() as block:
        block.producer("invoices").send(b"a")
    parent, child = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        child.send(b"born")
        child.recv(1)  # until the parent lets it go
        os._exit(0)
    try:
        parent.recv(4)
        store.close()
        with open_directory_store().transaction() as block:
            block.producer("invoices").send(b"b")
        assert slots(store) == ["slot-0.lock"]
    finally:
        parent.send(b".")
        os.waitpid(pid, 0)
        parent.close()
        child.close()
