"""The documents are true: their programs run, their links lead somewhere, their commands and proofs exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from struct import Struct, calcsize
from zlib import crc32

import pytest

import headwater
from headwater.log.files import counters, index, marks, segment, state
from headwater.log.format import frame
from headwater.log.write import producers
from tests.cli.test_help import every_command
from tests.faults.__main__ import load

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REMOVED = {"bench"}
"""Commands that are gone, and that the documents about history still name."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(document: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(document.read_text(encoding="utf-8")) if found == language]


def prose(document: Path) -> str:
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """The names of a document's headings, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def commands() -> dict[str, set[str]]:
    """The commands of `hw` and the options of each, those of its own commands included."""
    options: dict[str, set[str]] = {}
    for name, command in every_command().items():
        found = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}
        options.setdefault(name.split()[0], {"--help"}).update(re.findall(r"--[a-z]+", " ".join(found)))
    return options


SERVED = ROOT / "docs" / "broker.md"
"""Its programs need the brokers that its commands start: tests/broker/test_document.py runs both."""
CLUSTERED = ROOT / "docs" / "cluster.md"
"""Its programs need a cluster: tests/cluster/test_command.py has one."""
PROGRAMS = {
    path: "\n".join(code) for path in DOCUMENTS if (code := blocks(path, "python")) and path not in (SERVED, CLUSTERED)
}
"""The blocks of a document are one program, from the first to the last."""
IN_TURN = """
import os, shutil, sys, traceback
for name in sys.argv[1:]:
    try:
        with open(name) as file:
            exec(compile(file.read(), name, "exec"), {"__name__": "__main__"})
    except Exception:
        with open(name + ".error", "w") as file:
            traceback.print_exc(file=file)
    for entry in os.scandir():
        shutil.rmtree(entry) if entry.is_dir() else os.unlink(entry)
"""
"""Runs programs one after the other, each in an empty directory. Those that use Spark have one Java between them."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Gives what the program of a document prints, and fails if the program does. Each runs once."""
    programs = tmp_path_factory.mktemp("programs")

    def started(*documents: Path) -> str:
        names = [programs / document.name for document in documents]
        for name, document in zip(names, documents, strict=True):
            name.write_text(PROGRAMS[document], encoding="utf-8")
        command = [sys.executable, "-W", "error", "-c", IN_TURN, *map(str, names)]
        directory = tmp_path_factory.mktemp("programs")
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    @cache
    def of_spark() -> None:
        started(*(document for document, program in PROGRAMS.items() if "hw.spark.session" in program))

    @cache
    def output(document: Path) -> str:
        if "hw.spark.session" in PROGRAMS[document]:
            of_spark()
            printed = ""
        else:
            printed = started(document)
        error = programs / f"{document.name}.error"
        assert not error.exists(), error.read_text(encoding="utf-8")
        return printed

    return output


