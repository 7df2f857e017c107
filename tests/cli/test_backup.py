"""`hw backup`, `hw restore`, `hw steward` and `hw check` of whole stores, in directories and behind brokers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater import Record
from tests.support.command import Command, hw, local_hw

__all__ = ["hw", "local_hw"]


@pytest.fixture
def filled(hw: Command) -> Command:
    """A raw topic with gaps, a typed one that has grown, and a group."""
    with hw.open() as store:
        store.create_topic("orders", 2, segment_bytes=8192, compact=True)
        store.create_topic("trades", schema=pa.schema([("x", pa.int64())]))
        with store.producer("orders") as out:
            for number in range(300):
                out.send(b"v%d" % number * 10, b"k%d" % (number % 10), {"h": b"%d" % number})
                if number % 20 == 0:
                    out.flush()
        with store.producer("trades") as out:
            out.send({"x": 1})
        store.topic("trades").evolve(pa.schema([("x", pa.int64()), ("y", pa.string())]))
        with store.producer("trades") as out:
            out.send({"x": 2, "y": "two"})
        with store.consumer("orders", group="billing", static=(0, 1)) as inbox:
            for record in inbox.poll(50, timeout=300):
                inbox.ack(record)
    return hw


def content(directory: str | Path) -> dict[str, list[list[Record]]]:
    with headwater.open(directory) as store:
        return {
            name: [list(partition.records()) for partition in store.topic(name).partitions()] for name in store.topics()
        }


def more(hw: Command, count: int) -> None:
    with hw.open() as store, store.producer("orders") as out:
        for number in range(count):
            out.send(b"more", b"m%d" % number)


def test_a_backup_goes_on_where_it_was_and_a_restore_is_the_same_store(filled: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    first = filled.json("backup", backup)
    assert (first["topics"], first["copied_records"], first["records"]) == (2, 302, 302)
    assert filled.json("backup", backup)["copied_records"] == 0
    more(filled, 25)
    assert filled.json("backup", backup)["copied_records"] == 25
    with filled.open() as store:
        positions = store.group("billing").committed()
    before = content(filled.store)
    assert content(backup / "store") == before, "a backup is a store"
    told = filled.json("restore", backup, tmp_path / "restored")
    assert (told["records"], told["topics"]) == (327, 2)
    assert content(tmp_path / "restored") == before
    with headwater.open(tmp_path / "restored") as store:
        restored = store.group("billing").committed()
        assert {key: position.offset for key, position in restored.items()} == {
            key: position.offset for key, position in positions.items()
        }
        assert store.topic("trades").info.schemas, "it can be written to"
        with store.producer("trades") as out:
            out.send({"x": 3})
    assert filled.json("check", tmp_path / "restored")["damaged"] is False
    filled.refused("restore", backup, tmp_path / "restored", text="is not empty")
    filled.refused("restore", backup, "hw://127.0.0.1:1", text="hw topic copy")
    filled.refused("restore", backup, ".", text="is the current directory")
    filled.refused("backup", backup, "--topic", "oders", text="there is no topic 'oders'")
    filled("restore", backup, "--verify")  # a mistyped name has not spoiled it
    filled.refused("backup", tmp_path / "new", "--topic", "oders", text="there is no topic 'oders'")
    assert not (tmp_path / "new").exists()
    assert filled.json("restore", backup, tmp_path / "some", "--topic", "trades")["topics"] == 1
    assert list(content(tmp_path / "some")) == ["trades"]


def test_what_compaction_and_retention_removed_is_no_hindrance(filled: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with filled.open() as store:
        for partition in store.topic("orders").partitions():
            partition.roll()
            partition.compact()
    if filled.store.startswith("hw"):
        filled.refused("backup", backup, text="back up the broker's directory")
        return
    filled("backup", backup)
    assert content(backup / "store") == content(filled.store)
    more(filled, 50)
    with filled.open() as store:
        for partition in store.topic("orders").partitions():
            partition.roll()
            partition.compact()
            partition.delete_before(partition.bounds().end - 3)
    filled("backup", backup)
    assert content(backup / "store") == content(filled.store)
    with filled.open() as store:
        store.delete_topic("trades")
        store.create_topic("trades")
        with store.producer("trades") as out:
            out.send(b"another")
    filled("backup", backup)
    assert content(backup / "store") == content(filled.store)


def test_a_log_that_begins_within_a_frame_is_backed_up(hw: Command, tmp_path: Path) -> None:
    with hw.open() as store:
        store.create_topic("orders")
        log = store.topic("orders").partition(0)
        with store.producer("orders") as out:
            for number in range(5):
                out.send_batch([b"%d" % number] * 10)
            out.flush()
            log.delete_before(25)
            hw("backup", tmp_path / "late")
            assert content(tmp_path / "late" / "store") == content(hw.store)
            hw("backup", tmp_path / "early")
            out.send_batch([b"more"] * 10)
            out.send_batch([b"even more"] * 10)
            out.flush()
        log.delete_before(65)
    for name in ("late", "early"):
        hw("backup", tmp_path / name)
        assert content(tmp_path / name / "store") == content(hw.store)


def test_a_flipped_bit_in_a_backup_is_found_and_nothing_is_restored(filled: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    filled("backup", backup)
    filled("restore", backup, "--verify")
    file = max((backup / "store" / "orders").rglob("*.log"), key=lambda path: path.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 4
    file.write_bytes(damaged)
    filled.refused("restore", backup, "--verify", text="does not match its checksum")
    filled.refused("restore", backup, tmp_path / "restored", text="does not match its checksum")
    assert not (tmp_path / "restored").exists()
    filled.refused("restore", backup, tmp_path / "some", text="does not match its checksum")
    filled("restore", backup, tmp_path / "some", "--topic", "trades")
    assert not (tmp_path / "some" / "orders").exists(), "the first attempt left it unfinished"
    damaged[-3] ^= 4
    file.write_bytes(damaged)
    assert filled.json("restore", backup, tmp_path / "restored")["records"] == 302, "it goes on from what it had copied"
    manifest = backup / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"offset": ', '"offset": 1'))
    filled.refused("restore", backup, "--verify", text="does not match its own checksum")
    manifest.unlink()
    filled.refused("restore", backup, "--verify", text="was not finished")
    filled.refused("restore", tmp_path / "config", "--verify", text="is not a backup")
    filled.refused("backup", tmp_path / "config", text="is not empty, and not a backup")


@pytest.mark.parametrize("damaged", ["source", "copy"])
def test_damage_in_what_is_copied_file_by_file_is_found(local_hw: Command, tmp_path: Path, damaged: str) -> None:
    """A compacted topic in a directory is copied by its files, which nobody reads on the way."""
    backup = tmp_path / "backup"
    with local_hw.open() as store:
        topic = store.create_topic("orders", segment_bytes=8192, compact=True)
        with store.producer("orders") as out:
            for number in range(600):
                out.send(b"v%d" % number * 20, b"k%d" % (number % 90))
                if number % 20 == 0:
                    out.flush()
        for partition in topic.partitions():
            partition.roll()
            partition.compact()
    local_hw("backup", backup)
    root = Path(local_hw.store) if damaged == "source" else backup / "store"
    segments = sorted((root / "orders").rglob("*.log"))
    segment = max(segments[:-1], key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[-100] ^= 16
    segment.write_bytes(content)
    if damaged == "source":
        backup = tmp_path / "another"
    local_hw.refused("backup", backup, text="the copy is not sound")
    local_hw.refused("restore", backup, "--verify", text="was not finished")
    if damaged == "copy":
        shutil.rmtree(segment.parent)  # as the error says
        local_hw("backup", backup)
        local_hw("restore", backup, "--verify")


def kill_when(is_due: Callable[[], bool], *arguments: object) -> None:
    """Start a command, and kill it as soon as so much of its work is there."""
    process = subprocess.Popen([sys.executable, "-m", "headwater.cli", *map(str, arguments)], stdout=subprocess.DEVNULL)
    while not is_due() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_backup_and_a_restore_that_are_killed_go_on(local_hw: Command, tmp_path: Path) -> None:
    with local_hw.open() as store:
        store.create_topic("orders", 2)
        with store.producer("orders") as out:
            for number in range(60):
                out.send_batch([b"%d" % number * 2000] * 100, partition=number % 2)
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    for _ in range(3):
        kill_when(lambda: any(backup.glob("store/orders/0/*.log")), "backup", backup, "--store", local_hw.store)
    local_hw("backup", backup)
    assert content(backup / "store") == content(local_hw.store)
    local_hw("restore", backup, "--verify")
    for _ in range(3):
        kill_when(lambda: any(tmp_path.glob(".restored.restoring/orders/*/*.log*")), "restore", backup, restored)
    if not restored.exists():  # killed in time
        local_hw("restore", backup, restored)
    assert content(restored) == content(local_hw.store)
    assert not list(tmp_path.glob(".restored.restoring"))


def test_a_backup_of_another_store_is_refused(local_hw: Command, tmp_path: Path) -> None:
    local_hw("topic", "create", "orders")
    local_hw("produce", "orders", stdin="one\ntwo\n")
    shutil.copytree(local_hw.store, tmp_path / "twin")
    local_hw("produce", "orders", stdin="three\n")
    local_hw("backup", tmp_path / "backup")
    local_hw.store = str(tmp_path / "twin")
    local_hw("produce", "orders", stdin="drei\nvier\n")
    local_hw.refused("backup", tmp_path / "backup", text="is a different record in the backup")


# Check and steward.


def test_a_store_a_topic_and_a_partition_are_checked_and_repaired(local_hw: Command) -> None:
    hw, root = local_hw, Path(local_hw.store)
    hw("topic", "create", "orders", "-p", 2)
    hw("topic", "create", "trades", "-c", "x:int64")
    for partition in range(2):
        hw("produce", "orders", "--partition", partition, stdin="one\n")
    hw("produce", "trades", stdin='{"x": 1}\n')
    assert [len(hw.json("check", *paths)["partitions"]) for paths in ([root], [], [root / "orders"])] == [3, 3, 2]
    assert hw.json("check", root / "trades" / "0")["damaged"] is False, "its schemas are the topic's"
    state = root / "trades" / "0" / "state"
    state.write_bytes(bytes(state.stat().st_size))
    assert [finding["kind"] for finding in hw.json("check", root / "trades" / "0")["findings"]] == ["note"]
    repaired = hw.json("check", "--repair", root)
    assert (repaired["damaged"], len(repaired["repaired"])) == (False, 1)
    assert [partition["findings"] for partition in hw.json("check", root)["partitions"]] == [[], [], []]
    log = next((root / "trades" / "0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-9] + b"\xff" + log.read_bytes()[-8:])
    assert json.loads(hw.verdict("check", "--repair", root))["damaged"] is True


def test_the_steward_tells_what_it_would_do_and_does_it(hw: Command) -> None:
    hw("topic", "create", "orders", "--set", "segment_bytes=4KiB", "--set", "retention_bytes=4KiB")
    for _ in range(4):
        hw("produce", "orders", stdin="x" * 3000)
    planned = hw.json("steward", "--dry-run")
    assert (planned["dry_run"], planned["segments"] > 0) == (True, True)
    assert hw.json("topic", "describe", "orders")["parts"][0]["start"] == 0
    done = hw.json("steward", "--set", "protect_unread=false")
    assert done["segments"] == planned["segments"]
    assert hw.json("topic", "describe", "orders")["parts"][0]["start"] > 0
    hw.refused("steward", "--dry-run", "--forever", code=2, text="--dry-run runs once")


def test_a_steward_works_until_it_is_told_to_stop(local_hw: Command) -> None:
    local_hw("topic", "create", "orders")
    command = [sys.executable, "-m", "headwater.cli", "steward", "--forever", "--store", local_hw.store]
    with subprocess.Popen([*command, "--set", "interval=10ms"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reports = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
        process.communicate(timeout=300)
    assert (process.returncode, [report["errors"] for report in reports]) == (0, [[], []])
