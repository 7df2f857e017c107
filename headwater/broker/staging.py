"""Checks of transactions that both backends share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.core.errors import InvalidConfiguration, UntrustedFrame
from headwater.log import Frame

_REQUEST_BYTES: Final = 16


def check_staged(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames; raises UntrustedFrame if one has a producer."""
    if any(frame.identity is not None for frame in frames):
        raise UntrustedFrame("a staged frame has no producer: it gets the identity of its transaction")
    return frames


def check_request_id(request_id: bytes) -> None:
    """Raise InvalidConfiguration for bytes that cannot be the id of a request."""
    if request_id and len(request_id) != _REQUEST_BYTES:
        raise InvalidConfiguration(f"the id of a request has {_REQUEST_BYTES} bytes, not {len(request_id)}")
