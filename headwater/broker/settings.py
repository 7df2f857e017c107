"""Settings: a broker's configuration, put together from flags, the environment, a file and defaults, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.core.config import PATH, BrokerConfig
from headwater.core.document import Kind, read_document
from headwater.core.environment import PREFIX, options_said
from headwater.core.errors import InvalidConfiguration, InvalidFile
from headwater.core.options import Option, options_of
from headwater.core.section import Section

FILE_VARIABLE: Final = f"{PREFIX}BROKER_CONFIG"
"""Names the file, where no flag does."""

_KIND: Final = Kind("a configuration of a broker", "a mapping of options to values")


class Settings(NamedTuple):
    """A configuration, and where each option that is no default comes from."""

    config: BrokerConfig
    sources: dict[str, str]


def flag(name: str) -> str:
    """The name of an option on the command line."""
    return "--" + name.replace("_", "-")


def read_settings(flags: Mapping[str, str | None], environment: Mapping[str, str], file: Path | None) -> Settings:
    """The configuration; raises InvalidConfiguration, which names the flag, the variable, or the line of the file."""
    if file is None and environment.get(FILE_VARIABLE, "").strip():
        file = Path(environment[FILE_VARIABLE].strip())
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for given, source in (
        (_from_file(file) if file is not None else {}, str(file)),
        (options_said("broker", BrokerConfig, environment, besides=("config",)), "environment"),
        (_from_flags(flags), "flag"),
    ):
        values |= given
        sources |= dict.fromkeys(given, source)
    return Settings(BrokerConfig(**values), sources)


def _from_flags(flags: Mapping[str, str | None]) -> dict[str, Any]:
    options = {option.name: option for option in options_of(BrokerConfig)}
    values: dict[str, Any] = {}
    for name, text in flags.items():
        if text is None:
            continue
        try:
            values[name] = options[name].parse(text)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{flag(name)} {text!r:.60}: {error}") from None
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = read_document(path, _KIND)
    except OSError as error:
        raise InvalidConfiguration(f"{path}: {error.strerror}") from error
    section = Section.whole(document)
    values: dict[str, Any] = {}
    for option in options_of(BrokerConfig):
        value = section.anything(option.name)
        if option.name not in section.present:
            continue
        try:
            values[option.name] = _value(option, value, document.directory)
        except InvalidConfiguration as error:
            section.wrong(f"{error}, not {value!r:.60}", option.name)
    section.finish()
    if section.problems:
        raise InvalidFile(sorted(section.problems, key=lambda problem: problem.line))
    return values


def _value(option: Option, value: Any, directory: Path) -> Any:
    """The meaning of a value in a file: as text in the environment, but paths begin at the file's directory."""
    if not isinstance(value, str | int | float | None):
        raise InvalidConfiguration(f"must be {option.allowed}")
    parsed = option.parse(str(value).lower() if value is None or isinstance(value, bool) else str(value))
    return str(directory / parsed) if option.text is PATH and parsed is not None else parsed
