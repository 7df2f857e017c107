"""The list of mutants fits the code, and its runner tells a guarded promise from an unguarded one."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.__main__ import load as load_proofs
from tests.mutants.__main__ import load, main
from tests.mutants.mutant import Mutant
from tests.mutants.runner import ROOT, Laboratory, Verdict

MUTANTS = load()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_applies_to_the_code_as_it_is(name: str) -> None:
    mutant = MUTANTS[name]
    compile(mutant.applied_to(ROOT), mutant.file, "exec")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_names_killers_that_exist(name: str) -> None:
    proofs = load_proofs()
    assert MUTANTS[name].killers
    for killer in MUTANTS[name].killers:
        target = shlex.split(killer)[0]
        if target.startswith("tests/"):
            file, _, test = target.partition("::")
            assert test.partition("[")[0].rpartition("::")[2] in (ROOT / file).read_text(encoding="utf-8")
        else:
            assert target in proofs


def test_the_list_names_each_mutant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(mutant.promise.split(maxsplit=1)[0] in printed for mutant in MUTANTS.values())


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nonesuch"])


@pytest.fixture
def laboratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    """A laboratory for a project of one function that is tested and one that is not."""
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n")
    (root / "tests" / "test_sums.py").write_text("import sums\n\n\ndef test_add():\n    assert sums.add(2, 3) == 5\n")
    (root / "tests" / "test_red.py").write_text("def test_red():\n    assert False\n")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    monkeypatch.setattr("tests.mutants.runner.ROOT", root)
    (tmp_path / "laboratory").mkdir()
    return Laboratory(tmp_path / "laboratory")


GUARDED = Mutant(
    name="guarded",
    promise="sums are right",
    file="sums.py",
    old="a + b",
    new="a * b",
    killers=("tests/test_sums.py",),
)


def test_a_mutant_that_a_test_notices_is_killed_and_the_next_one_begins_with_the_code_as_it_was(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    unguarded = replace(GUARDED, name="unguarded", old="a - b", new="b - a")
    assert laboratory.examine(GUARDED).verdict is Verdict.KILLED
    assert laboratory.examine(unguarded).verdict is Verdict.SURVIVED
    assert "a + b" in (tmp_path / "project" / "sums.py").read_text()


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        (replace(GUARDED, old="a / b"), "0 times in sums.py"),
        (replace(GUARDED, old="return"), "2 times in sums.py"),
        (replace(GUARDED, file="gone.py"), "0 times in gone.py"),
        (replace(GUARDED, killers=("tests/test_red.py",)), "fails without the change too"),
        (replace(GUARDED, killers=("tests/test_gone.py",)), "ended with 4"),
    ],
)
def test_what_cannot_be_decided_is_not_a_kill(laboratory: Laboratory, mutant: Mutant, reason: str) -> None:
    outcome = laboratory.examine(mutant)
    assert outcome.verdict is Verdict.UNDECIDED
    assert reason in outcome.reason


def test_a_killer_that_the_mutant_keeps_from_its_end_has_noticed(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.runner.PROCESSOR_SECONDS", 5.0)
    endless = replace(GUARDED, old="return a + b", new="while True:\n        pass")
    outcome = laboratory.examine(endless)
    assert outcome.verdict is Verdict.KILLED
    assert "did not end" in outcome.reason
