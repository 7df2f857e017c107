"""Nothing is left behind: no marks of unfinished work, no stray white space, no one's machine, no silence.

The words that are looked for are put together from pieces here, so that this file does not find itself.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROSE_AND_CODE = frozenset(
    {".css", ".html", ".js", ".json", ".md", ".proto", ".py", ".pyi", ".sh", ".sql", ".toml", ".yaml", ".yml"}
)

UNFINISHED = re.compile(rf"\b({'TO'}DO|{'FIX'}ME|{'XX'}X|{'HA'}CK|{'W'}IP)\b")
HOSTS = re.compile(
    r"\b(pypi|pythonhosted|anaconda|npmjs|maven(\.apache)?)\.(org|com)\b"
    r"|\b(docker|quay|ghcr|crates)\.io\b"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~}])/(work|home|Users)/\w")


def files() -> list[Path]:
    """Every file that is in the repository or about to be: tracked, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    paths = sorted({ROOT / name for name in listing.split("\0") if name})
    return [path for path in paths if path.is_file()]  # deleted ones stay listed until they are committed


def texts() -> dict[Path, str]:
    """The text of every file that is text."""
    found: dict[Path, str] = {}
    for path in files():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def written_by_hand() -> dict[Path, str]:
    """The files that people of this project write: not locks, licences, pictures, what is generated or others'."""
    return {
        path: text
        for path, text in texts().items()
        if path.suffix in PROSE_AND_CODE or path.name in ("Makefile", "Dockerfile", "run", ".gitignore")
        if not path.stem.endswith("_pb2") and "vendor" not in path.parts
    }


def lines_with(pattern: re.Pattern[str], sources: dict[Path, str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in sources.items()
        for number, line in enumerate(text.split("\n"), start=1)
        if pattern.search(line)
    ]


def test_no_work_is_left_unfinished() -> None:
    assert lines_with(UNFINISHED, written_by_hand()) == []


def test_no_line_ends_in_white_space() -> None:
    assert lines_with(re.compile(r"[ \t\r]$"), written_by_hand()) == []


def test_no_tabs_but_where_make_demands_them() -> None:
    sources = {path: text for path, text in written_by_hand().items() if path.name != "Makefile"}
    assert lines_with(re.compile("\t"), sources) == []


def test_every_file_ends_with_one_newline() -> None:
    bad = [path for path, text in written_by_hand().items() if text and not re.search(r"[^\n]\n\Z", text)]
    assert bad == []


def test_no_registry_is_named() -> None:
    assert lines_with(HOSTS, texts()) == []


def test_no_path_of_a_machine_is_named() -> None:
    assert lines_with(MACHINE_PATHS, texts()) == []


def test_every_module_says_what_it_is_for() -> None:
    modules = {path: text for path, text in written_by_hand().items() if path.suffix == ".py"}
    assert [path for path, text in modules.items() if not ast.get_docstring(ast.parse(text))] == []


def test_every_public_name_is_documented() -> None:
    headwater = importlib.import_module("headwater")
    undocumented = [name for name in headwater.__all__ if not is_documented(getattr(headwater, name))]
    assert undocumented == []


def is_documented(item: object) -> bool:
    """Whether a class, function or module has a docstring of its own. Other values cannot have one."""
    if not (inspect.isclass(item) or inspect.isroutine(item) or inspect.ismodule(item)):
        return True
    own = vars(item).get("__doc__") if inspect.isclass(item) else inspect.getdoc(item)
    # A dataclass or a named tuple without a docstring is given its signature for one.
    return own is not None and not (inspect.isclass(item) and own.startswith(f"{item.__name__}("))


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (UNFINISHED, "# TO" + "DO: later", True),
        (UNFINISHED, "# all done, methodology and hackers", False),
        (HOSTS, "https://py" + "pi.org/simple", True),
        (HOSTS, "files.python" + "hosted.org", True),
        (HOSTS, "https://keepachangelog.com/en/1.1.0/", False),
        (HOSTS, "import io; docker compose; https://python.org", False),
        (MACHINE_PATHS, "see /wo" + "rk/notes", True),
        (MACHINE_PATHS, "see https://example.com/work/notes and $HOME/work/notes", False),
    ],
)
def test_what_is_looked_for_is_found(pattern: re.Pattern[str], text: str, found: bool) -> None:
    assert bool(pattern.search(text)) is found
