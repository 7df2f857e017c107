"""Hooks of MkDocs that make a site of the documents.

Documents link to each other and to files of the repository by relative paths, as a code host shows them. In the site,
what is in docs/ lies at the top, the README is the first page, and each file that is linked to becomes a page.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TOP = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site whose documents are not in docs/."""
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")
LANGUAGES = {".service": "ini", ".proto": "protobuf"}
"""Languages whose names differ from the ends of files' names."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: those at the top, and the files that documents link to."""
    for page, document in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    linked = {
        path
        for file in files.documentation_pages()
        for target in LINK.findall(file.content_string)
        if not (path := _in_repository(file.src_uri, target)).startswith("docs/") and path not in TOP.values()
    }
    for path in sorted(linked):
        files.append(File.generated(config, f"{path}.md", content=_page_of_code(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs' names
    """Turn links between files of the repository into links between pages."""
    here = page.file.src_uri
    if here not in TOP and not (ROOT / "docs" / here).is_file():
        return markdown  # it is code
    return LINK.sub(lambda link: relpath(_in_site(_in_repository(here, link[1])), dirname(here) or "."), markdown)


def _in_repository(page: str, target: str) -> str:
    """The path from the repository's root of what a page links to."""
    return normpath(join(dirname(TOP.get(page, f"docs/{page}")), target))


def _in_site(path: str) -> str:
    """Return the address of a repository's file on the site."""
    for page, document in TOP.items():
        if path == document:
            return page
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{path}.md"


def _page_of_code(path: str) -> str:
    file = ROOT / path
    language = LANGUAGES.get(file.suffix, file.suffix.removeprefix("."))
    return f"# {path}\n\n~~~~~{language}\n{file.read_text(encoding='utf-8')}~~~~~\n"
