"""Nothing is left behind: no marks of unfinished work, no stray white space, no one's machine, no silence.

The words that are looked for are put together from pieces here, so that this file does not find itself.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
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
HEADLESS = re.compile(r"(Who|What|Whoever|Whom|Whomever|Whose|Which)\b")
"""The beginnings of sentences that name no actor. A question may begin so."""
HEADLESS_SUMMARY = re.compile(r"(Where|How|Whether)\b")
"""The first sentence of a docstring says what the thing does for its caller, so it does not begin like this either."""

CLEAN = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "docs",
    "examples",
    "headwater",
    "tests",
)
"""Files and folders in which every sentence names its actor. A folder stands for all files below it."""


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
    """Return whether a class, function or module has a docstring of its own. Other values cannot have one."""
    if not (inspect.isclass(item) or inspect.isroutine(item) or inspect.ismodule(item)):
        return True
    own = vars(item).get("__doc__") if inspect.isclass(item) else inspect.getdoc(item)
    # A dataclass or a named tuple without a docstring is given its signature for one.
    return own is not None and not (inspect.isclass(item) and own.startswith(f"{item.__name__}("))


def headless(path: str, text: str) -> list[str]:
    """Return the sentences of a Python or Markdown file that begin without an actor, with their lines."""
    return [
        f"{path}:{line}: {sentence}"
        for line, passage, is_docstring in (passages_of_code(text) if path.endswith(".py") else passages_of_prose(text))
        for number, sentence in enumerate(re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", passage))
        if not sentence.endswith("?")
        if HEADLESS.match(sentence) or (is_docstring and number == 0 and HEADLESS_SUMMARY.match(sentence))
    ]


def passages_of_code(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield every docstring and every block of comments: its line, its text in one line, and whether it is a docstring.

    A string that stands alone behind an attribute counts as a docstring.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number, paragraph in enumerate(re.split(r"\n\s*\n", node.value.value.strip())):
                yield node.lineno, " ".join(paragraph.split()), number == 0
    block: list[str] = []
    begun = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone = not token.line[: token.start[1]].strip()
        if block and not (alone and token.start[0] == last + 1):
            yield begun, " ".join(block), False
            block = []
        begun = begun if block else token.start[0]
        last = token.start[0] if alone else 0
        block.append(token.string.lstrip("# "))
    if block:
        yield begun, " ".join(block), False


def passages_of_prose(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the paragraphs, list items and table cells of a Markdown text. Code and headings are left out."""
    text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#.*|<.*)$", "", text, flags=re.MULTILINE)
    for block in re.finditer(r"(?:^.*\S.*$\n?)+", text, re.MULTILINE):
        line = text.count("\n", 0, block.start()) + 1
        for part in re.split(r"\n(?=\s*(?:[-*]|\d+\.|\|) ?)", block[0]):
            for cell in re.split(r"(?<!\\)\|", part):
                yield line, " ".join(re.sub(r"^\s*(?:[-*]|\d+\.)\s", "", cell).split()), False
            line += part.count("\n") + 1


def test_sentences_name_their_actor() -> None:
    found = [
        finding
        for path, text in written_by_hand().items()
        if path.suffix in (".py", ".md")
        if (name := path.relative_to(ROOT).as_posix()) in CLEAN or name.startswith(tuple(f"{one}/" for one in CLEAN))
        for finding in headless(name, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""Who asks is told."""', [1]),
        ("a.py", '"""Read it.\n\nWhich is fine. What is read is kept."""', [1, 1]),
        ("a.py", '"""Read it. What else? Who knows?"""', []),
        ("a.py", '"""Whether it is read."""\nx = 1\n"""How long it takes."""', [1, 3]),
        ("a.py", '"""Read it. Whether it is read matters."""', []),
        ("a.py", "x = 1  # What it holds.\n# It is\n# Which is so. What\n# for?", [1]),
        ("a.py", "# The one\n# Who is here.\n\n# Who is not.", [4]),
        ("a.md", "# What it is for\n\nIt is\nWhat it is.\n\n- Who asks.\n- He asks.\n", [6]),
        ("a.md", "```\nWho asks.\n```\nIt works. Whoever asks\nis told.", [4]),
        ("a.md", "| a | b |\n| --- | --- |\n| yes | What it does. |", [3]),
    ],
)
def test_headless_sentences_are_noticed(name: str, text: str, lines: list[int]) -> None:
    assert [int(finding.split(":")[1]) for finding in headless(name, text)] == lines


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


def test_a_class_name_occurs_once() -> None:
    """The asyncio twins of public classes share their names on purpose."""
    places: dict[str, list[str]] = {}
    for path, text in written_by_hand().items():
        name = str(path.relative_to(ROOT))
        if name.startswith("headwater/") and not name.startswith("headwater/aio/") and path.suffix == ".py":
            for item in ast.parse(text).body:
                if isinstance(item, ast.ClassDef):
                    places.setdefault(item.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
