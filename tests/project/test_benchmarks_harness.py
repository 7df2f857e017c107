"""The harness of the benchmarks: ratios, goals, reports, pictures, and who takes turns with whom."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.__main__ as command
from benchmarks import embedded
from benchmarks.machine import file_system, this_commit, this_machine
from benchmarks.measure import best_of, compare, timed
from benchmarks.plot import spans_decades
from benchmarks.report import Goal, Row, at_least, at_most, figure


def row(ours: float = 30, peer: float | None = 10, goal: Goal | None = None) -> Row:
    return Row(work="append", unit="MB/s", ours=ours, peer_name="other", peer=peer, goal=goal or at_least(2))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts rows in place of the benchmarks that there are, under the name `fake`."""

    def install(*rows: Row) -> None:
        module = ModuleType("benchmarks.fake", "A benchmark that measures nothing.")

        def run(quick: bool, scratch: Path) -> Iterator[Row]:  # noqa: ARG001
            assert scratch.is_dir()
            yield from rows

        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, "benchmarks.fake", module)
        monkeypatch.setattr(command, "names", lambda: ["fake"])
        monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
        monkeypatch.chdir(tmp_path)

    return install


@pytest.mark.parametrize(
    ("ours", "goal", "met"),
    [(20, at_least(2), True), (19, at_least(2), False), (20, at_most(2), True), (21, at_most(2), False)],
)
def test_a_goal_is_a_bound_on_the_ratio(ours: float, goal: Goal, met: bool) -> None:
    assert row(ours, 10, goal).met is met


def test_a_row_without_its_peer_has_no_ratio_and_no_verdict() -> None:
    absent = row(peer=None).as_json()
    assert absent["peer_name"] == "other (absent)"
    assert (absent["peer"], absent["ratio"], absent["met"]) == (None, None, None)


@pytest.mark.parametrize("figures", [(0, 10), (10, 0), (-1, None)])
def test_a_figure_that_cannot_be_measured_is_refused(figures: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        row(*figures)


def test_sides_take_turns_and_alternate_who_is_first() -> None:
    turns: list[str] = []

    def side(name: str) -> Callable[[], float]:
        def take_turn() -> float:
            turns.append(name)
            return 1.0

        return take_turn

    compare(side("ours"), side("peer"), repeats=3)
    assert turns == ["peer", "ours", "ours", "peer", "peer", "ours", "ours", "peer"]


def test_the_figures_are_medians_without_the_warm_up() -> None:
    ours = iter([1000.0, 5.0, 1.0, 3.0])
    peer = iter([1000.0, 6.0, 2.0, 4.0])
    assert compare(lambda: next(ours), lambda: next(peer), repeats=3) == (3.0, 4.0)


def test_a_missing_peer_has_no_figure() -> None:
    assert compare(lambda: 2.0, None, repeats=1) == (2.0, None)


def test_the_best_of_several_calls_is_the_shortest() -> None:
    calls: list[int] = []
    assert 0 <= best_of(3, lambda: calls.append(1)) < 1
    assert len(calls) == 3
    assert 0 <= timed(lambda: None)() < 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1_234_567.8, "1,234,568"), (99.444, "99.44"), (0.5, "0.500"), (0.00123456, "0.00123")],
)
def test_a_figure_shows_no_more_digits_than_it_carries(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_ratios_that_span_decades_want_a_logarithmic_axis() -> None:
    assert spans_decades([0.5, 5])
    assert not spans_decades([1, 9])
    assert not spans_decades([])


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
        40 22 0:30 / /mnt/my\040disk rw - xfs /dev/sdb rw
        41 22 0:31 / /mnt/my\040disk/fast rw - tmpfs tmpfs rw
        42 22 0:32 / /mnt/my\040disk/fast rw - btrfs /dev/sdc rw"""
    assert file_system(Path("/mnt/my disk/data"), mounts) == "xfs"
    assert file_system(Path("/mnt/my disk/fast/data"), mounts) == "btrfs"
    assert file_system(Path("/mnt/my diskette"), mounts) == "ext4"
    assert file_system(Path("/mnt"), "") == "unknown"


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**20
    assert this_commit(tmp_path) is None


def test_a_full_run_writes_report_and_picture_and_succeeds(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(row(), row(peer=None))
    assert command.main(["fake", "--json", "out/report.json"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["machine"]["cores"] >= 1
    assert report["commit"] is None
    assert report["rows"][0] == {
        "work": "append",
        "unit": "MB/s",
        "ours": 30,
        "peer_name": "other",
        "peer": 10,
        "ratio": 3.0,
        "goal": 2,
        "bound": "at least",
        "met": True,
    }
    assert (tmp_path / "results" / "fake.svg").stat().st_size > 0
    assert not list(tmp_path.glob(".bench-*"))


def test_a_picture_is_the_same_for_the_same_report(
    fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(row(1, 100), row(300, 1), row(peer=None))
    monkeypatch.setattr(command, "this_commit", lambda directory: None)  # noqa: ARG005
    for name in ("one.svg", "two.svg", "three.png"):
        command.main(["fake", "--quick", "--plot", name])
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


def test_a_missed_goal_fails_a_full_run_only(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(row(ours=1))
    assert command.main(["fake"]) == 1
    (tmp_path / "results" / "fake.svg").unlink()
    assert command.main(["fake", "--quick"]) == 0
    assert not list((tmp_path / "results").iterdir()), "a quick run must leave the full one's picture alone"


def test_the_list_shows_benchmarks_and_not_the_harness(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert "primitives" in listed
    assert not listed & command.HARNESS


@pytest.mark.parametrize("arguments", [[], ["nonesuch"], ["report"]])
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)


def test_every_benchmark_runs_in_its_quick_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["primitives", "--quick"]) == 0


def test_the_rows_of_embedded_keep_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["embedded", "--quick", "--json", "report.json"]) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert len({one["work"] for one in rows}) == len(rows) >= 8
    for one in rows:
        assert one["ours"] > 0
        if one["peer"] is None:
            assert one["peer_name"].endswith(" (absent)")
            assert one["ratio"] is one["met"] is None
        else:
            assert one["ratio"] == pytest.approx(one["ours"] / one["peer"])
            assert one["met"] == (
                one["ratio"] >= one["goal"] if one["bound"] == "at least" else one["ratio"] <= one["goal"]
            )
    assert not list(tmp_path.glob(".bench-*")), "servers are stopped and their files removed"


def test_a_peer_that_is_not_installed_is_named_and_not_faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "installed", lambda *names: False)  # noqa: ARG005
    persist_queue = embedded.beside_persist_queue(tmp_path, 1000, 10, 1)
    for one in (persist_queue, *embedded.beside_redis(tmp_path, 1000, 1000, 1)):
        assert one.ours > 0
        assert one.peer is None
        assert one.peer_label.endswith(" (absent)")
