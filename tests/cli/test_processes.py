"""`hw` as people run it: in pipes, on terminals, ended by Ctrl-C; on stores in directories and behind brokers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.cli.descriptors import readable
from tests.support.command import KINDS, served
from tests.support.patience import Patience

HW = [sys.executable, "-m", "headwater.cli"]
HOSTILE = b"\x1b]0;owned\x07\x1b[31m[red]bold[/red]\xff"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
PATIENCE = 300.0


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store with a topic, as HEADWATER_STORE says it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with contextlib.ExitStack() as stack:
        address = str(tmp_path / "events")
        if request.param == "broker":
            address = stack.enter_context(served(tmp_path / "events"))
        monkeypatch.setenv("HEADWATER_STORE", address)
        with headwater.open(address) as opened:
            opened.create_topic("orders")
        yield address


def produce(store: str, *values: bytes) -> None:
    with headwater.open(store) as opened, opened.producer("orders") as out:
        for value in values:
            out.send(value, key=b"[bold]k[/]", headers={"h": HOSTILE})


def shell(script: str, content: str = "") -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", script]
    return subprocess.run(command, input=content, capture_output=True, text=True, timeout=PATIENCE, check=True)


class Terminal:
    """`hw` on a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"COLUMNS": "150", "LINES": "40", "TERM": "xterm-256color"}
            os.environ.pop("NO_COLOR", None)
            os.execv(sys.executable, [*HW, *arguments])
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Until it shows this."""
        patience = Patience(PATIENCE)
        while text not in COLOURS.sub("", self.shown):
            assert not patience.exhausted(), self.shown
            if readable(self.fd, 1.0):
                self.shown += os.read(self.fd, 65536).decode()

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self.fd, key)

    def end(self) -> int:
        """Read the rest of the output, and return the exit code."""
        with contextlib.suppress(OSError):
            while content := os.read(self.fd, 65536):
                self.shown += content.decode()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.usefixtures("store")
def test_commands_are_piped_into_each_other_and_a_closed_pipe_is_quiet() -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    script = (
        f"set -e; {' '.join(HW)} produce orders >/dev/null; "
        f"{' '.join(HW)} consume orders | {' '.join(HW)} produce again --create --input records; "
        f"{' '.join(HW)} consume again --format %v"
    )
    done = subprocess.run(
        ["bash", "-c", script], input=lines, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.partition("}\n")[2] == lines
    script = f"{' '.join(HW)} consume orders | head -1; echo ${{PIPESTATUS[0]}}"
    done = shell(script)
    assert (done.stdout.splitlines()[-1], done.stderr) == (str(128 + signal.SIGPIPE), "")
    assert json.loads(done.stdout.splitlines()[0])["value"] == "line 0"


@pytest.mark.usefixtures("store")
def test_what_a_pipe_delivers_is_written_at_once_and_ctrl_c_loses_nothing() -> None:
    following = [*HW, "consume", "orders", "--follow", "--group", "live"]
    reader = subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writing = [*HW, "produce", "orders"]
    with subprocess.Popen(writing, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as writer:
        assert reader.stdout is not None
        assert writer.stdin is not None
        for number in range(3):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            assert json.loads(reader.stdout.readline())["value"] == str(number)
        reader.send_signal(signal.SIGINT)
        rest, errors = reader.communicate(timeout=PATIENCE)
        assert (reader.returncode, rest, errors) == (130, "", "")
        writer.stdin.write("3\n")
    done = subprocess.run([*HW, "consume", "orders", "-g", "live"], capture_output=True, text=True, check=True)
    again = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    assert again in (["3"], ["2", "3"]), "what was written a moment before may come again, and nothing is left out"


def test_on_a_terminal_data_is_shown_and_not_obeyed_and_the_space_bar_pauses(store: str) -> None:
    produce(store, HOSTILE)
    for arguments in (
        ["consume", "orders"],
        ["consume", "orders", "-o", "%v %k %h"],
        ["consume", "orders", "-o", "csv"],
    ):
        terminal = Terminal(*arguments)
        assert terminal.end() == 0, terminal.shown
        assert "\x1b]0;" not in terminal.shown
        assert "\x07" not in terminal.shown
        assert r"\x1b]0;owned\x07\x1b[31m[red]bold[/red]" in COLOURS.sub("", terminal.shown) or "hex" in terminal.shown
        assert "[bold]k[/]" in terminal.shown
    terminal = Terminal("tail", "orders")
    terminal.wait_for("[red]bold[/red]")
    produce(store, b"live")
    terminal.wait_for("live")
    terminal.press(b" ")
    terminal.wait_for("paused, 0 more")
    produce(store, b"meanwhile")
    terminal.wait_for("paused, 1 more")
    assert "meanwhile" not in terminal.shown
    terminal.press(b" ")
    terminal.wait_for("meanwhile")
    terminal.press(b"q")
    assert terminal.end() == 0


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_lag_is_watched_until_ctrl_c(store: str) -> None:
    produce(store, b"one", b"two")
    subprocess.run([*HW, "group", "reset", "slow", "--topic", "orders", "--to", "start", "-y"], check=True, stdout=-3)
    terminal = Terminal("lag", "--watch", "--every", "0.1")
    terminal.wait_for("██")
    terminal.press(b"\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_shells_complete_commands_topics_and_groups(store: str) -> None:
    produce(store, b"x")
    subprocess.run([*HW, "group", "reset", "billing", "--topic", "orders", "--to", "end", "-y"], check=True, stdout=-3)

    def completed(*words: str) -> list[str]:
        line = {"COMP_WORDS": "\n".join(["hw", *words]), "COMP_CWORD": str(len(words)), "_HW_COMPLETE": "complete_bash"}
        done = subprocess.run(HW, env=os.environ | line, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("prod") == ["produce"]
    assert completed("topic", "desc") == ["describe"]
    assert completed("consume", "or") == ["orders"]
    assert completed("group", "describe", "b") == ["billing"]
    assert completed("consume", "--store", "/nowhere", "or") == []


@pytest.mark.parametrize("store", ["directory"], indirect=True)
@pytest.mark.parametrize("arguments", ["--help", "topic --help", "cheat", "consume orders"])
def test_a_closed_pipe_ends_everything_alike(store: str, arguments: str) -> None:
    produce(store, *[b"x" * 1000] * 200)
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(HW)} {arguments} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_streams_that_are_closed_or_full_are_no_trouble(store: str) -> None:
    hw = " ".join(HW)
    assert shell(f"echo x | {hw} produce orders >&- 2>&-; {hw} topic list <&- | grep -c orders").stdout == "1\n"
    full = subprocess.run(["bash", "-c", f"{hw} topic list > /dev/full"], capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr) == (1, "hw: No space left on device\n")
    with headwater.open(store) as opened:
        assert opened.topic("orders").bounds()[0].end == 1


@pytest.mark.parametrize("store", ["directory"], indirect=True)
@pytest.mark.usefixtures("store")
def test_lines_are_typed_on_a_terminal_until_ctrl_d() -> None:
    terminal = Terminal("produce", "orders")
    terminal.press(b"two teas\n\x04")  # the end is there when the line is read: it counts all the same
    assert terminal.end() == 0
    assert "1 records are in orders, durable" in COLOURS.sub("", terminal.shown)
    assert "\x1b[2K" not in terminal.shown, "nothing wipes away what is typed"


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_a_query_is_ended_by_ctrl_c(store: str) -> None:
    query = "SELECT count(*) FROM orders, range(1000000000) a, range(1000000000) b"
    produce(store, b"x")
    terminal = Terminal("sql", query)
    patience = Patience(PATIENCE)
    while (cpu_seconds := _cpu_seconds(terminal.pid)) < 5.0:  # by then it has begun
        assert not patience.exhausted(), cpu_seconds
        time.sleep(0.1)
    terminal.press(b"\x03")
    assert terminal.end() == 130
    assert "error" not in terminal.shown


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_tail_begins_with_the_last_records_that_match(store: str) -> None:
    with headwater.open(store) as opened:
        opened.create_topic("mixed", partitions=2)
        with opened.producer("mixed") as out:
            for number in range(400):
                out.send(b"%d" % number, key=b"rare" if number % 50 == 0 else b"common", timestamp=number)
        command = [*HW, "tail", "mixed", "-n", "3", "--where", "key = 'rare'", "--where", "value <> '300'"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            lines = [json.loads(tail.stdout.readline())["value"] for _ in range(3)]
            assert lines == ["200", "250", "350"]
            with opened.producer("mixed") as out:
                out.send(b"no", key=b"common")
                out.send(b"yes", key=b"rare")
            assert json.loads(tail.stdout.readline())["value"] == "yes"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(PATIENCE) == 130


def test_a_topic_that_is_not_there_yet_is_waited_for_and_said(store: str) -> None:
    with subprocess.Popen([*HW, "tail", "late"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stderr.readline() == "hw: topic late does not exist yet: waiting for it\n"
        with headwater.open(store) as opened:
            opened.create_topic("late")
            with opened.producer("late") as out:
                while not readable(tail.stdout.fileno(), 0.5):
                    out.send(b"here")
                    out.sync()
        assert json.loads(tail.stdout.readline())["value"] == "here"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(PATIENCE) == 130
