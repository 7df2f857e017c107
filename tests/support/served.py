"""A broker for tests of clients: in this process, at one port, stopped and started again at will."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any, Self

import headwater as hw
from headwater.broker import Broker
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Disk
from headwater.log.files.disk import REAL_DISK
from tests.support.proxy import Proxy

CLIENT = hw.ClientConfig(timeout=300, heartbeat=0.2)


class Served:
    """A store in a directory behind a broker, and a network in between that can be made to fail."""

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK, session: float = 60.0) -> None:
        self._path = path
        self._session = session
        self._disk = disk
        self._port = 0
        self._stores: list[hw.Store] = []
        self._mutex = threading.Lock()
        self.start()
        self.network = Proxy(self._port, Random(0))

    def start(self) -> None:
        """Serve, at the same port as before."""
        self.store = DirectoryStore(self._path, disk=self._disk, exclusive=True)
        config = BrokerConfig(steward=False, session_timeout=self._session, drain_timeout=0)
        self.broker = Broker(self.store, config, listen=Address("127.0.0.1", self._port)).start()
        self._port = self.broker.address.port

    def stop(self) -> None:
        """Serve no more; what was accepted and not answered is cut off."""
        self.broker.stop()
        self.store.close()

    @property
    def address(self) -> str:
        """The address of the broker, through the network."""
        return f"hw://127.0.0.1:{self.network.port}"

    def connect(self, client: hw.ClientConfig = CLIENT, **options: Any) -> hw.Store:
        """A store that is closed in the end."""
        self._stores.append(hw.open(self.address, client=client, **options))
        return self._stores[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.network.go_on()
        for store in self._stores:
            store.close()
        self.network.close()
        self.stop()
