"""`headwater.open`: one string says where a store is."""

from __future__ import annotations

import os

from headwater.environment import overridden
from headwater.errors import InvalidConfiguration
from headwater.presets import DEFAULT, Preset
from headwater.store.directory_store import DirectoryStore
from headwater.store.memory_store import MemoryStore
from headwater.store.store import Store

MEMORY = "memory:"


def open_store(where: str | os.PathLike[str], *, preset: Preset = DEFAULT) -> Store:
    """Open a store: a directory, made if need be, or `"memory:"` for one that lives in this process only.

    What is made through it, topics, producers, consumers and stewards, is configured by the preset; what the
    environment says (`HEADWATER_PRODUCER_LINGER=20ms`) goes over that, and what you say when you make it over both.
    """
    if isinstance(where, str) and where.startswith("hw://"):
        raise InvalidConfiguration(f"{where}: brokers are not served yet; open a directory or {MEMORY!r}")
    defaults = overridden(preset, os.environ)
    if where == MEMORY:
        return MemoryStore(defaults=defaults)
    return DirectoryStore(where, defaults=defaults)
