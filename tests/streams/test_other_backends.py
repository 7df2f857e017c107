"""Backends of other packages: `headwater.open` finds them by the scheme of an address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from examples.sqlite_store import main, open_sqlite
from headwater.core.presets import Preset
from tests.support.command import Command

OFFERS = """
[headwater.stores]
sqlite = examples.sqlite_store:open_sqlite
plain = tests.streams.test_other_backends:open_plain
broken = tests.streams.nothing_of_this_name:open
wrong = tests.streams.test_other_backends:open_wrongly
"""
given: list[object] = []


def open_plain(where: str, defaults: Preset, /, *, colour: str = "none") -> hw.Store:
    given[:] = [where, defaults, colour]
    return hw.open("memory:", preset=defaults)


def open_wrongly(where: str, _: Preset, /) -> str:
    return where


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose entry points offer stores."""
    directory = tmp_path / "site" / "other_backends-1.0.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text("Metadata-Version: 2.1\nName: other-backends\nVersion: 1.0\n")
    (directory / "entry_points.txt").write_text(OFFERS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of a store in an SQLite file."""
    return f"sqlite://{tmp_path / 'events.db'}"


def test_a_store_is_found_by_its_scheme_and_gets_the_options() -> None:
    preset = hw.presets.THROUGHPUT
    with hw.open("plain://somewhere/else", preset=preset, colour="blue") as store:
        assert store.create_topic("orders").info.config.segment_bytes == preset.topic.segment_bytes
    assert given[0] == "plain://somewhere/else"
    assert given[2] == "blue"


@pytest.mark.parametrize(
    ("where", "options", "told"),
    [
        ("nobody://x", {}, "the schemes are hw://, broken://, plain://, sqlite://, wrong://"),
        ("broken://x", {}, "cannot be imported"),
        ("wrong://x", {}, "must return a headwater.Store"),
        ("plain://x", {"token": "secret"}, "unexpected keyword argument 'token'"),
        ("plain://x", {"client": hw.ClientConfig()}, "client is for brokers"),
    ],
)
def test_what_cannot_be_opened_says_why(where: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=told):
        hw.open(where, **options)  # type: ignore[arg-type]


def test_a_directory_may_look_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hw.open(Path("plain://here")) as store:
        store.create_topic("orders")
    assert (tmp_path / "plain:" / "here" / "orders").is_dir()


def test_the_example_has_everything_when_it_is_opened_again(address: str) -> None:
    schema = pa.schema({"price": pa.int64()})
    with hw.open(address) as store:
        store.create_topic("trades", 2, schema, segment_bytes=4096)
        store.create_topic("gone")
        with store.producer("trades") as out:
            for number in range(100):
                out.send_batch([{"price": number}] * 10, partition=number % 2)
        with store.transaction() as block:
            block.producer("trades").send({"price": 1000}, partition=0)
        store.topic("trades").evolve(pa.schema([*schema, pa.field("note", pa.string())]))
        first, second = store.topic("trades").partitions()
        first.delete_before(123)
        second.truncate(45)
        store.delete_topic("gone")
        with store.consumer("trades", group="billing") as inbox:
            done = inbox.poll(timeout=10, max_records=7)
            for record in done:
                inbox.ack(record)
        before = store.topic("trades").scan().read_all()
        segments = len(first.segments())
        positions = store.group("billing").committed()
    with hw.open(address) as store:
        topic = store.topic("trades")
        assert store.topics() == ["trades"]
        assert topic.bounds()[0][:2] == (123, 501)
        assert topic.bounds()[1][:2] == (0, 45)
        assert topic.scan().read_all().equals(before)
        assert len(topic.partition(0).segments()) == segments
        assert store.group("billing").committed() == positions
        assert store.group_names() == ["billing"]
        with store.producer("trades") as out:
            assert out.send_batch([{"price": 1, "note": "n"}], partition=0)[0].offset == 501


def test_the_example_is_open_once_at_a_time(address: str) -> None:
    with hw.open(address) as store:
        with pytest.raises(hw.StoreInUse, match="another store has it open"):
            hw.open(address)
        store.create_topic("orders")
    with hw.open(address) as store:
        assert store.topics() == ["orders"]


def test_the_example_keeps_nothing_of_an_append_that_fails(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_sqlite(address) as store:
        topic = store.create_topic("orders")
        topic.partition(0)

        def refuse(*_: object) -> None:
            raise hw.StoreError("the disk is full")

        with store.producer("orders") as out:
            with monkeypatch.context() as patch:
                patch.setattr("examples.sqlite_store.Database.write", refuse)
                with pytest.raises(hw.StoreError, match="full"):
                    out.send_batch([b"lost"])
            assert topic.bounds()[0].end == 0
            assert out.send_batch([b"kept"])[0].offset == 0
    with open_sqlite(address) as store:
        assert [record.value for record in store.topic("orders").partition(0).records()] == [b"kept"]


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path / "place")
    assert capsys.readouterr().out == "b'cust-7' ordered b'two teas'\n"


def test_event_loops_open_it_too(address: str) -> None:
    async def main() -> list[str]:
        async with hw.aio.open(address) as store:
            await store.create_topic("orders")
            return await store.topics()

    assert asyncio.run(main()) == ["orders"]


def test_the_command_opens_it_too(
    tmp_path: Path, address: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = Command(address, capfdbinary, monkeypatch)
    command("topic", "create", "orders")
    command("produce", "orders", stdin="one\ntwo\n")
    assert command("consume", "orders", "--columns", "value", "-o", "csv").split()[1:] == ["one", "two"]
