"""Arguments that typer cannot check by itself, such as `--set retention_age=7d`, and the error for wrong ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.core.errors import InvalidConfiguration
from headwater.core.options import options_of

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option, such as retention_age=7d; more than once for more."),
]


class Mistake(InvalidConfiguration):
    """An argument that means nothing here. The command ends with 2, as for an option that does not exist."""


def parse_settings(kind: type[Any], said: list[str] | None) -> dict[str, Any]:
    """The options that were said, by name; raises Mistake."""
    known = {option.name: option for option in options_of(kind)}
    settings: dict[str, Any] = {}
    for text in said or []:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or name not in known:
            raise Mistake(f"--set takes name=value, not {text!r:.100}; names are {', '.join(known)}")
        try:
            settings[name] = known[name].parse(value)
        except InvalidConfiguration as error:
            raise Mistake(f"--set {text!r:.100}: {error}") from None
    return settings


def written(config: Any) -> dict[str, str]:
    """Every option of a configuration as text, such as `parse_settings` takes."""
    return {option.name: option.written(getattr(config, option.name)) for option in options_of(type(config))}
