"""Every command of `hw` has help with examples, every flag says what it does, and the documents name them all."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.app import COMMANDS, app
from headwater.cli.cheat import SHEET

ROOT = Path(__file__).parents[2]


@cache
def every_command() -> dict[str, Any]:
    """Each command by its whole name, groups included."""
    root = typer.main.get_command(app)
    commands: dict[str, Any] = {}

    def walk(group: Any, above: str) -> None:
        context = typer.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            commands[f"{above}{name}"] = command
            if hasattr(command, "list_commands"):
                walk(command, f"{above}{name} ")

    walk(root, "")
    return commands


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_every_command_has_examples() -> None:
    shown_as = {"broker serve": "broker"}
    silent = [
        name
        for name, command in every_command().items()
        if "Examples" not in (command.epilog or "") or f"hw {shown_as.get(name, name)}" not in command.epilog
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["", "topic", "topic create", "consume", "broker serve"])
def test_help_shows_them(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="hw")
    assert result.exit_code == 0
    assert "hw " in result.output.partition("Examples")[2]


def test_every_command_and_every_flag_says_what_it_does() -> None:
    silent = [name for name, command in every_command().items() if not (command.help or "").strip()]
    silent += [
        f"{name} {parameter.name}"
        for name, command in every_command().items()
        for parameter in command.params
        if not (getattr(parameter, "help", None) or "").strip() and not getattr(parameter, "hidden", False)
    ]
    assert silent == []


def test_every_command_can_write_json() -> None:
    leaves = {name: command for name, command in every_command().items() if not hasattr(command, "list_commands")}
    others = {"tour", "console", "broker serve", "cluster export"}  # they show, serve, or have formats
    silent = [
        name
        for name, command in leaves.items()
        if name not in others and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert silent == []


def test_the_first_line_about_a_command_is_what_hw_help_lists() -> None:
    output = CliRunner().invoke(app, ["--help"], prog_name="hw").output
    for command in COMMANDS.values():
        assert re.search(rf"{command.name}\s+{re.escape(command.about)}", output)


def test_help_imports_neither_arrow_nor_the_commands() -> None:
    heavy = (
        "pyarrow",
        "grpc",
        "duckdb",
        "numpy",
        "headwater.cli.topics.topic",
    )
    program = f"""
import sys
from headwater.cli import main
sys.argv = ["hw", "--help"]
try:
    main()
except SystemExit:
    print([one for one in {heavy} if one in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_cheat_sheet_names_commands_that_exist() -> None:
    known = every_command()
    for lines in SHEET.values():
        for line, _ in lines:
            for words in re.findall(r"\bhw ([a-z]+)(?: ([a-z]+))?", line):
                assert words[0] in known
                if hasattr(known[words[0]], "list_commands") and words[1] and words[0] != "broker":
                    assert " ".join(words) in known
                flags = set(re.findall(r"--[a-z-]+", line))
                own = [known[" ".join(words)]] if " ".join(words) in known else [known[words[0]]]
                assert flags <= {flag for command in own for parameter in command.params for flag in parameter.opts}


def test_the_manuals_name_every_command() -> None:
    documents = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    assert [name for name in every_command() if f"hw {name}" not in documents] == []
