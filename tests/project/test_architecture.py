"""The architecture page names files and symbols that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "headwater"
TEXT: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ANSWERS: Final = re.findall(r"^\| (.+\?) \| `(\S+)` \| `(\S+)` \|$", TEXT, re.MULTILINE)
NAMED: Final = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", TEXT)
PACKAGES: Final = re.findall(r"^\| (`[^|]+) \|", TEXT, re.MULTILINE)


def defines(file: Path, symbol: str) -> bool:
    """Return whether a module defines a function, a class with a method, or a constant."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in symbol.split("."):
        found = [node for node in body if part in _names(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_there_are_twenty_questions() -> None:
    assert len(ANSWERS) == 20


@pytest.mark.parametrize(("question", "file", "symbol"), ANSWERS)
def test_an_answer_exists(question: str, file: str, symbol: str) -> None:
    assert defines(PACKAGE / file, symbol), question


@pytest.mark.parametrize(("file", "symbol"), NAMED)
def test_what_a_record_passes_exists(file: str, symbol: str) -> None:
    assert defines(PACKAGE / file, symbol)


def test_every_package_is_named() -> None:
    named = {name for names in PACKAGES for name in re.findall(r"`([\w/.]+)`", names)}
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert there <= named
    assert [name for name in named if not (PACKAGE / name).exists()] == []
