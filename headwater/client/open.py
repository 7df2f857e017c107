"""Opening a store behind a broker: what a program says, over what the environment says."""

from __future__ import annotations

import os
from typing import Any

from headwater.client.credentials import NAMES, Credentials
from headwater.client.store import RemoteStore
from headwater.config import ClientConfig
from headwater.environment import options_said
from headwater.errors import InvalidConfiguration
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
        parse_store(where),
        config=client or ClientConfig(**options_said("client", ClientConfig, os.environ, besides=NAMES)),
        credentials=credentials,
        defaults=defaults,
    )
