"""The coordinator of a transaction in a cluster: client and broker have to agree which one it is."""

from __future__ import annotations

from typing import Final

from headwater.core.names import GROUPS, WRITERS
from headwater.v1 import broker_pb2 as pb

_DIGITS: Final = 2
"""Transactions without a name are spread by so many hexadecimal digits of their requests' ids."""


def coordinated(request: pb.CommitTransactionRequest) -> tuple[str, str]:
    """The internal topic and the name whose coordinator decides a transaction."""
    if request.group:
        return GROUPS, request.group
    return WRITERS, coordinating_name(request.writer, request.request_id)


def coordinating_name(writer: str | None, request_id: bytes) -> str:
    """The name, in the internal topic of writers, whose coordinator decides a transaction."""
    return writer or request_id.hex()[:_DIGITS]
