"""The message about parts of the tests that failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.verdict import failures

PART = """
import pytest

def test_well():
    pass

def test_badly():
    assert 1 == 2, "one is not\\ntwo"

@pytest.fixture
def nothing():
    raise OSError("not there")

def test_without(nothing):
    pass
"""


def test_what_failed_is_named_with_its_reason_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "test_part.py").write_text(PART)
    command = [sys.executable, "-m", "pytest", "--quiet", "--junitxml=part.xml", "-p", "no:cacheprovider"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    violation = {"run": 7, "kind": "lost write", "detail": "record 9\nand more"}
    proofs = [{"name": "calm", "violations": []}, {"name": "unlucky", "violations": [violation]}]
    (tmp_path / "proofs.json").write_text(json.dumps({"proofs": proofs}))
    assert list(failures(tmp_path)) == [
        "test_part::test_badly: AssertionError: one is not",
        'test_part::test_without: failed on setup with "OSError: not there"',
        "unlucky, run 7: lost write: record 9",
    ]