@pytest.mark.parametrize("document", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_of_a_document_run(document: Path, run: Callable[[Path], str]) -> None:
    run(document)


def test_what_the_readme_says_is_printed_is_printed(run: Callable[[Path], str]) -> None:
    partition = crc32(b"customer-7") % 4
    trades = [{"symbol": "HW", "price": 10.5}, {"symbol": "WH", "price": 9.5}, {"symbol": "HW", "price": 10.75}]
    streams = [f"{partition} 0", "0 b'customer-7' b'two teas'", str(trades)]
    engine = ["0 2", "0 b'customer-7' b'tea'", "1 b'customer-8' b'coffee'"]
    assert run(ROOT / "README.md").splitlines() == streams + engine


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in LINK.findall(prose(document)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.is_file() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    known = commands()
    lines = re.findall(r"(?:^\$ |`)hw ([a-z]+)([^`#\n]*)", text, re.MULTILINE)
    gone = REMOVED if document.name in ("CHANGELOG.md", "decisions.md") else set()
    assert [name for name, _ in lines if name not in known and name not in gone] == []
    assert [
        (name, option)
        for name, rest in lines
        for option in re.findall(r"--[a-z]+", rest)
        if option not in known.get(name, {option})
    ] == []


def test_removed_commands_are_gone() -> None:
    assert REMOVED.isdisjoint(commands())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:^\$ |`)make ([a-z]+)", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def holders() -> list[list[str]]:
    """Return the proofs and tests that each promise names."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return [
        re.findall(r"`([^`]+)`", paragraph)
        for paragraph in re.findall(r"^\*\*Held by\*\* (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    ]


def test_every_promise_is_held_by_something() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### ", text, re.MULTILINE)) == len(holders())
    assert all(holders())


def test_every_proof_and_test_that_a_promise_names_exists() -> None:
    proofs = load()
    named = {name for names in holders() for name in names}
    files = {name for name in named if name.startswith("tests/")}
    assert [name for name in sorted(files) if not (ROOT / name).is_file()] == []
    assert sorted(named - files - set(proofs)) == []


def test_every_proof_holds_a_promise() -> None:
    named = {name for names in holders() for name in names}
    assert sorted(set(load()) - named) == []


def test_the_page_of_proofs_names_proofs_that_exist() -> None:
    text = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    proofs = load()
    lines = re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    assert lines
    assert [(row, name) for row, name in lines if name not in proofs or proofs[name].row != int(row)] == []


def test_every_proof_is_among_those_that_the_tests_run() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    spans = [(int(first), int(last)) for first, last in re.findall(r"FAULT_ROWS := (\d+)-(\d+)", text)]
    assert [name for name, one in load().items() if not any(first <= one.row <= last for first, last in spans)] == []


def test_decisions_are_numbered_in_order() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert re.findall(r"^(?:- )?\*\*(?!\d+\. ).*", text, re.MULTILINE) == []


def test_every_error_is_in_the_operations_manual() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text[text.index("## Errors") : text.index("## What to watch")]
    kinds = [getattr(headwater, name) for name in headwater.__all__]
    errors = {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)}
    assert sorted(name for name in errors - {"PartitionError"} if f"`{name}`" not in table) == []


FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "layout", "rest"),
    [
        ("Segment", segment._LAYOUT, [72, 76]),
        ("Frame", frame._HEADER, [112]),
        ("State page", state._LAYOUT, [508]),
        ("Counters", counters.FIELDS, [272]),
    ],
)
def test_the_format_has_every_field_where_the_code_has_it(heading: str, layout: Struct, rest: list[int]) -> None:
    section = re.split(rf"^## {heading}$", FORMAT, flags=re.MULTILINE)[1].split("\n## ")[0]
    table = re.search(r"^\| at \|.*?(?:\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert table is not None
    documented = [int(number) for number in re.findall(r"^\| (\d+) \|", table[0], re.MULTILINE)]
    codes = re.findall(r"\d*s|[a-zA-Z]", layout.format.removeprefix("<"))
    assert documented == [calcsize("<" + "".join(codes[:number])) for number in range(len(codes))] + rest


@pytest.mark.parametrize(
    "magic",
    [
        frame.MAGIC,
        index.INDEX_MAGIC,
        producers._MAGIC,
        segment.SEGMENT_MAGIC,
        state.MAGIC,
        *marks._MAGIC.values(),
    ],
)
def test_the_format_names_every_magic(magic: bytes) -> None:
    assert f"`{magic.decode()}`" in FORMAT


def test_the_format_states_the_sizes_that_the_code_has() -> None:
    assert f"A header of {segment.SEGMENT_HEADER_BYTES} bytes, then frames" in FORMAT
    assert f"A header of {frame.HEADER_BYTES} bytes, then one Arrow message" in FORMAT
    assert f"A header of {index.INDEX_HEADER_BYTES} bytes, then entries of {index.ENTRY_BYTES} bytes" in FORMAT
    assert f"{state.STATE_BYTES} bytes: two copies of {state.STATE_BYTES // 2}" in FORMAT
