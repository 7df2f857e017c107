"""The harness of the fault proofs: what it counts, how it fails, and that a finding can be brought back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Kind, Proof, Run, Unavailable, Violation, proof
from tests.faults import __main__ as command
from tests.faults.__main__ import load
from tests.faults.proof import PROOFS
from tests.faults.record import is_current, is_recorded
from tests.faults.report import page
from tests.faults.runner import FINDINGS_PER_RUN, GIVE_UP_AFTER, Plan, Result, run_proof
from tests.faults.supervisor import run_apart
from tests.support.patience import Patience, descendants


@pytest.fixture(autouse=True)
def only_fake_proofs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = load()
    PROOFS.clear()
    yield
    PROOFS.clear()
    PROOFS.update(real)


def run_here(proof: Proof, plan: Plan, progress: Callable[[int, int], None], stop: threading.Event) -> Result:
    """Run a proof in this process, which alone knows it."""
    assert not stop.is_set()
    return run_proof(proof, plan, lambda done, total, _: progress(done, total))


def main(arguments: list[str]) -> int:
    return command.main(arguments, run_here)


def report_of(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "report.json"
    code = main([*arguments, "--json", str(file)])
    return code, json.loads(file.read_text())


def draws(tmp_path: Path, *arguments: str) -> dict[int, str]:
    """Return what each run of the proof `lottery` drew."""
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


# In processes of their own.

FAKES = """
import os, signal, threading, time
from tests.faults import Kind, Violation, proof
from tests.faults.children import Child

@proof(row=1, title="sleeps", runs=2, quick=1, timeout=0.5)
def sleeper(run):
    yield from ()
    if run.number == 0:
        with Child(lambda: threading.Event().wait(), run.directory / "child.error"):
            threading.Event().wait()

@proof(row=2, title="cannot be interrupted", runs=3, quick=1, timeout=0.5)
def deaf(run):
    yield Violation(Kind.DUPLICATE, "record 2")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if run.number == 1:
        threading.Event().wait()

@proof(row=3, title="dies", runs=3, quick=1)
def dying(run):
    yield from ()
    if run.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@proof(row=4, title="has one thread", runs=1, quick=1)
def lonely(run):
    if threading.active_count() > 1:
        yield Violation(Kind.CRASH, "it inherited threads")

@proof(row=5, title="takes its time", runs=1000, quick=1)
def slow(run):
    yield from ()
    (run.directory.parent / f"begun-{run.number}").touch()
    time.sleep(0.05)
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Proof]:
    """Proofs that a worker can import."""
    (tmp_path / "fake_proofs.py").write_text(FAKES)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), root]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("fake_proofs", None)
    __import__("fake_proofs")
    return dict(PROOFS)


def apart(proof: Proof, **plan: Any) -> Result:
    return run_apart(proof, Plan(seed=1, **plan), lambda *_: None, threading.Event())


def test_a_proof_runs_in_a_process_that_inherits_no_threads(fakes: dict[str, Proof]) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        result = apart(fakes["lonely"])
    finally:
        over.set()
        thread.join()
    assert (result.runs, result.planned, result.findings) == (1, 1, [])


def test_a_run_that_does_not_end_is_a_hang_with_the_stacks_of_its_processes(fakes: dict[str, Proof]) -> None:
    result = apart(fakes["sleeper"])
    (finding,) = result.findings
    assert (finding.violation.kind, finding.run, result.runs) == (Kind.HANG, 0, 2)
    text = finding.violation.traceback or ""
    assert text.count("in wait") >= 2  # the proof and its child
    assert "in __init__" in text  # where the child was forked
    assert " S " in text  # and the kernel's view of the threads


