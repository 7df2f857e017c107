"""`headwater.open`: one string says where a store is."""

from __future__ import annotations

import os
from typing import Any

from headwater.core.config import ClientConfig
from headwater.core.environment import overridden
from headwater.core.errors import InvalidConfiguration
from headwater.core.presets import DEFAULT, Preset
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.memory_store import MemoryStore
from headwater.streams.store import Store

MEMORY = "memory:"
BROKER = "hw://"


def open_store(
    where: str | os.PathLike[str],
    *,
    preset: Preset = DEFAULT,
    client: ClientConfig | None = None,
    **credentials: Any,
) -> Store:
    """Open a store: a directory, made if need be, `"memory:"` for one that lives in this process only, or a broker.

    `"hw://host:6174"` is a broker, `"hw://one:6174,two:6174"` whichever of them answers; `client` says how to talk
    to it, and `token`, `tls`, `tls_ca`, `tls_certificate` and `tls_key` who calls.

    The preset configures the topics, producers, consumers and stewards that are made through it; the environment
    (`HEADWATER_PRODUCER_LINGER=20ms`) goes over the preset, and the options of each call go over both.
    """
    defaults = overridden(preset, os.environ)
    if isinstance(where, str) and where.startswith(BROKER):
        return _connect(where, defaults, client, credentials)
    if client is not None or credentials:
        said = ["client"] if client is not None else list(credentials)
        raise InvalidConfiguration(f"{said[0]} is for brokers, whose addresses begin with {BROKER}, not for {where}")
    if where == MEMORY:
        return MemoryStore(defaults=defaults)
    return DirectoryStore(where, defaults=defaults)


def _connect(where: str, defaults: Preset, client: ClientConfig | None, said: dict[str, Any]) -> Store:
    try:
        import grpc  # noqa: F401 - only who talks to a broker needs it
    except ImportError as error:
        raise InvalidConfiguration(f"{where} is a broker: run pip install 'headwater[broker]' to talk to it") from error
    from headwater.client.store import connect

    return connect(where, defaults, client, said)
