"""Staging: many processes write, one transaction publishes. On every kind of store."""

# ruff: noqa: PT012 - it is the end of a block that raises, and a block has several statements

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

import headwater as hw
from headwater import Staged, Store
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import encode
from headwater.streams.transaction import STAGES_KEPT
from headwater.testing import FailingDisk, Failpoint, ManualClock, RecordingDisk
from headwater.testing.trace import Created, DirectorySynced, Renamed, Synced
from tests.log.test_fork import in_child
from tests.streams.test_transactions_unfinished import no_room_for
from tests.support.backends import OpenDirectoryStore, OpenStore

ON_A_CLUSTER = True
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def stage(store: Store, *values: bytes, topic: str = "orders", partition: int = 0) -> Staged:
    """One frame for each value."""
    with store.stage() as staging:
        for value in values:
            staging.append(store.describe_topic(topic), partition, encode([value]))
        return staging.seal()


def values(store: Store, topic: str = "orders") -> list[bytes]:
    return [record.value for partition in store.topic(topic).partitions() for record in partition.records()]


def stages(store: Store) -> list[str]:
    return sorted(path.name for path in Path(str(store), "__transactions").glob("*.stage"))


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    store = open_store()
    store.create_topic("orders", partitions=2)
    store.create_topic("invoices")
    return store


def test_what_was_staged_is_visible_when_it_is_adopted_and_committed(store: Store) -> None:
    first = stage(store, b"a", b"b")
    second = stage(store, b"c", topic="invoices")
    assert (first.records, second.records) == (2, 1)
    with store.transaction() as block:
        block.adopt(first)
        block.adopt(second)
        receipt = block.producer("orders").send(b"own", partition=0)
        assert values(store) == []
    assert values(store) == [b"own", b"a", b"b"]
    assert values(store, "invoices") == [b"c"]
    assert receipt.wait(300) == 0


def test_an_empty_stage_is_nothing(store: Store) -> None:
    staged = stage(store)
    assert staged == Staged()
    with store.transaction() as block:
        block.adopt(staged)
    assert block.state == "committed"


def test_a_frame_over_the_limit_is_refused_with_its_place(store: Store) -> None:
    store.alter_topic("orders", max_frame_bytes=4096)
    with pytest.raises(hw.InvalidRecord, match=r"orders/1: a frame of \d+ bytes"):
        stage(store, bytes(5000), partition=1)


