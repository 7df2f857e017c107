"""A program that sends one batch and dies when so many bytes of it are written.

Its arguments are `directory` or `broker`, the path, the number of bytes, and `atomic` or `plain`. A broker dies with
it, because it serves in the same process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.broker import Broker
from headwater.client.store import RemoteStore
from headwater.core.address import Address
from headwater.core.config import BrokerConfig, ClientConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Disk

TOPIC = "orders"
RECORDS = 400
KEYS = [b"%d" % number for number in range(RECORDS)]


class DyingDisk(Disk):
    """Kills the process in the middle of the write that would exceed a number of bytes."""

    def __init__(self) -> None:
        self.left: int | None = None

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        size = sum(map(len, buffers))
        if self.left is not None and size > self.left:
            os.pwrite(fd, b"".join(buffers)[: self.left], position)
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = self.left if self.left is None else self.left - size
        return super().pwritev(fd, buffers, position)


def main(kind: str, path: Path, count: int, *, atomic: bool) -> None:
    """Send the batch, by keys if it is to be atomic over all partitions."""
    disk = DyingDisk()
    store = below = DirectoryStore(path, disk=disk, exclusive=kind == "broker")
    if kind == "broker":
        broker = Broker(below, BrokerConfig(steward=False), listen=Address("127.0.0.1", 0)).start()
        out = RemoteStore([broker.address], config=ClientConfig(direct=False)).producer(TOPIC, batch_bytes=50_000)
    else:
        out = store.producer(TOPIC, batch_bytes=50_000)
    disk.left = count
    values = [os.urandom(1000) for _ in range(RECORDS)]
    out.send_batch(values, keys=KEYS if atomic else None, partition=None if atomic else 0, atomic=atomic)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), atomic=sys.argv[4] == "atomic")
