"""The environment: `HEADWATER_PRODUCER_LINGER=20ms` is the option `linger` of every producer's configuration.

The rule is HEADWATER, the noun, the option, for each noun of a preset. It goes over the preset, and what a program says
explicitly goes over it. It is read when a store is opened by `headwater.open`, not by the engine. The nouns of no
preset, the broker and its client, read theirs where they begin: see `options_said`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from headwater.core.errors import InvalidConfiguration
from headwater.core.options import Option, options_of
from headwater.core.presets import Preset, nouns

PREFIX: Final = "HEADWATER_"
APART: Final = ("BROKER_", "CLIENT_")
"""The prefixes of variables whose nouns are in no preset."""

_ALIKE: Final = 0.8
"""The similarity from which on a name of another form is taken for a mistake."""

VARIABLES: Final[Mapping[str, tuple[str, Option]]] = {
    f"{PREFIX}{noun}_{option.name}".upper(): (noun, option)
    for noun, kind in nouns().items()
    for option in options_of(kind)
}
"""Every variable: the noun and the option that it sets."""


def overridden(preset: Preset, environment: Mapping[str, str]) -> Preset:
    """The preset with what the environment says over it. A variable that is set to nothing counts as not set."""
    if not isinstance(preset, Preset):
        raise InvalidConfiguration(
            f"preset must be a Preset, such as headwater.core.presets.THROUGHPUT, not {preset!r:.60}"
        )
    changes: dict[str, dict[str, Any]] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or not text.strip():
            continue
        if name not in VARIABLES:
            _refuse_mistake(name)
            continue
        noun, option = VARIABLES[name]
        try:
            changes.setdefault(noun, {})[option.name] = option.parse(text)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{name}={text!r:.60}: {error}") from None
    return replace(preset, **{noun: replace(getattr(preset, noun), **values) for noun, values in changes.items()})


def options_said(
    noun: str, kind: type[Any], environment: Mapping[str, str], *, besides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options of a configuration that the environment sets. `besides` are variables of the noun that are none."""
    known = {f"{PREFIX}{noun}_{option.name}".upper(): option for option in options_of(kind)}
    others = {f"{PREFIX}{noun}_{name}".upper() for name in besides}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.upper().startswith(f"{PREFIX}{noun}_".upper()) or not text.strip() or name in others:
            continue
        if name not in known:
            nearest = get_close_matches(name.upper(), [*known, *others], n=1, cutoff=0.0)
            raise InvalidConfiguration(f"there is no option for {name}; the nearest variable is {nearest[0]}")
        try:
            values[known[name].name] = known[name].parse(text)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{name}={text!r:.60}: {error}") from None
    return values


def _refuse_mistake(name: str) -> None:
    """Raise if the unknown variable looks like one of ours. Others may be anybody's, and are left alone."""
    said = name.removeprefix(PREFIX).upper()
    if said.startswith(APART):
        return
    ours = said.startswith(tuple(f"{noun.upper()}_" for noun in nouns()))
    known = {variable.removeprefix(PREFIX): option for variable, (_, option) in VARIABLES.items()}
    nearest = [variable for variable, option in known.items() if option.name.upper() == said]  # the noun is missing
    nearest = nearest or get_close_matches(said, known, n=1, cutoff=0.0 if ours else _ALIKE)
    if nearest:
        raise InvalidConfiguration(f"there is no option for {name}; the nearest variable is {PREFIX}{nearest[0]}")
