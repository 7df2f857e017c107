"""The example in Node: produces and consumes through a group, at a real broker, with nothing but the proto file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import headwater
from tests.support.processes import PATIENCE, BrokerProcess

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with its packages installed, beside the proto file as it is in the repository."""
    missing = [command for command in ("node", "npm") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"the example in Node needs {' and '.join(missing)}, which this machine does not have")
    root = tmp_path_factory.mktemp("node")
    ignored = shutil.ignore_patterns("node_modules")
    copy = Path(shutil.copytree(EXAMPLE, root / "examples" / "node", ignore=ignored))
    shutil.copytree(ROOT / "proto", root / "proto")
    installed = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE * 2,
    )
    if installed.returncode and "CI" not in os.environ:
        pytest.skip(f"the packages of the example cannot be installed here: {installed.stderr.strip()[-300:]}")
    assert installed.returncode == 0, installed.stderr
    return copy


def run(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", "main.js", *arguments], cwd=example, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_it_reads_back_what_it_has_written(example: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        for _ in range(2):  # the second time the group goes on where it was
            result = run(example, broker.address, "orders", "120")
            assert result.returncode == 0, result.stderr
            sums = {f"customer-{one}": sum(number for number in range(120) if number % 7 == one) for one in range(7)}
            expected = ["consumed 120", *(f"{customer}: {total}" for customer, total in sums.items())]
            assert result.stdout.splitlines()[-8:] == expected
        assert broker.stop() == 0
    with headwater.open(tmp_path / "events") as store:
        topic = store.topic("orders")
        records = [record for number in range(3) for record in topic.partition(number).records()]
        assert len(records) == 240
        assert {json.loads(record.value or b"")["drink"] for record in records} == {"tea"}
        assert all(record.headers == {"from": b"node"} for record in records)


def test_an_error_is_the_brokers_code_and_words(example: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        result = run(example, broker.address, "no/name", "1")
    assert result.returncode == 1
    assert result.stderr.startswith("INVALID_ARGUMENT: 'no/name' cannot name a topic")


def test_its_lock_names_no_place_to_download_from() -> None:
    lock = json.loads((EXAMPLE / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
