"""With `recovery="raise"` an unsound end is left as it is, and reported; `hw check --repair` repairs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headwater as hw
from headwater import PartitionConfig, RecoveryRefused
from headwater.cli.storage.check import run
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, RecoveryReport, encode
from headwater.log.files.disk import REAL_DISK
from headwater.log.files.state import POISONED, StatePage
from tests.support.backends import OpenStore

REFUSING = PartitionConfig(recovery="raise")


def torn(directory: Path) -> None:
    with next(directory.glob("*.log")).open("ab") as file:
        file.write(b"half a frame")


def cut_short(directory: Path) -> None:
    path = next(directory.glob("*.log"))
    content = path.read_bytes()
    path.write_bytes(content[:-8])


def lost(directory: Path) -> None:
    next(directory.glob("*.log")).unlink()


def poisoned(directory: Path) -> None:
    page = StatePage(REAL_DISK, directory / "state")
    state, _ = page.read()
    assert state is not None
    page.write_both(state._replace(flags=POISONED))
    page.close()


def contents(directory: Path) -> dict[str, bytes]:
    """The files that recovery may change. Locks tell who held them, and the state counts failed recoveries."""
    paths = [path for path in directory.iterdir() if path.is_file() and path.name not in ("lock", "state")]
    return {path.name: path.read_bytes() for path in paths}


def write(directory: Path, config: PartitionConfig = REFUSING) -> None:
    with DirectoryPartition(directory, config) as partition:
        partition.append(encode([b"a", b"b"]))
        partition.append(encode([b"c"]))


@pytest.mark.parametrize("spoil", [torn, cut_short, lost, poisoned])
def test_an_unsound_end_is_left_as_it_is_and_reported(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    write(tmp_path)
    spoil(tmp_path)
    before = contents(tmp_path)
    for number in (1, 2):
        with pytest.raises(RecoveryRefused, match="hw check --repair") as refused:
            DirectoryPartition(tmp_path, REFUSING)
        assert isinstance(refused.value.report, RecoveryReport)
        assert not refused.value.report.clean
        assert contents(tmp_path) == before, number
    with DirectoryPartition(tmp_path) as partition:
        assert partition.statistics().counters.failed_recoveries == 2
    with DirectoryPartition(tmp_path, REFUSING) as partition:
        assert partition.append(encode([b"d"])).base_offset == 3


def test_a_sound_log_is_opened_as_ever(tmp_path: Path) -> None:
    write(tmp_path)
    with DirectoryPartition(tmp_path, REFUSING) as partition:
        assert [record.value for record in partition.records()] == [b"a", b"b", b"c"]


def test_whole_records_that_were_not_published_are_adopted(tmp_path: Path) -> None:
    write(tmp_path)
    state = (tmp_path / "state").read_bytes()
    with DirectoryPartition(tmp_path, REFUSING) as partition:
        partition.append(encode([b"d"]))
    (tmp_path / "state").write_bytes(state)
    with DirectoryPartition(tmp_path, REFUSING) as partition:
        assert partition.recovery_reports[0].adopted_records == 1
        assert partition.bounds().end == 4


def test_a_writer_that_finds_a_dead_ones_bytes_refuses_too(tmp_path: Path) -> None:
    write(tmp_path)
    with DirectoryPartition(tmp_path, REFUSING) as partition:
        torn(tmp_path)
        with pytest.raises(RecoveryRefused):
            partition.append(encode([b"d"]))
        assert [record.value for record in partition.records()] == [b"a", b"b", b"c"], "readers see what was published"


def test_the_command_repairs_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with DirectoryStore(tmp_path) as store:
        store.create_topic("orders", recovery="raise")
        with store.producer("orders") as producer:
            producer.send(b"a")
    torn(tmp_path / "orders" / "0")
    with DirectoryStore(tmp_path) as store, pytest.raises(RecoveryRefused, match="cut 12 bytes"):
        store.topic("orders").partition(0)
    run(tmp_path, as_json=False)
    with DirectoryStore(tmp_path) as store, pytest.raises(RecoveryRefused):
        store.topic("orders").partition(0)
    assert run(tmp_path, as_json=False, repair=True) == 0
    assert "cut 12 bytes" in " ".join(capfd.readouterr().out.split())
    with DirectoryStore(tmp_path) as store:
        assert [record.value for record in store.topic("orders").partition(0).records()] == [b"a"]


def test_replicas_always_repair(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path) as store:
        store.create_topic("orders", recovery="raise")
        with store.producer("orders") as producer:
            producer.send(b"a")
    torn(tmp_path / "orders" / "0")
    with DirectoryStore(tmp_path) as store:
        store.always_repair()
        assert store.topic("orders").partition(0).bounds().end == 1


def test_every_backend_keeps_the_choice(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders", recovery="raise")
    assert store.describe_topic("orders").config.recovery == "raise"
    store.alter_topic("orders", recovery="repair")
    assert store.describe_topic("orders").config.recovery == "repair"
    with pytest.raises(hw.InvalidConfiguration):
        store.create_topic("payments", recovery="hope")
