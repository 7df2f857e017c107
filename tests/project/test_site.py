"""The documents make a site, without a warning, in which every link leads somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Links(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what an element refers to, and what it is called."""
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.targets.append(value)


def test_the_site_is_built_strictly_and_has_no_dead_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stderr
    pages = {page.resolve(): Links(page) for page in (tmp_path / "site").rglob("*.html") if page.name != "404.html"}
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))  # the README and linked files are among them
    dead, elsewhere = [], []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme:
                elsewhere.append(target)
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            file = path / "index.html" if path.is_dir() else path
            if not file.is_file() or (parts.fragment and file in pages and parts.fragment not in pages[file].anchors):
                dead.append((page.relative_to(tmp_path), target))
    assert dead == []
    assert [target for target in elsewhere if target.endswith((".js", ".css"))] == []  # it can be read offline


@pytest.mark.parametrize(
    "module", ["headwater", "headwater.aio", "headwater.log", "headwater.spark", "headwater.testing"]
)
def test_the_reference_has_every_public_name(module: str) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(rf"^::: {re.escape(module)}\.(\w+)$", pages, re.MULTILINE))
    assert shown == set(importlib.import_module(module).__all__) - {"__version__", "aio"}
