"""The disks of `headwater.testing` are what the proofs stand on: their images are listed here by hand."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path, PurePath
from random import Random

import pytest

from headwater.testing import Device, FailingDisk, Failpoint, RecordingDisk

PAGE = 4096
SECTOR = 512
DRAWS = 1000

Image = dict[str, bytes | None]
Script = Callable[[RecordingDisk, Path], None]


def images(tmp_path: Path, script: Script, *, torn: bool = False, reordered: bool = False) -> list[Image]:
    """Every image that a power loss after the script may leave, each once; by so many draws that none is missed."""
    tmp_path.mkdir(exist_ok=True)
    disk = RecordingDisk(tmp_path)
    script(disk, tmp_path)
    device = Device().follow(disk.trace)
    possible: list[Image] = []
    random = Random(1)
    for _ in range(DRAWS):
        drawn = device.image(random, torn=torn, reordered=reordered)
        image = {str(path): content for path, content in drawn.items() if path != PurePath()}
        if image not in possible:
            possible.append(image)
    return possible


def same(possible: list[Image], expected: list[Image]) -> bool:
    return all(image in expected for image in possible) and all(image in possible for image in expected)


def put(disk: RecordingDisk, path: Path, content: bytes, *, sync: bool = True) -> None:
    """A file with a durable name."""
    fd = disk.create(path)
    if content:
        disk.write(fd, content, 0)
    if sync:
        disk.sync(fd)
    disk.close(fd)
    disk.sync_directory(path.parent)


# File data.


def test_what_was_synced_survives(tmp_path: Path) -> None:
    assert images(tmp_path, lambda disk, root: put(disk, root / "a", b"new")) == [{"a": b"new"}]


def test_an_unsynced_overwrite_is_old_or_new(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"old")
        fd = disk.open(root / "a")
        disk.write(fd, b"new", 0)
        disk.close(fd)

    assert same(images(tmp_path, script), [{"a": b"old"}, {"a": b"new"}])


def test_every_unsynced_version_of_a_page_may_be_there(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"1")
        fd = disk.open(root / "a")
        disk.write(fd, b"2", 0)
        disk.write(fd, b"3", 0)
        disk.close(fd)

    assert same(images(tmp_path, script), [{"a": b"1"}, {"a": b"2"}, {"a": b"3"}])


def test_pages_survive_independently(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"o" * PAGE * 2)
        fd = disk.open(root / "a")
        disk.write(fd, b"n" * PAGE * 2, 0)
        disk.close(fd)

    expected: list[Image] = [{"a": first * PAGE + second * PAGE} for first in (b"o", b"n") for second in (b"o", b"n")]
    assert same(images(tmp_path, script), expected)


def test_an_unsynced_length_is_anywhere_between(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"12")
        fd = disk.open(root / "a")
        disk.write(fd, b"34", 2)
        disk.close(fd)

    expected: list[Image] = [{"a": b"12"}, {"a": b"123"}, {"a": b"1234"}, {"a": b"12\0"}, {"a": b"12\0\0"}]
    assert same(images(tmp_path, script), expected)


def test_a_page_that_was_not_written_is_zeros(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"")
        fd = disk.open(root / "a")
        disk.write(fd, b"x", PAGE)
        disk.sync(fd)
        disk.close(fd)

    assert images(tmp_path, script) == [{"a": bytes(PAGE) + b"x"}]


def test_an_unsynced_truncation_may_not_have_happened(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"123")
        fd = disk.open(root / "a")
        disk.truncate(fd, 1)
        disk.close(fd)

    expected: list[Image] = [{"a": b"1"}, {"a": b"12"}, {"a": b"123"}, {"a": b"1\0"}, {"a": b"1\0\0"}]
    assert same(images(tmp_path, script), expected)


def test_what_was_truncated_and_synced_does_not_come_back(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"x" * PAGE * 2)
        fd = disk.open(root / "a")
        disk.truncate(fd, 1)
        disk.sync(fd)
        disk.write(fd, b"y", PAGE)
        disk.sync(fd)
        disk.close(fd)

    assert images(tmp_path, script) == [{"a": b"x" + bytes(PAGE - 1) + b"y"}]


def test_a_torn_page_mixes_sectors(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"o" * SECTOR * 2)
        fd = disk.open(root / "a")
        disk.write(fd, b"n" * SECTOR * 2, 0)
        disk.close(fd)

    whole: list[Image] = [{"a": b"o" * SECTOR * 2}, {"a": b"n" * SECTOR * 2}]
    torn: list[Image] = [{"a": b"o" * SECTOR + b"n" * SECTOR}, {"a": b"n" * SECTOR + b"o" * SECTOR}]
    assert same(images(tmp_path / "whole", script), whole)
    assert same(images(tmp_path / "torn", script, torn=True), whole + torn)


def test_a_sync_is_of_one_file(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"")
        put(disk, root / "b", b"")
        for name, sync in (("a", False), ("b", True)):
            fd = disk.open(root / name)
            disk.write(fd, b"x", 0)
            if sync:
                disk.sync(fd)
            disk.close(fd)

    expected: list[Image] = [{"a": content, "b": b"x"} for content in (b"", b"\0", b"x")]
    assert same(images(tmp_path, script), expected)


def test_after_a_failed_sync_a_later_one_does_not_help(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"o" * PAGE * 2)
        fd = disk.open(root / "a")
        disk.write(fd, b"n", 0)
        disk.fail_sync(fd)
        disk.write(fd, b"n", PAGE)
        disk.sync(fd)
        disk.close(fd)

    second = b"n" + b"o" * (PAGE - 1)
    assert same(images(tmp_path, script), [{"a": b"o" * PAGE + second}, {"a": second + second}])


def test_a_page_written_again_after_a_failed_sync_is_synced_again(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"o")
        fd = disk.open(root / "a")
        disk.write(fd, b"n", 0)
        disk.fail_sync(fd)
        disk.write(fd, b"n", 0)
        disk.sync(fd)
        disk.close(fd)

    assert images(tmp_path, script) == [{"a": b"n"}]


# Names.


def test_a_created_file_needs_a_sync_of_its_directory(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        fd = disk.create(root / "a")
        disk.write(fd, b"x", 0)
        disk.sync(fd)
        disk.close(fd)

    assert same(images(tmp_path, script), [{}, {"a": b"x"}])


def test_a_name_that_survived_says_nothing_of_the_data(tmp_path: Path) -> None:
    possible = images(tmp_path, lambda disk, root: put(disk, root / "a", b"x", sync=False))
    assert same(possible, [{"a": b""}, {"a": b"\0"}, {"a": b"x"}])


def test_a_rename_over_a_name_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"old")
        put(disk, root / "b", b"new")
        disk.rename(root / "b", root / "a")

    assert same(images(tmp_path, script), [{"a": b"old", "b": b"new"}, {"a": b"new"}])


def test_a_rename_into_another_directory_may_leave_both_names_or_none(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        for name in ("from", "to"):
            disk.mkdir(root / name)
        disk.sync_directory(root)
        put(disk, root / "from" / "a", b"x")
        disk.rename(root / "from" / "a", root / "to" / "b")

    possible = [{path for path, content in image.items() if content is not None} for image in images(tmp_path, script)]
    assert all(names in possible for names in (set(), {"from/a"}, {"to/b"}, {"from/a", "to/b"}))


def test_a_rename_before_the_sync_of_the_file_may_name_nothing(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"old")
        put(disk, root / "b", b"n", sync=False)
        disk.rename(root / "b", root / "a")
        disk.sync_directory(root)

    assert same(images(tmp_path, script), [{"a": b""}, {"a": b"\0"}, {"a": b"n"}])


def test_an_unlinked_file_comes_back_until_its_directory_is_synced(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"x")
        disk.unlink(root / "a")

    assert same(images(tmp_path / "unsynced", script), [{}, {"a": b"x"}])

    def synced(disk: RecordingDisk, root: Path) -> None:
        script(disk, root)
        disk.sync_directory(root)

    assert images(tmp_path / "synced", synced) == [{}]


def test_changes_of_names_happen_in_their_order(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"x")
        disk.unlink(root / "a")
        put_unnamed(disk, root / "b")

    assert same(images(tmp_path / "1", script), [{"a": b"x"}, {}, {"b": b""}])
    expected: list[Image] = [{"a": b"x"}, {}, {"b": b""}, {"a": b"x", "b": b""}]
    assert same(images(tmp_path / "2", script, reordered=True), expected)


def put_unnamed(disk: RecordingDisk, path: Path) -> None:
    disk.close(disk.create(path))


def test_a_name_used_again_is_any_of_its_files(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"1")
        disk.unlink(root / "a")
        fd = disk.create(root / "a")
        disk.write(fd, b"2", 0)
        disk.sync(fd)
        disk.close(fd)

    assert same(images(tmp_path, script), [{"a": b"1"}, {}, {"a": b"2"}])


def test_a_file_created_over_another_is_that_file_emptied(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        put(disk, root / "a", b"1")
        disk.close(disk.create(root / "a"))

    assert same(images(tmp_path, script), [{"a": b"1"}, {"a": b"\0"}, {"a": b""}])


def test_a_file_that_is_opened_or_created_keeps_what_it_has(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        for data, position in ((b"ab", 0), (b"c", 2)):
            fd = disk.open_or_create(root / "a")
            disk.write(fd, data, position)
            disk.sync(fd)
            disk.close(fd)
        assert (root / "a").read_bytes() == b"abc"

    assert same(images(tmp_path, script), [{}, {"a": b"abc"}])


def test_a_directory_that_was_not_synced_takes_its_files_along(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        disk.mkdir(root / "d")
        put(disk, root / "d" / "a", b"x")

    assert same(images(tmp_path, script), [{}, {"d": None, "d/a": b"x"}])


def test_a_directory_made_whole_is_durable(tmp_path: Path) -> None:
    def script(disk: RecordingDisk, root: Path) -> None:
        disk.make_directory(root / "d" / "e")

    assert images(tmp_path, script) == [{"d": None, "d/e": None}]


# The trace.


def test_what_was_there_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"x")
    assert images(tmp_path, lambda *_: None) == [{"d": None, "d/a": b"x"}]


def test_a_power_loss_comes_after_any_step(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = RecordingDisk(root)
    put(disk, root / "a", b"1")
    disk.mark("acknowledged")
    here = len(disk.trace) - 1
    put(disk, root / "a", b"2")
    disk.power_loss(tmp_path / "then", Random(1), after=here)
    disk.power_loss(tmp_path / "now", Random(1))
    assert (tmp_path / "then" / "a").read_bytes() == b"1"
    assert (tmp_path / "now" / "a").read_bytes() == b"2"
    assert [step.number for step in disk.trace] == list(range(len(disk.trace)))


def test_images_come_back_with_their_seed(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    for name in "abcdef":
        put(disk, tmp_path / name, b"x" * 3 * PAGE, sync=False)
        disk.rename(tmp_path / name, tmp_path / name.upper())
    device = Device().follow(disk.trace)
    first, second = (device.image(Random(7), torn=True, reordered=True) for _ in range(2))
    assert first == second


# Failpoints.


def test_operations_are_counted(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.make_directory(tmp_path / "d")
    disk.replace(tmp_path / "d" / "a", b"xyz")
    disk.unlink(tmp_path / "d" / "a")
    names = [done.operation for done in disk.operations]
    assert names == ["mkdir", "sync_directory", "create", "pwritev", "sync", "rename", "unlink"]
    assert disk.operations[3].size == 3


def test_opening_or_creating_counts_when_it_creates(tmp_path: Path) -> None:
    disk = FailingDisk()
    for _ in range(2):
        fd = disk.open_or_create(tmp_path / "a")
        disk.write(fd, b"a", 0)
        disk.close(fd)
    assert [operation.operation for operation in disk.operations] == ["create", "pwritev", "pwritev"]
    assert (tmp_path / "a").read_bytes() == b"a"


def test_an_error_at_a_number(tmp_path: Path) -> None:
    disk = FailingDisk(RecordingDisk(tmp_path), Failpoint(number=3, error=errno.EIO))
    fd = disk.create(tmp_path / "a")
    disk.write(fd, b"1", 0)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.write(fd, b"2", 0)
    disk.write(fd, b"3", 0)
    disk.close(fd)
    assert (tmp_path / "a").read_bytes() == b"3"


def test_an_error_by_name_and_path_after_some(tmp_path: Path) -> None:
    point = Failpoint(operation="sync", path=lambda path: path.suffix == ".log", skip=1, error=errno.EIO)
    disk = FailingDisk(RecordingDisk(tmp_path), point)
    other, log = disk.create(tmp_path / "other"), disk.create(tmp_path / "a.log")
    twin = os.dup(log)
    disk.sync(log)
    disk.sync(other)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.sync(twin)
    disk.sync(log)
    for fd in (other, log, twin):
        disk.close(fd)


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    disk = FailingDisk(RecordingDisk(tmp_path), Failpoint(operation="pwritev", part=2, times=3))
    fd = disk.create(tmp_path / "a")
    disk.writev(fd, [b"123", b"4567", b"89"], 0, 9)
    disk.close(fd)
    assert (tmp_path / "a").read_bytes() == b"123456789"


@pytest.mark.parametrize(("count", "size"), [(5, 700_000), (3000, 10), (3, 3_000_000)])
def test_a_long_write_goes_in_several_calls_and_is_whole(tmp_path: Path, count: int, size: int) -> None:
    disk = FailingDisk(RecordingDisk(tmp_path), Failpoint(operation="pwritev", part=11, times=1))
    fd = disk.create(tmp_path / "a")
    parts = [bytes([number % 251]) * size for number in range(count)]
    disk.writev(fd, [b"head", *parts], 5, 4 + count * size)
    disk.close(fd)
    assert (tmp_path / "a").read_bytes() == b"\0" * 5 + b"head" + b"".join(parts)


def test_a_full_disk_takes_what_fits_and_then_nothing(tmp_path: Path) -> None:
    disk = FailingDisk(RecordingDisk(tmp_path), room=5)
    fd = disk.create(tmp_path / "a")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk.write(fd, b"12345678", 0)
    assert (tmp_path / "a").read_bytes() == b"12345"
    disk.write(fd, b"abc", 0)
    disk.truncate(fd, 3)
    assert disk.room == 2
    disk.close(fd)
    disk.unlink(tmp_path / "a")
    assert disk.room == 5


def test_death_leaves_a_part_of_a_write(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        disk = FailingDisk(RecordingDisk(tmp_path), Failpoint(operation="pwritev", part=2, death=True))
        disk.write(disk.create(tmp_path / "a"), b"1234", 0)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"12"


def test_a_failed_sync_reaches_the_recording_disk(tmp_path: Path) -> None:
    recording = RecordingDisk(tmp_path)
    disk = FailingDisk(recording, Failpoint(operation="sync", error=errno.EIO))
    fd = disk.create(tmp_path / "a")
    disk.sync_directory(tmp_path)
    disk.write(fd, b"x", 0)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.sync(fd)
    disk.sync(fd)
    disk.close(fd)
    random = Random(1)
    device = Device().follow(recording.trace)
    assert {device.image(random)[PurePath("a")] for _ in range(DRAWS)} == {b"", b"\0", b"x"}
