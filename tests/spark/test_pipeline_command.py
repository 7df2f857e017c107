"""`hw pipeline run`, as a process: ended by SIGTERM, by Ctrl-C in a terminal and by kill -9, it goes on exactly."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import headwater as hw
from headwater.spark.pipeline.status import PipelineStatus
from tests.spark.pipelines import Pipelines, send, values
from tests.support.ports import free_port

ROWS = 2000  # many more than are copied while a process ends
COPY = """
master: local[2]
spark:
  spark.driver.memory: 1g
sources: {{numbers: {{topic: numbers, limit: {limit}}}}}
sinks:
  copies: {{from: numbers, topic: copies}}
"""


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "headwater.cli", "pipeline", "run", *options, str(directory / "pipeline.yaml")]


@contextmanager
def running(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, object]]]]:
    """The process, and what it writes to its pipe."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, map(json.loads, process.stdout)
        finally:
            process.kill()


def test_however_a_run_ends_the_next_goes_on_and_every_row_is_written_once(
    store: hw.Store, tmp_path: Path, pipelines: Pipelines
) -> None:
    for name in ("numbers", "copies"):
        store.create_topic(name, 2)
    send(store, "numbers", 0, ROWS)
    pipeline = pipelines.load(COPY.format(limit=10))

    port = free_port()
    with running(command(tmp_path, "--metrics-port", str(port))) as (process, events):
        assert next(events) == {"kind": "started", "sinks": ["copies"]}
        assert any(event.get("number") == 1 for event in events)
        with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            served = response.read().decode()
        process.send_signal(signal.SIGTERM)
        *_, summary = events
        assert process.wait(900) == 0, process.stderr
    assert summary["kind"] == "summary"
    assert (summary["stopped"], summary["error"]) == (True, None)
    assert 'headwater_pipeline_running{pipeline="pipeline"} 1\n' in served
    rows = int(served.split('rows_total{pipeline="pipeline",sink="copies"} ')[1].split("\n")[0])
    assert rows % 10 == 0
    first = len(values(store, "copies"))
    assert 20 <= rows <= first < ROWS

    code, screen = in_a_terminal(command(tmp_path), until=b"copies", then=b"\x03")
    assert code == 0, screen
    assert "pipeline is starting" in screen
    assert "✓ stopped: " in screen
    assert "Traceback" not in screen
    second = len(values(store, "copies"))
    assert first <= second < ROWS

    with running(command(tmp_path)) as (process, events):
        batches = (event for event in events if event.get("kind") == "batch")
        assert next(batches)  # it may be one that was done before and is only done again
        assert next(batches)
        process.kill()
        assert process.wait(900) == -signal.SIGKILL
    assert second < len(values(store, "copies")) < ROWS

    pipelines.run(pipelines.load(COPY.format(limit=1000)))
    assert values(store, "copies") == sorted(map(str, range(ROWS)))
    assert PipelineStatus.of(pipeline.declaration()).lag == 0


def in_a_terminal(command: list[str], *, until: bytes, then: bytes) -> tuple[int, str]:
    """Run a command in a terminal of its own and type something when it shows something: its code, and the screen."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(command[0], command)
    screen = b""
    with open(terminal, "r+b", buffering=0) as keyboard, suppress(OSError):  # the end of a terminal is an error
        while chunk := keyboard.read(65536):
            screen += chunk
            if until in screen and then:
                keyboard.write(then)
                then = b""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode(errors="replace"))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text
