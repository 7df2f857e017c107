"""The examples run, each by one command, and show what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("outbox", ["orders in the topic: [1, 2, 3, 4, 5, 6]"]),
        ("requests", ["by status: {'200': 2, '201': 1, '404': 1}", "set aside: b'\\x16\\x03\\x01 somebody speaks"]),
        ("service", ["{'offset': 2}", "['event 0', 'event 1', 'event 2']"]),
    ],
)
def test_an_example_runs_and_keeps_its_directory(name: str, shows: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"examples.{name}", str(tmp_path / "place")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [text for text in shows if text not in done.stdout] == []
    assert (tmp_path / "place" / "events").is_dir()
