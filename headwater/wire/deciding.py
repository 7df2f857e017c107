"""Who decides over a transaction in a cluster: client and broker have to agree on that."""

from __future__ import annotations

from typing import Final

from headwater.core.names import GROUPS, WRITERS
from headwater.v1 import broker_pb2 as pb

_DIGITS: Final = 2
"""Transactions without a name are spread by so many hexadecimal digits of their requests' ids."""


def coordinated(request: pb.CommitTransactionRequest) -> tuple[str, str]:
    """The internal topic and the name whose coordinator decides over a transaction."""
    if request.group:
        return GROUPS, request.group
    return WRITERS, request.writer or request.request_id.hex()[:_DIGITS]
