"""Opening a store behind a broker: what a program says, over what the environment says."""

from __future__ import annotations

import os
from typing import Any

from headwater.client.credentials import NAMES, Credentials
from headwater.client.store import RemoteStore
from headwater.config import ClientConfig
from headwater.environment import PREFIX
from headwater.errors import InvalidConfiguration
from headwater.option import options_of
from headwater.presets import Preset
from headwater.wire.address import parse_store


def connect(where: str, defaults: Preset, client: ClientConfig | None, said: dict[str, Any]) -> RemoteStore:
    """The store at these brokers. Nothing is sent before it is first used."""
    unknown = [name for name in said if name not in NAMES]
    if unknown:
        raise InvalidConfiguration(f"unknown options {unknown}; there are {', '.join(NAMES)}")
    if client is not None and not isinstance(client, ClientConfig):
        raise InvalidConfiguration(f"client must be a ClientConfig, not {client!r:.60}")
    credentials = Credentials.from_environment(os.environ).overridden(said)
    return RemoteStore(
        parse_store(where), config=client or _from_environment(), credentials=credentials, defaults=defaults
    )


def _from_environment() -> ClientConfig:
    found: dict[str, Any] = {}
    for option in options_of(ClientConfig):
        name = f"{PREFIX}CLIENT_{option.name.upper()}"
        text = os.environ.get(name, "")
        if text.strip():
            try:
                found[option.name] = option.parse(text)
            except InvalidConfiguration as error:
                raise InvalidConfiguration(f"{name}={text!r:.60}: {error}") from None
    return ClientConfig(**found)
