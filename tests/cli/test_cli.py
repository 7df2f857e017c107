"""The command `hw`, run as users run it: in processes of its own, on a terminal and in pipes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.cli.output import printable
from headwater.core.config import Compression
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, Identity, encode, encode_batch
from headwater.log.format.frame import HEADER_BYTES

HW = [sys.executable, "-m", "headwater.cli"]
CONFIG = hw.PartitionConfig(segment_bytes=20_000, index_interval=1024)
HOSTILE = b"\x1b]0;owned\x07\x1b[31m[red]bold[/red]\r\n\xff"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run(*arguments: object, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """`hw` in a pipe."""
    command = [*HW, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **options)
    if code is not None:
        assert result.returncode == code, result.stdout + result.stderr
    return result


def run_on_terminal(*arguments: object) -> tuple[int, str]:
    """`hw` on a terminal of 120 columns: its exit code and what it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [*HW, *map(str, arguments)])
    shown = b""
    while True:
        try:
            content = os.read(fd, 65536)
        except OSError:
            break
        if not content:
            break
        shown += content
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several segments, with keys, compression, a producer and hostile data."""
    path = tmp_path / "partition"
    with DirectoryPartition(path, CONFIG) as log:
        log.append(encode([HOSTILE, None], keys=[HOSTILE, b"[bold]key[/]"], headers=[{"h": b"\x00"}, None]))
        for number in range(60):
            values = [b"%d" % (number * 10 + i) * 20 for i in range(10)]
            compression: Compression = "zstd" if number % 2 else "none"
            identity = Identity(b"p" * 16, 0, number * 10)
            log.append(encode(values, keys=[b"k"] * 10, compression=compression, identity=identity))
        log.append(encode([b"the end"], keys=[b"k"]))
    return path


def first_segment(partition: Path) -> Path:
    return min(partition.glob("*.log"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


# All commands.


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"headwater {hw.__version__}\n"


def test_hw_alone_gives_help() -> None:
    assert "Usage: hw" in run(code=2).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["check", "nowhere"], 1, "nowhere: No such file or directory"),
        (["check", "."], 1, "is not a partition"),
        (["check", "hw://127.0.0.1:1"], 1, "on the machine of hw://127.0.0.1:1"),
        (["inspect"], 2, "FILE"),
        (["inspect", "nowhere"], 1, "nowhere: No such file or directory"),
        (["inspect", "."], 1, "directory"),
        (["inspect", "--frames", "many", "x"], 2, "--frames"),
        (["unlock", "."], 1, "is not a partition"),
        (["tour", "."], 1, "is not empty"),
        (["console", "nowhere"], 1, "nowhere is neither a directory nor"),
        (["console", "."], 1, "is a directory, but not a store"),
        (["console", ".", "--listen", "0.0.0.0:0"], 1, "is not only for this machine"),
        (["bogus"], 2, "No such command 'bogus'"),
        (["check", "--bogus", "x"], 2, "--bogus"),
        (["check", "a\x1b[31m\nb"], 1, "a\\x1b[31m"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(*arguments, code=code, cwd=tmp_path)
    assert result.stdout == ""
    assert result.stderr.startswith("hw: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_debug_shows_where_an_error_comes_from() -> None:
    assert "Traceback" in run("--debug", "check", "nowhere", code=1).stderr


def test_a_mistake_of_its_own_is_one_line(tmp_path: Path) -> None:
    program = (
        "import headwater.cli.storage.check as c, headwater.cli as cli, sys; c.run = lambda *a, **k: 1 / 0; cli.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "check", "x"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 1
    assert result.stderr == "hw: internal error: ZeroDivisionError: division by zero; hw --debug shows where\n"


def test_a_closed_pipe_ends_it_quietly(partition: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*HW, "inspect", str(first_segment(partition))]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert result.returncode == 128 + signal.SIGPIPE
    assert result.stderr == b""


def test_ctrl_c_on_a_terminal_ends_it_quietly(tmp_path: Path) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "TMPDIR": str(tmp_path)}
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [*HW, "tour"])
    shown = b""
    while b"writer-3" not in shown:
        shown += os.read(fd, 65536)
    os.write(fd, b"\x03")
    with contextlib.suppress(OSError):
        while content := os.read(fd, 65536):
            shown += content
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"\x1b[" in shown
    assert b"Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


# hw check


def test_check_finds_nothing_in_a_sound_partition(partition: Path) -> None:
    report = json.loads(run("check", partition).stdout)
    assert (report["damaged"], report["findings"]) == (False, [])
    assert (report["start"], report["end"], report["records"], report["frames"]) == (0, 603, 603, 62)
    assert [segment["base"] for segment in report["segments"]] == [
        int(path.stem) for path in sorted(partition.glob("*.log"))
    ]
    assert report["bytes"] == sum(path.stat().st_size for path in partition.glob("*.log"))


def test_check_on_a_terminal_shows_a_table(partition: Path) -> None:
    code, shown = run_on_terminal("check", partition)
    assert code == 0
    assert "\x1b[" in shown
    text = COLOURS.sub("", shown)
    assert first_segment(partition).name in text
    assert "no damage in 603 records" in text


@pytest.mark.parametrize("position", [0, 30, 78, 80, 90, 130, 80 + HEADER_BYTES, 5000, -1])
def test_check_finds_a_flipped_bit_anywhere_in_a_segment(partition: Path, position: int) -> None:
    before = {path.name: path.read_bytes() for path in partition.iterdir() if path.is_file()}
    flip(first_segment(partition), position)
    flipped = first_segment(partition).read_bytes()
    report = json.loads(run("check", partition, code=1).stdout)
    damage = [finding for finding in report["findings"] if finding["kind"] == "damage"]
    assert len(damage) == 1
    assert damage[0]["file"] == first_segment(partition).name
    assert first_segment(partition).read_bytes() == flipped
    assert all(
        (partition / name).read_bytes() == content for name, content in before.items() if not name.endswith(".log")
    )


def test_check_names_the_records_that_are_lost(partition: Path) -> None:
    flip(first_segment(partition), 90)
    code, shown = run_on_terminal("check", partition)
    assert code == 1
    assert "offsets 0 to 1 cannot be read" in re.sub(r"\s+", " ", COLOURS.sub("", shown))


def test_check_finds_a_missing_segment(partition: Path) -> None:
    second = sorted(partition.glob("*.log"))[1]
    second.unlink()
    report = json.loads(run("check", partition, code=1).stdout)
    lost = [finding for finding in report["findings"] if finding["kind"] == "damage"]
    assert [finding["offset"] for finding in lost] == [int(second.stem)]


def test_check_finds_the_end_missing(partition: Path) -> None:
    last = max(partition.glob("*.log"))
    os.truncate(last, last.stat().st_size - 8)
    report = json.loads(run("check", partition, code=1).stdout)
    assert [(finding["offset"], finding["next_offset"]) for finding in report["findings"]] == [(602, 603)]


@pytest.mark.parametrize("name", ["state", "*.index", "*.producers"])
def test_what_the_engine_makes_anew_is_no_damage(partition: Path, name: str) -> None:
    for path in partition.glob(name):
        path.write_bytes(b"\0" * path.stat().st_size)
    report = json.loads(run("check", partition).stdout)
    assert {finding["kind"] for finding in report["findings"]} == {"note"}


def test_an_unfinished_append_is_no_damage(partition: Path) -> None:
    last = max(partition.glob("*.log"))
    with last.open("ab") as file:
        file.write(b"HWF1 half a frame")
    report = json.loads(run("check", partition).stdout)
    assert ["behind the published end" in finding["reason"] for finding in report["findings"]] == [True]


def test_check_accepts_what_cleaning_leaves(partition: Path) -> None:
    with DirectoryPartition(partition, CONFIG) as log:
        log.compact()
        log.truncate(555)
        log.delete_before(105)
        log.append(encode([b"more"]))
    report = json.loads(run("check", partition).stdout)
    assert (report["findings"], report["start"], report["end"]) == ([], 105, 556)
    assert any(segment["compacted"] for segment in report["segments"])


def test_a_partition_in_use_can_be_checked(partition: Path) -> None:
    with DirectoryPartition(partition, CONFIG) as log:
        with log._owner.locked():
            report = json.loads(run("check", partition).stdout)
        log.append(encode([b"more"]))
    assert report["damaged"] is False


def test_a_typed_frame_without_its_schema_is_damage(tmp_path: Path) -> None:
    schema = hw.Schema(pa.schema([("x", pa.int64())]))
    with DirectoryPartition(tmp_path / "p") as log:
        log.append(encode_batch(pa.RecordBatch.from_pydict({"x": [1, 2]}), schema))
    assert json.loads(run("check", tmp_path / "p").stdout)["records"] == 2
    shutil.rmtree(tmp_path / "p" / "schemas")
    report = json.loads(run("check", tmp_path / "p", code=1).stdout)
    assert f"{schema.id:016x}" in report["findings"][0]["reason"]


# hw inspect


def test_inspect_shows_the_frames_of_a_segment(partition: Path) -> None:
    document = json.loads(run("inspect", "--frames", 0, first_segment(partition)).stdout)
    assert document["kind"] == "segment"
    assert document["header"]["base"] == 0
    assert document["frames"][0]["position"] == 80
    assert document["frames"][0]["next_offset"] == 2
    assert {frame["codec"] for frame in document["frames"]} == {"none", "zstd"}
    assert document["frames"][1]["producer_id"] == b"pppppppppppppppp".hex()
    assert document["count"] == len(document["frames"])


def test_inspect_on_a_terminal_draws_a_map(partition: Path) -> None:
    flip(first_segment(partition), 5000)
    code, shown = run_on_terminal("inspect", "--frames", 3, first_segment(partition))
    text = COLOURS.sub("", shown)
    assert code == 0
    assert "╳ damaged" in text
    assert text.count("╳") > 1
    assert "more: --frames 0 shows all" in text


def test_data_is_shown_and_not_obeyed(partition: Path) -> None:
    code, shown = run_on_terminal("inspect", "--frames", 1, "--records", 2, first_segment(partition))
    assert code == 0
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    text = COLOURS.sub("", shown)
    assert r"\x1b]0;owned\x07\x1b[31m[red]bold[/red]\r\n\xff" in text
    assert "[bold]key[/]" in text
    records = json.loads(run("inspect", "--records", 2, first_segment(partition)).stdout)["records"]
    assert records[0]["value"] == {"hex": HOSTILE.hex()}
    assert records[1] == {**records[1], "value": None, "key": "[bold]key[/]"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain, \xc3\xbcber", "plain, über"),
        (b"\x00\x1b\x7f\xc2\x9b", r"\x00\x1b\x7f\x9b"),
        ("\u202eright to left", r"\u202eright to left"),
        ("line\u2028separator", r"line\u2028separator"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_spelled_out(data: bytes | str, text: str) -> None:
    assert printable(data) == text


def test_inspect_shows_a_segment_whose_header_is_damaged(partition: Path) -> None:
    flip(first_segment(partition), 20)
    document = json.loads(run("inspect", first_segment(partition)).stdout)
    assert document["header"] is None
    assert "checksum" in document["problem"]
    assert document["frames"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("*.index", "index"), ("state", "state"), ("*.producers", "producers"), ("start", "mark"), ("lock", "lock")],
)
def test_inspect_shows_the_other_files(partition: Path, name: str, kind: str) -> None:
    with DirectoryPartition(partition, CONFIG) as log:
        log.delete_before(1)
    path = max(partition.glob(name))
    assert json.loads(run("inspect", path).stdout)["kind"] == kind
    code, shown = run_on_terminal("inspect", path)
    assert (code, "Traceback" in shown) == (0, False)


def test_inspect_shows_both_copies_of_the_state(partition: Path) -> None:
    path = partition / "state"
    document = json.loads(run("inspect", path).stdout)
    newest = document["copies"][document["newest"]]
    assert (newest["end"], newest["durable_end"]) == (603, 603)
    flip(path, 512 * document["newest"] + 60)
    assert json.loads(run("inspect", path).stdout)["copies"][document["newest"]] is None


def test_inspect_shows_a_schema(tmp_path: Path) -> None:
    schema = hw.Schema(pa.schema([pa.field("[red]x", pa.int64(), nullable=False)]))
    with DirectoryPartition(tmp_path / "p") as log:
        log.append(encode_batch(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema.payload), schema))
    path = tmp_path / "p" / "schemas" / f"{schema.id:016x}.arrow"
    assert json.loads(run("inspect", path).stdout)["columns"] == [
        {"name": "[red]x", "type": "int64", "nullable": False}
    ]
    assert "[red]x: int64 not null" in COLOURS.sub("", run_on_terminal("inspect", path)[1])


# hw unlock


def test_unlock_refuses_when_nobody_holds_the_lock(partition: Path) -> None:
    assert "no process holds the lock" in run("unlock", "--kill", "--yes", partition, code=1).stderr


@pytest.fixture
def holder(partition: Path) -> Any:
    """A process that took the lock and was stopped."""
    program = (
        "import os, signal, sys; from headwater.log import DirectoryPartition\n"
        "log = DirectoryPartition(sys.argv[1])\n"
        "with log._owner.locked():\n"
        "    print('held', flush=True); os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(partition)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_unlock_leaves_alone_who_has_the_whole_store(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path, exclusive=True) as store:
        store.create_topic("orders")
        with store.producer("orders") as out:
            out.send(b"x")
        told = run("unlock", "--kill", "--yes", tmp_path / "orders" / "0", code=1).stderr
        assert f"process {os.getpid()} has all of" in told


def test_unlock_shows_the_holder(partition: Path, holder: subprocess.Popen[bytes]) -> None:
    document = json.loads(run("unlock", partition).stdout)
    assert (document["pid"], document["condition"], document["killed"]) == (holder.pid, "stopped", False)
    assert document["held_seconds"] >= 1
    code, shown = run_on_terminal("unlock", partition)
    assert code == 0
    assert f"is locked by process {holder.pid}" in re.sub(r"\s+", " ", COLOURS.sub("", shown))
    assert holder.poll() is None


def test_unlock_asks_before_it_kills(partition: Path, holder: subprocess.Popen[bytes]) -> None:
    assert "--yes" in run("unlock", "--kill", partition, code=1, stdin=subprocess.DEVNULL).stderr
    assert holder.poll() is None


def test_unlock_kills_the_holder_and_others_go_on(partition: Path, holder: subprocess.Popen[bytes]) -> None:
    assert json.loads(run("unlock", "--kill", "--yes", partition).stdout)["killed"] is True
    assert holder.wait(300) == -signal.SIGKILL
    with DirectoryPartition(partition, CONFIG) as log:
        assert log.append(encode([b"more"])).base_offset == 603


# hw tour


def test_the_tour_keeps_every_promise(tmp_path: Path) -> None:
    directory = tmp_path / "tour"
    text = run("tour", "--no-spark", directory).stdout
    assert "every promise was kept" in text
    assert "BROKEN" not in text
    assert "\x1b" not in text
    assert "killed (SIGKILL) in the middle" in text
    assert "cut 3300 bytes of an unfinished append" in text
    assert "adopted 50 records" in text
    assert re.search(r"[\d,]+ acknowledged records, 0 missing", text)
    run("check", directory / "partition")
    run("check", directory / "flipped", code=1)


def test_the_tour_fails_when_an_acknowledged_record_is_missing(tmp_path: Path) -> None:
    """One frame is taken out of the account's log behind the tour's back, before it reads everything back."""
    program = (
        "import sys; from pathlib import Path; from headwater.cli.tour.command import Tour\n"
        "from headwater.log import DirectoryPartition\n"
        "tour = Tour(Path(sys.argv[1]), kept=True)\n"
        "writer = tour._start(0, 20); assert writer.finish() == 0\n"
        "with DirectoryPartition(tour.partition) as log: log.truncate(950)\n"
        "tour._read_back(); sys.exit(tour._close(0.0))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "tour")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert "BROKEN: 1,000 acknowledged records, 50 missing" in result.stdout
