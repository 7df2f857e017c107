"""Opening a store behind a broker: what a program says, over what the environment says."""

from __future__ import annotations

import os
from typing import Any

from headwater.client.credentials import NAMES, Credentials
from headwater.client.store import RemoteStore
from headwater.core.address import parse_store
from headwater.core.config import ClientConfig
from headwater.core.environment import options_said
from headwater.core.errors import InvalidConfiguration
from headwater.core.presets import Preset


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
