"""Forking: a child must open the partition again, and its parent does not notice that it was born or died."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from headwater import PartitionBusy, PartitionConfig, PartitionForked
from headwater.log import DirectoryPartition, Disk, Partition, encode
from headwater.streams import receipt
from tests.log.test_close import USES
from tests.support.backends import OpenDirectory

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(work: Callable[[], object]) -> str:
    """Return the answer of `work` in a forked child, or the name of its error."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "nothing"
        try:
            answer = str(work())
        except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it is
            answer = type(error).__name__
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


@pytest.mark.parametrize("use", USES)
def test_a_handle_cannot_be_used_in_a_child(open_directory: OpenDirectory, use: str) -> None:
    partition = open_directory()
    partition.append(encode([b"a"]))
    assert in_child(lambda: USES[use](partition)) == PartitionForked.__name__
    assert USES["records"](partition)


def test_the_error_says_what_to_do(open_directory: OpenDirectory) -> None:
    partition = open_directory()

    def message() -> str:
        try:
            partition.bounds()
        except PartitionForked as error:
            return str(error)
        return "no error"

    assert "open it again in the child" in in_child(message)


def test_the_parent_goes_on(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    for number in range(5):
        in_child(partition.close)
        assert partition.append(encode([b"x"])).base_offset == number
    assert partition.recovery_reports == []


def test_a_child_opens_the_partition_again(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    partition.append(encode([b"parent"]))

    def append() -> int:
        with DirectoryPartition(partition.path) as again:
            return again.append(encode([b"child"])).base_offset

    assert in_child(append) == "1"
    assert partition.append(encode([b"parent"])).base_offset == 2


class ForkingDisk(Disk):
    """Calls back in the middle of a sync, while the lock is held."""

    def __init__(self) -> None:
        self.during: Callable[[], None] | None = None

    def sync(self, fd: int) -> None:
        super().sync(fd)
        during, self.during = self.during, None
        if during is not None:
            during()


def test_the_end_of_a_child_does_not_release_the_parents_lock(open_directory: OpenDirectory) -> None:
    disk = ForkingDisk()
    partition = open_directory(disk=disk)
    other = open_directory(PartitionConfig(lock_timeout=0))
    held = []

    def fork_and_try() -> None:
        assert in_child(lambda: None) == "None"
        with pytest.raises(PartitionBusy):
            other.append(encode([b"too early"]))
        held.append(True)

    disk.during = fork_and_try
    partition.append(encode([b"first"]))
    assert held == [True]
    other.append(encode([b"second"]))
    assert [record.value for record in partition.records()] == [b"first", b"second"]


def test_a_fork_while_threads_append_harms_neither_side(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    stop = threading.Event()
    counts = [0, 0, 0]

    def produce(number: int) -> None:
        while not stop.is_set():
            partition.append(encode([b"x"]))
            counts[number] += 1

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        answers = {in_child(lambda: append_to(partition)) for _ in range(30)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers == {PartitionForked.__name__}
    assert partition.bounds().end == sum(counts)


def append_to(partition: Partition) -> object:
    return partition.append(encode([b"x"]))


def test_interval_syncs_go_on_in_the_child(open_directory: OpenDirectory) -> None:
    config = PartitionConfig(sync=0.01)
    partition = open_directory(config, name="parent")
    partition.append(encode([b"starts the parent's thread"]))

    def append() -> bool:
        with DirectoryPartition(partition.path.with_name("child"), config) as own:
            own.append(encode([b"x"]))
            while own.bounds().durable_end == 0:
                threading.Event().wait(0.001)
            return True

    assert in_child(append) == "True"


def test_a_child_can_wait_for_receipts_whatever_the_parents_threads_do() -> None:
    held = threading.Event()

    def hold() -> None:
        with receipt._waiting:
            held.set()
            threading.Event().wait(0.2)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert in_child(lambda: receipt.Outcome(0).wait(0.01)) == "False"
    holder.join()


def test_forking_while_another_thread_closes_handles_blocks_neither(open_directory: OpenDirectory) -> None:
    """A fork takes a handle's mutex after the list of handles; closing must not take them in the other order."""
    forked = threading.Event()

    def open_and_close() -> None:
        while not forked.is_set():
            open_directory().close()

    closer = threading.Thread(target=open_and_close, daemon=True)
    closer.start()
    answers = {in_child(lambda: "alive") for _ in range(40)}
    forked.set()
    closer.join(300)
    assert answers == {"alive"}
    assert not closer.is_alive()