def test_given_up_it_is_gone(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    with store.stage() as staging:
        staging.append(store.describe_topic("orders"), 0, encode([b"never sealed"]))
    with pytest.raises(ZeroDivisionError), store.transaction() as block:
        block.adopt(stage(store, b"given up"))
        raise ZeroDivisionError
    store.drop([stage(store, b"dropped")])
    assert stages(store) == []
    assert values(store) == []


def test_a_dropped_stage_cannot_be_committed(store: Store) -> None:
    staged = stage(store, b"a")
    store.drop([staged])
    with pytest.raises(hw.TransactionAborted), store.transaction() as block:
        block.adopt(staged)
    assert values(store) == []


def test_a_repeated_batch_counts_once_and_the_first_one_counts(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders", partitions=2)
    for partition, state in ((0, "committed"), (1, "repeated")):  # a batch that is done again may be routed otherwise
        with store.transaction(writer="job", sequence=7) as block:
            block.adopt(stage(store, b"%d" % partition, partition=partition))
        assert block.state == state
    assert values(store) == [b"0"]
    assert stages(store) == []


def test_another_process_stages_and_dies(open_directory_store: OpenDirectoryStore, tmp_path: Path) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    path = str(store)

    def write() -> None:
        with hw.open(path) as own:
            (tmp_path / "message").write_bytes(pickle.dumps(stage(own, b"from the child")))

    in_child(write)
    with store.transaction(writer="job", sequence=0) as block:
        block.adopt(pickle.loads((tmp_path / "message").read_bytes()))
    assert values(store) == [b"from the child"]


def test_a_commit_that_has_decided_keeps_its_stages_whatever_is_dropped(
    open_directory_store: OpenDirectoryStore,
) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders")
    staged = stage(store, b"decided")
    no_room_for(disk, "orders")
    with pytest.raises(hw.TransactionUnfinished), store.transaction(writer="job", sequence=0) as block:
        block.adopt(staged)
    store.drop([staged])
    os.utime(Path(str(store), "__transactions", *staged.files), (0, 0))
    assert store.sweep_stages(1.0) == 0
    disk.failpoints.clear()
    with store.transaction(writer="job", sequence=0) as block:
        block.adopt(stage(store, b"again"))
    assert block.state == "repeated"
    assert values(store) == [b"decided"]
    assert stages(store) == []


def test_what_is_carried_out_in_two_goes_is_there_once(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders")
    store.create_topic("invoices")
    no_room_for(disk, "invoices")
    with pytest.raises(hw.TransactionUnfinished), store.transaction() as block:
        block.adopt(stage(store, b"a"))
        block.adopt(stage(store, b"b", topic="invoices"))
    assert values(store) == [b"a"]
    again = open_directory_store()
    assert (values(again), values(again, "invoices")) == ([b"a"], [b"b"])
    assert stages(again) == []


def test_the_steward_removes_what_nobody_has_adopted_for_a_day(open_directory_store: OpenDirectoryStore) -> None:
    clock = ManualClock()
    store = open_directory_store(clock=clock)
    store.create_topic("orders")
    for value in (b"old", b"new"):
        os.utime(Path(str(store), "__transactions", *stage(store, value).files), (clock.now_ns() / 1e9,) * 2)
        clock.advance(2)
    clock.advance(STAGES_KEPT - 3)
    assert store.steward().run_once().dropped_stages == 1
    assert len(stages(store)) == 1


def test_stages_and_their_names_are_durable_before_the_decision(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    with DirectoryStore(tmp_path / "store", disk=disk) as store:
        store.create_topic("orders")
        staged = stage(store, b"a")
        with store.transaction(writer="job", sequence=0) as block:
            block.adopt(staged)
    [name] = staged.files
    [created] = [step for step in disk.trace if isinstance(step, Created) and step.path.name == name]
    [decided] = [step for step in disk.trace if isinstance(step, Renamed) and step.target.suffix == ".committed"]
    between = disk.trace[created.number : decided.number]
    synced = [step.number for step in between if isinstance(step, Synced) and step.file == created.file]
    named = [step for step in between if isinstance(step, DirectorySynced) and step.path == created.path.parent]
    assert len(synced) == 1
    assert named


# Owners.


def write(store: Store, number: int, owner: str | None, *, takeover: bool = False, value: bytes | None = None) -> str:
    with store.transaction(writer="job", sequence=number, owner=owner, takeover=takeover) as block:
        block.adopt(stage(store, value or f"{owner}{number}".encode()))
        block.producer("invoices").send(value or f"{owner}{number}".encode())
    return block.state


def test_another_owners_numbers_are_not_taken_for_done(store: Store) -> None:
    for number in range(3):
        assert write(store, number, "a") == "committed"
    with pytest.raises(hw.WriterTaken, match="'job' belongs to 'a', not to 'b'"):
        write(store, 0, "b")
    with pytest.raises(hw.WriterTaken):
        write(store, 3, None)
    assert write(store, 3, "a") == "committed"
    assert values(store) == [b"a0", b"a1", b"a2", b"a3"]


def test_a_writer_that_has_no_owner_is_not_given_to_one(store: Store) -> None:
    assert write(store, 0, None) == "committed"
    with pytest.raises(hw.WriterTaken, match="transactions without an owner"):
        write(store, 0, "a")
    assert write(store, 0, "a", takeover=True) == "committed"


def test_after_a_takeover_numbers_begin_anew_and_sequences_rise(store: Store) -> None:
    assert [write(store, number, "a") for number in (4, 5, 5)] == ["committed", "committed", "repeated"]
    assert [write(store, number, "b", takeover=True) for number in (0, 0, 1)] == ["committed", "repeated", "committed"]
    with pytest.raises(hw.WriterTaken):
        write(store, 6, "a")
    assert values(store) == values(store, "invoices") == [b"a4", b"a5", b"b0", b"b1"]


def test_an_owner_that_comes_back_does_not_repeat_what_it_did(store: Store) -> None:
    write(store, 0, "a")
    write(store, 1, "a")
    write(store, 0, "b", takeover=True)
    assert write(store, 1, "a", takeover=True) == "repeated"
    assert write(store, 1, "b") == "committed"  # it is still b's
    assert write(store, 2, "a", takeover=True) == "committed"
    assert write(store, 1, "b", takeover=True) == "repeated"
    assert values(store) == values(store, "invoices") == [b"a0", b"a1", b"b0", b"b1", b"a2"]


def test_a_takeover_that_dies_before_its_decision_is_taken_up(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders")
    store.create_topic("invoices")
    write(store, 0, "a")
    disk.failpoints.append(
        Failpoint(operation="rename", path=lambda path: path.suffix == ".stage", error=errno.EIO, times=1)
    )
    with pytest.raises(hw.HeadwaterError):
        write(store, 0, "b", takeover=True)
    assert write(store, 0, "b") == "committed"
    assert write(store, 0, "b") == "repeated"
    assert values(store) == [b"a0", b"b0"]


@pytest.mark.parametrize(
    "options", [{"owner": "a"}, {"takeover": True}, {"writer": "job", "sequence": 0, "takeover": True}]
)
def test_owners_without_writers_are_refused(store: Store, options: dict[str, object]) -> None:
    with pytest.raises(hw.InvalidConfiguration):
        store.transaction(**options)  # type: ignore[arg-type]
