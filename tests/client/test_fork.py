"""Forking with clients of a broker: a child is not held up by what its parent has of them, in use or garbage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import BrokerProcess


@pytest.mark.parametrize("kind", ["used", "closed", "dropped", "garbage"])
def test_a_forked_child_lives_its_own_life(tmp_path: Path, kind: str) -> None:
    with BrokerProcess(tmp_path / "served", log=tmp_path / "broker.log") as broker:
        command = [sys.executable, "-m", "tests.support.forking_client", broker.address, str(tmp_path), kind]
        environment = os.environ | {"GRPC_VERBOSITY": "NONE"}
        program = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert program.returncode == 0, program.stderr
