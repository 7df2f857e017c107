"""The address of a store, as every process of Spark sees it."""

from __future__ import annotations

import socket
from pathlib import Path

from headwater.core.errors import InvalidConfiguration
from headwater.opening import open_store
from headwater.streams import Store


def open_existing(address: str) -> Store:
    """Open a store that exists. A task on a machine without its directory must not make an empty store there."""
    if "://" not in address and not Path(address).is_dir():
        raise InvalidConfiguration(
            f"directory {address} does not exist on {socket.gethostname()}: a store in a directory is read on the "
            f"machine that has it; serve it with a broker, or give the option store the right path"
        )
    return open_store(address)
