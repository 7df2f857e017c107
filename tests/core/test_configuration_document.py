"""docs/configuration.md has every option, with the default, the range and the warning that the code has.

A test that fails shows the table as it has to be: put it into the document.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headwater import (
    BrokerConfig,
    ClientConfig,
    ConsumerConfig,
    PartitionConfig,
    ProducerConfig,
    StewardConfig,
    TopicConfig,
)
from headwater.core import config, presets
from headwater.core.options import options_of
from headwater.core.presets import Preset, nouns

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
KINDS = [PartitionConfig, TopicConfig, ProducerConfig, ConsumerConfig, StewardConfig, BrokerConfig, ClientConfig]


@cache
def docstrings(module: Any, owner: str | None = None) -> dict[str, str]:
    """Return the docstrings below the names of a module, or of a class in it."""
    body = ast.parse(inspect.getsource(module)).body
    if owner is not None:
        body = next(item.body for item in body if isinstance(item, ast.ClassDef) and item.name == owner)
    return {
        before.target.id: " ".join(str(after.value.value).split())
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def section(heading: str) -> str:
    parts = re.split(r"^## (.+)\n", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def table(kind: type[Any]) -> str:
    """The options of a configuration; those that it takes over from another are in that one's table."""
    about = docstrings(config, kind.__name__)
    lines = ["| option | default | allowed | what it does, and what breaks |", "| --- | --- | --- | --- |"]
    for option in options_of(kind):
        if option.name in vars(kind)["__annotations__"]:
            allowed = option.allowed.replace(f"{option.range.noun} ", "") if option.range else option.allowed
            default = option.written(option.default)
            lines.append(f"| `{option.name}` | `{default}` | {allowed} | {about[option.name]} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_has_the_options_as_they_are(kind: type[Any]) -> None:
    assert table(kind) in section(kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_says_what_it_does_on_either_side(kind: type[Any]) -> None:
    """At least two clauses: a sentence that only says what it is warns of nothing."""
    about = docstrings(config, kind.__name__)
    assert set(about) == set(vars(kind)["__annotations__"])
    assert [name for name, text in about.items() if len(re.findall(r"[.;:](?: |$)", text)) < 2] == []


def test_the_document_has_every_preset_and_what_it_costs() -> None:
    about = docstrings(presets)
    names = [name for name, item in vars(presets).items() if isinstance(item, Preset)]
    rows = [f"| `{name}` | {about[name]} |" for name in names]
    text = " ".join(str(presets.sized.__doc__).split())
    rows.append(f"| `sized(partitions=, memory=)` | {text} |")
    assert "\n".join(rows) + "\n" in section("Presets")
    assert [row for row in rows if "costs" not in row] == []


def test_the_document_says_which_variables_there_are() -> None:
    for noun in nouns():
        assert f"`HEADWATER_{noun.upper()}_" in section("The environment")
