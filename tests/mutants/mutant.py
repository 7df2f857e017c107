"""One mutant: a change of the code, the promise that it breaks, and what must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Inapplicable(Exception):
    """The text that a mutant replaces is not in its file exactly once: the mutant must be brought up to date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change that takes one promise away.

    `killers` are run in order until one fails. A path below `tests/`, with `::` and a test or with options, is given to
    pytest. Anything else is a fault proof, with options where its short form with seed 1 is not meant:
    `"tests/log/test_append.py"`, `"tests/log/test_append.py -k atomic"`, `"power_loss"`, `"power_loss --runs 40"`.
    """

    name: str
    promise: str
    """The promise that is gone, in one line."""
    file: str
    """Relative to the root of the project."""
    old: str
    """The exact text that is replaced. It occurs once in the file."""
    new: str
    killers: tuple[str, ...]

    def applied_to(self, root: Path) -> str:
        """The text of the changed file."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.old)) != 1:
            raise Inapplicable(f"{self.name}: the old text is {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)