def test_a_run_that_cannot_be_interrupted_is_killed_and_what_was_found_is_kept(
    fakes: dict[str, Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.supervisor.GRACE", 0.5)
    before = set(descendants(os.getpid()))  # other tests may have left one that serves them all
    result = apart(fakes["deaf"])
    assert [(finding.violation.kind, finding.run) for finding in result.findings] == [
        (Kind.DUPLICATE, 0),
        (Kind.HANG, 1),
    ]
    assert set(descendants(os.getpid())) <= before


def test_the_death_of_a_proof_is_a_crash(fakes: dict[str, Proof]) -> None:
    result = apart(fakes["dying"])
    (finding,) = result.findings
    assert (finding.violation.kind, finding.run, result.runs) == (Kind.CRASH, 1, 1)
    assert "ended with -9" in finding.violation.detail


def test_a_budget_ends_a_proof_and_the_count_is_told(fakes: dict[str, Proof]) -> None:
    result = apart(fakes["slow"], budget=0.5)
    assert result.planned == 1000
    assert 0 < result.runs < 1000
    assert result.findings == []


def test_an_interruption_ends_the_proof_and_its_processes(fakes: dict[str, Proof], tmp_path: Path) -> None:
    program = (
        "import sys, fake_proofs; from tests.faults.proof import PROOFS; from tests.faults.runner import Plan;"
        "from tests.faults.supervisor import run_apart; import threading;"
        "run_apart(PROOFS['slow'], Plan(seed=1), lambda *_: None, threading.Event())"
    )
    assert "slow" in fakes
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        assert Patience(120).until((tmp_path / "begun-3").exists)
        family = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    assert len(family) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)


def test_a_record_says_what_was_proved_when_and_on_which_code(tmp_path: Path) -> None:
    register_lottery()
    _, report = report_of(tmp_path, "lottery", "--seed", "7", "--runs", "2")
    assert {"seed", "commit", "dirty", "date", "quick", "budget", "runs", "violations"} <= set(report)
    (entry,) = report["proofs"]
    assert (entry["row"], entry["runs"], entry["planned"], len(entry["violations"])) == (1, 2, 2, 2)


def test_what_is_recorded_for_the_code_as_it_is_is_not_proved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    @proof(row=1, title="counts", runs=3, quick=1)
    def counting(run: Run) -> Iterator[Violation]:
        made.append(run.number)
        yield from ()

    records = tmp_path / "records"
    arguments = ["all", "--seed", "1", "--into", str(records)]
    unchanged = True
    monkeypatch.setattr("tests.faults.record._unchanged_since", lambda _: unchanged)
    assert main(arguments) == 0
    file = records / "counting.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"commit": "0" * 40, "dirty": False}))
    assert main(arguments) == 0
    assert made == [0, 1, 2]
    assert main([*arguments, "--force"]) == 0
    assert made == [0, 1, 2] * 2
    file.write_text(json.dumps(document | {"commit": "0" * 40, "dirty": False}))
    unchanged = False
    assert main([*arguments, "--missing"]) == 0
    assert made == [0, 1, 2] * 2
    assert main(arguments) == 0
    assert made == [0, 1, 2] * 3


@pytest.mark.parametrize("change", [{"violations": 1}, {"commit": None}, {"quick": True}, {"budget": 5.0}])
def test_what_has_no_good_record_is_missing(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "record.json"
    good = {"commit": "0" * 40, "dirty": False, "quick": False, "budget": None, "violations": 0}
    file.write_text(json.dumps(good))
    assert is_recorded(file, Plan(seed=1))
    file.write_text(json.dumps(good | change))
    assert not is_recorded(file, Plan(seed=1))
    assert not is_recorded(tmp_path / "none.json", Plan(seed=1))


@pytest.mark.parametrize("change", [{"dirty": True}, {"commit": None}, {"quick": True}, {"budget": 5.0}])
def test_a_record_of_something_else_is_not_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr("tests.faults.record._unchanged_since", lambda _: True)
    file = tmp_path / "record.json"
    good = {"commit": "0" * 40, "dirty": False, "quick": False, "budget": None, "violations": 0}
    file.write_text(json.dumps(good))
    assert is_current(file, Plan(seed=1))
    file.write_text(json.dumps(good | change))
    assert not is_current(file, Plan(seed=1))
    assert not is_current(tmp_path / "none.json", Plan(seed=1))


def test_the_page_of_proofs_has_a_line_for_each_with_its_newest_record() -> None:
    register_lottery()

    @proof(row=2, title="never run", runs=9, quick=1)
    def idle(_: Run) -> Iterator[Violation]:
        yield from ()

    def document(date: str, runs: int, **fields: Any) -> dict[str, Any]:
        result = {"name": "lottery", "runs": runs, "planned": runs, "skipped": None, "violations": []}
        return {
            "seed": 7,
            "quick": False,
            "commit": "abcdef" * 6,
            "dirty": False,
            "date": date,
            "proofs": [result, result | {"name": "gone"}],
            **fields,
        }

    text = page(
        [document("2026-02-02T00:00:00", 4), document("2026-01-01T00:00:00", 5), document("2026-03-03", 1, quick=True)],
        dict(PROOFS),
    )
    assert text.splitlines()[-2:] == [
        "| 1 | `lottery` | tells what it drew | 4 | 5 | 7 | `abcdefabcdef` | 2026-02-02 | 0 |",
        "| 2 | `idle` | never run | 0 | 9 | | | | |",
    ]
