"""`headwater.open`: one string says where a store is."""

from __future__ import annotations

import os

from headwater.errors import InvalidConfiguration
from headwater.store.store import DirectoryStore, MemoryStore, Store

MEMORY = "memory:"


def open_store(where: str | os.PathLike[str]) -> Store:
    """Open a store: a directory, made if need be, or `"memory:"` for one that lives in this process only."""
    if isinstance(where, str) and where.startswith("hw://"):
        raise InvalidConfiguration(f"{where}: brokers are not served yet; open a directory or {MEMORY!r}")
    if where == MEMORY:
        return MemoryStore()
    return DirectoryStore(where)
