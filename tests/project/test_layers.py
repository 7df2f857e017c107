"""Imports go down only: each package may import those below it, and nothing else of Headwater."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import headwater

PACKAGE: Final = Path(headwater.__file__).parent
LIBRARY: Final = frozenset({"core", "log", "streams"})
BELOW: Final[dict[str, frozenset[str]]] = {
    "core": frozenset(),
    "v1": frozenset(),
    "serving": frozenset({"core"}),
    "monitoring": frozenset({"core", "serving"}),
    "log": frozenset({"core"}),
    "streams": frozenset({"core", "log"}),
    "embedded": LIBRARY,
    "wire": LIBRARY | {"v1"},
    "client": LIBRARY | {"wire", "v1"},
    "opening": LIBRARY | {"embedded", "client"},
    "cluster": LIBRARY | {"embedded", "wire", "v1"},
    "broker": LIBRARY | {"serving", "monitoring", "embedded", "wire", "v1", "cluster"},
    "spark": LIBRARY | {"monitoring", "embedded", "opening"},
    "aio": LIBRARY | {"opening"},
    "console": LIBRARY | {"serving", "embedded", "client", "v1"},
    "testing": frozenset({"core", "log"}),
    "pytest_plugin": LIBRARY | {"embedded", "opening", "broker"},
}
"""The packages that each package may import. The command, and `headwater` itself, may import all of them."""


def imported(module: ast.Module) -> Iterator[str]:
    """The modules of Headwater that a module imports, wherever it does so."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("headwater."))
        elif isinstance(node, ast.ImportFrom) and node.module == "headwater":
            yield from (f"headwater.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headwater."):
            yield node.module


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py" or path.parent != PACKAGE]


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_package_has_its_place() -> None:
    assert {package_of(path) for path in modules()} - BELOW.keys() == {"cli"}


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    allowed = BELOW[package] | {package}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in modules()
        if package_of(path) == package
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[1] not in allowed
    ]
    assert wrong == []
