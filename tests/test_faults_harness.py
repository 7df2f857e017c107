"""The harness of the fault proofs: what it counts, how it fails, and that a finding can be brought back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Kind, Run, Unavailable, Violation, proof
from tests.faults.__main__ import load, main
from tests.faults.proof import PROOFS
from tests.faults.runner import FINDINGS_PER_RUN, GIVE_UP_AFTER


@pytest.fixture(autouse=True)
def only_fake_proofs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = load()
    PROOFS.clear()
    yield
    PROOFS.clear()
    PROOFS.update(real)


def report_of(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "report.json"
    code = main([*arguments, "--json", str(file)])
    return code, json.loads(file.read_text())


def draws(tmp_path: Path, *arguments: str) -> dict[int, str]:
    """What each run of the proof `lottery` drew."""
    _, report = report_of(tmp_path, "lottery", *arguments)
    return {finding["run"]: finding["detail"] for finding in report["proofs"][0]["violations"]}


def register_lottery() -> None:
    @proof(row=1, title="tells what it drew", runs=5, quick=2)
    def lottery(run: Run) -> Iterator[Violation]:
        yield Violation(Kind.UNSEEN, str(run.random.random()))


def test_a_proof_without_violations_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    @proof(row=1, title="all is well", runs=7, quick=2)
    def calm(run: Run) -> Iterator[Violation]:
        (run.directory / "file").write_text("data")
        yield from ()

    assert main(["calm", "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    assert "seed: 5" in printed
    assert printed.endswith("violations: 0 in 7 runs\n")


def test_a_violation_fails_and_is_named_with_what_brings_it_back(capsys: pytest.CaptureFixture[str]) -> None:
    @proof(row=1, title="the fourth run goes wrong", runs=7, quick=2)
    def unlucky(run: Run) -> Iterator[Violation]:
        if run.number == 3:
            yield Violation(Kind.LOST_WRITE, "record [9]")

    assert main(["unlucky", "--seed", "5"]) == 1
    printed = capsys.readouterr().out
    assert "run 3: lost write: record [9]" in printed
    assert "python -m tests.faults unlucky --seed 5 --only 3" in printed
    assert printed.endswith("violations: 1 in 7 runs\n")


def test_what_was_found_is_told_again_at_the_end_of_a_long_log(capsys: pytest.CaptureFixture[str]) -> None:
    @proof(row=1, title="goes wrong early", runs=1, quick=1)
    def early(_: Run) -> Iterator[Violation]:
        yield Violation(Kind.LOST_WRITE, "record [9]")

    @proof(row=2, title="all is well", runs=1, quick=1)
    def late(_: Run) -> Iterator[Violation]:
        yield from ()

    assert main(["all", "--seed", "5"]) == 1
    after_the_last = capsys.readouterr().out.partition("late: 1 runs")[2]
    assert "early: 1 × lost write in 1 runs" in after_the_last
    assert "run 0: lost write: record [9]" in after_the_last


def test_the_directory_is_fresh_and_survives_only_a_violation(tmp_path: Path) -> None:
    @proof(row=1, title="leaves a file each time", runs=3, quick=1)
    def litter(run: Run) -> Iterator[Violation]:
        assert not list(run.directory.iterdir())
        (run.directory / "evidence").write_text(str(run.number))
        if run.number == 1:
            yield Violation(Kind.DUPLICATE, "record 2")

    _, report = report_of(tmp_path, "litter")
    (finding,) = report["proofs"][0]["violations"]
    assert Path(finding["directory"], "evidence").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(finding["directory"]).name]


def test_one_seed_gives_the_same_chance_and_another_seed_another(tmp_path: Path) -> None:
    register_lottery()
    assert draws(tmp_path, "--seed", "1") == draws(tmp_path, "--seed", "1")
    assert draws(tmp_path, "--seed", "1") != draws(tmp_path, "--seed", "2")
    assert len(set(draws(tmp_path, "--seed", "1").values())) == 5


def test_a_single_run_is_repeated_without_those_before_it(tmp_path: Path) -> None:
    register_lottery()
    assert draws(tmp_path, "--seed", "1", "--only", "3") == {3: draws(tmp_path, "--seed", "1")[3]}


def test_an_unexpected_exception_is_a_crash_with_its_traceback(tmp_path: Path) -> None:
    @proof(row=1, title="raises in the second run", runs=3, quick=1)
    def explosive(run: Run) -> Iterator[Violation]:
        yield from ()
        if run.number == 1:
            raise KeyError("boom")

    code, report = report_of(tmp_path, "explosive")
    (finding,) = report["proofs"][0]["violations"]
    assert code == 1
    assert (finding["kind"], finding["run"]) == ("crash", 1)
    assert "in explosive" in finding["traceback"]
    assert report["runs"] == 3


def test_what_was_found_before_a_crash_is_kept(tmp_path: Path) -> None:
    @proof(row=1, title="finds, then raises", runs=1, quick=1)
    def both(run: Run) -> Iterator[Violation]:
        yield Violation(Kind.REORDERED, f"run {run.number}")
        raise OSError("disk")

    _, report = report_of(tmp_path, "both")
    assert [finding["kind"] for finding in report["proofs"][0]["violations"]] == ["reordered", "crash"]


def test_a_run_that_does_not_end_is_a_hang(tmp_path: Path) -> None:
    @proof(row=1, title="sleeps", runs=1, quick=1, timeout=0.05)
    def sleeper(run: Run) -> Iterator[Violation]:
        yield from ()
        time.sleep(60 + run.number)

    code, report = report_of(tmp_path, "sleeper")
    (finding,) = report["proofs"][0]["violations"]
    assert (code, finding["kind"]) == (1, "hang")
    assert "time.sleep" in finding["traceback"]


def test_an_exhaustive_proof_runs_every_case_and_a_quick_one_a_drawn_part(tmp_path: Path) -> None:
    seen: list[int] = []

    @proof(row=1, title="all bytes of a file", runs=None, quick=4, cases=lambda directory: 20)  # noqa: ARG005
    def bytes_of_a_file(run: Run) -> Iterator[Violation]:
        seen.append(run.number)
        yield from ()

    assert report_of(tmp_path, "bytes_of_a_file")[1]["runs"] == 20
    assert seen == list(range(20))
    seen.clear()
    assert report_of(tmp_path, "bytes_of_a_file", "--quick", "--seed", "1")[1]["runs"] == 4
    assert seen == sorted(set(seen))
    assert seen != list(range(4))


def test_an_exhaustive_proof_without_cases_proves_nothing(tmp_path: Path) -> None:
    @proof(row=1, title="empty", runs=None, quick=None, cases=lambda directory: 0)  # noqa: ARG005
    def empty(run: Run) -> Iterator[Violation]:
        yield Violation(Kind.CRASH, f"{run.number} is never reached")

    code, report = report_of(tmp_path, "empty")
    (finding,) = report["proofs"][0]["violations"]
    assert code == 1
    assert "would prove nothing" in finding["detail"]


def test_the_number_of_runs_can_be_given(tmp_path: Path) -> None:
    register_lottery()
    assert len(draws(tmp_path, "--quick")) == 2
    assert len(draws(tmp_path, "--runs", "3", "--quick")) == 3


def test_findings_are_bounded(tmp_path: Path) -> None:
    @proof(row=1, title="loses everything", runs=1000, quick=1)
    def hopeless(run: Run) -> Iterator[Violation]:
        for record in range(10_000):
            yield Violation(Kind.LOST_WRITE, f"{run.number}/{record}")

    _, report = report_of(tmp_path, "hopeless")
    assert report["runs"] == GIVE_UP_AFTER
    assert report["violations"] == GIVE_UP_AFTER * FINDINGS_PER_RUN


def test_a_proof_that_cannot_run_here_is_skipped_and_is_no_success_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @proof(row=9, title="needs a tool", runs=3, quick=1)
    def needy(run: Run) -> Iterator[Violation]:
        yield from ()
        raise Unavailable(f"run {run.number} needs strace")

    assert report_of(tmp_path, "needy")[0] == 2
    assert "skipped, run 0 needs strace" in capsys.readouterr().out
    assert report_of(tmp_path, "all")[0] == 0


def test_all_runs_every_proof_in_the_order_of_the_table(tmp_path: Path) -> None:
    @proof(row=22, title="later", runs=1, quick=1)
    def aardvark(run: Run) -> Iterator[Violation]:  # noqa: ARG001
        yield from ()

    register_lottery()
    code, report = report_of(tmp_path, "all", "--quick")
    assert code == 1
    assert [one["name"] for one in report["proofs"]] == ["lottery", "aardvark"]
    for rows, names in (("1-21", ["lottery"]), ("2-22", ["aardvark"])):
        _, report = report_of(tmp_path, "all", "--quick", "--rows", rows)
        assert [one["name"] for one in report["proofs"]] == names


def test_the_list_names_each_proof(capsys: pytest.CaptureFixture[str]) -> None:
    register_lottery()
    assert main(["--list"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["1", "lottery", "5", "2", "tells", "what", "it", "drew"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonesuch"],
        ["all", "--only", "3"],
        ["all", "--rows", "3"],
        ["lottery", "--rows", "1-3"],
        ["lottery", "--runs", "0"],
        ["lottery", "--only", "-1"],
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    register_lottery()
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_a_proof_must_say_how_often_it_runs() -> None:
    with pytest.raises(ValueError, match="either runs"):
        proof(row=1, title="neither", runs=None, quick=1)
    with pytest.raises(ValueError, match="quick form"):
        proof(row=1, title="no quick form", runs=1, quick=None)
