"""Drivers of Spark that proofs start and kill: programs of their own, which wait to be told what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

Driver = subprocess.Popen[bytes]


def launch(module: str, directory: Path) -> Driver:
    """Start a module of the tests as a program for this directory. It starts Spark, and waits at its standard input."""
    root = Path(__file__).parents[2]
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(directory)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
