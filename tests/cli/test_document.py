"""The five minutes of docs/cli.md work, line by line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_first_five_minutes_work(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    script = "\n".join(["set -euo pipefail", f'hw() {{ {sys.executable} -m headwater.cli "$@"; }}', *lines])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=1000
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d 0 cust-7 one coffee$", done.stdout, re.MULTILINE)
    assert '{"symbol": "WH", "top": 9.5}\n{"symbol": "HW", "top": 10.5}' in done.stdout
    assert (tmp_path / "trades.parquet").stat().st_size > 100
    assert '"damaged": false' in done.stdout
