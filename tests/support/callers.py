"""Callers of a broker that have nothing but its protocol, and a token."""

from __future__ import annotations

from functools import partial
from typing import Any

Metadata = tuple[tuple[str, str], ...]


def bearer(token: str) -> Metadata:
    """The metadata by which a token is presented."""
    return (("authorization", f"Bearer {token}"),)


class Calling:
    """The methods of a stub, each called with the same metadata.

    A token goes with each call, not with the channel as credentials of gRPC: when those are freed, gRPC wants
    Python's lock in a thread of its own, and whoever ends the last channel or server of the process meanwhile holds
    that lock and waits for the thread, for good.
    """

    def __init__(self, stub: Any, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), metadata=self._metadata)


class Caller(Calling):
    """The methods of a stub, each called with a token."""

    def __init__(self, stub: Any, token: str) -> None:
        super().__init__(stub, bearer(token))
