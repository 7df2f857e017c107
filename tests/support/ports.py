"""Ports for servers that are killed and started again at the same address."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

_BELOW_EPHEMERAL: Final = range(12_000, 32_000)
"""The kernel gives none of these to a connection, so none is taken while its server is away."""
_chance = random.SystemRandom()  # proofs seed the other one, and two of them would take the same ports


def free_port() -> int:
    """A port that nobody listens at."""
    while True:
        port = _chance.choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
