"""Who calls a broker with nothing but its protocol, and a token."""

from __future__ import annotations

from functools import partial
from typing import Any


class Caller:
    """The methods of a stub, each called with a token.

    The token goes with each call, not with the channel as credentials of gRPC: when those are freed, gRPC wants
    Python's lock in a thread of its own, and whoever ends the last channel or server of the process meanwhile holds
    that lock and waits for the thread, for good.
    """

    def __init__(self, stub: Any, token: str) -> None:
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), metadata=self._metadata)
