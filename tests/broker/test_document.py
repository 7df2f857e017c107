"""docs/broker.md from the first line to the last: its commands are run, and its programs at the brokers they start."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.project.test_documents import BLOCK, SERVED
from tests.support.certificates import needs_openssl
from tests.support.ports import free_port
from tests.support.processes import ROOT

PATIENCE = 900.0


def script(port: int) -> str:
    """The document as one script, which takes its brokers with it. Its programs are parts of one program."""
    lines = ["set -eu", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
    for language, code in BLOCK.findall(SERVED.read_text(encoding="utf-8")):
        if language == "sh":
            lines.append(code)
        elif language == "python":
            lines.append(f"python -W error - <<'END_OF_PROGRAM'\nimport headwater as hw\n{code}END_OF_PROGRAM")
    return "\n".join(lines).replace("6174", str(port))


@needs_openssl
def test_the_document_does_what_it_says(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("the commands of the document are for bash")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in (("python", ""), ("hw", "-m headwater.cli ")):
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        path.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    environment |= {"PATH": f"{commands}:{environment['PATH']}", "PYTHONPATH": str(ROOT)}
    # Where the document relies on the port that everyone has.
    environment |= {"HEADWATER_BROKER_LISTEN": f"127.0.0.1:{port}", "HEADWATER_STORE": f"hw://127.0.0.1:{port}"}
    with (tmp_path / "output").open("w") as out, (tmp_path / "errors").open("w") as told:
        process = subprocess.Popen(
            [bash, "-c", script(port)], cwd=work, env=environment, stdout=out, stderr=told, start_new_session=True
        )
        try:
            process.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output, errors = (tmp_path / "output").read_text(), (tmp_path / "errors").read_text()
    assert process.returncode == 0, errors
    lines = output.splitlines()
    assert [line for line in lines if re.fullmatch(r"0 b'customer-7' b'two teas'", line)]
    assert "orders.eu" in lines
    assert "admin topic payroll" in lines
    assert "there is no topic 'payroll' in what 'billing' may see: create it first" in lines
    assert output.count('"state": "serving"') == 3
    assert not re.search(r"hw_[0-9a-f]{12}_", output + errors), "tokens went into files, not to the terminal"
    assert '"level": "error"' not in errors
