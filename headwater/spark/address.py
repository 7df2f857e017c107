"""The address of a store, as every process of Spark sees it."""

from __future__ import annotations

import socket
from pathlib import Path

from headwater.core.errors import InvalidConfiguration
from headwater.opening import open_store
from headwater.streams import Store


def open_existing(address: str) -> Store:
    """Open a store that is there. A task on a machine without the directory must not take an empty one for it."""
    check_present(address)
    return open_store(address)


def check_present(address: str) -> None:
    """Raise when the directory of a store is not there."""
    if "://" not in address and not Path(address).is_dir():
        raise InvalidConfiguration(
            f"there is no directory {address} on {socket.gethostname()}: a store in a directory is read on the machine "
            f"that has it; serve it by a broker, or give the option store the right path"
        )
