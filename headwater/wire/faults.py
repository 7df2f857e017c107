"""Errors over the wire: what the store raises at the broker, its client raises too, as the same class.

gRPC carries a code and a message; which exception it was, and its attributes, go beside them.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Final

import grpc

from headwater.core import errors
from headwater.core.errors import HeadwaterError, StoreError
from headwater.v1 import broker_pb2 as pb

ERROR_KEY: Final = "headwater-error-bin"

_CODES: Final[tuple[tuple[type[HeadwaterError], grpc.StatusCode], ...]] = (
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.UnknownTopic, grpc.StatusCode.NOT_FOUND),
    (errors.UnknownSchema, grpc.StatusCode.NOT_FOUND),
    (errors.TopicExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.TooFewBrokers, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.OffsetOutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.UntrustedFrame, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Damaged, grpc.StatusCode.DATA_LOSS),
    (errors.CommitRefused, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.PartitionBusy, grpc.StatusCode.ABORTED),
    (errors.NotLeader, grpc.StatusCode.ABORTED),
    (errors.BrokerUnavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.WriteFailed, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.BufferFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.PartitionClosed, grpc.StatusCode.UNAVAILABLE),
    (errors.StoreClosed, grpc.StatusCode.UNAVAILABLE),
    (errors.OpenFailed, grpc.StatusCode.INTERNAL),
    (errors.PartitionPoisoned, grpc.StatusCode.INTERNAL),
    (errors.RecoveryRefused, grpc.StatusCode.DATA_LOSS),
    (errors.PartitionError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.StoreError, grpc.StatusCode.FAILED_PRECONDITION),
)
"""The first that fits; anything else was wrong with the request."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})

AGAIN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
    }
)
"""Codes of calls that may well succeed when they are tried again."""


def code_of(error: HeadwaterError) -> grpc.StatusCode:
    """gRPC's code for an error, for clients that know nothing else of it."""
    if isinstance(error, errors.OpenFailed) and error.errno in _EXHAUSTED:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INVALID_ARGUMENT


def pack_error(error: HeadwaterError) -> pb.Error:
    """The error as a message."""
    attributes = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    if isinstance(error, OSError) and error.errno is not None:
        attributes["errno"] = error.errno
    return pb.Error(kind=type(error).__name__, message=str(error), attributes=json.dumps(attributes, default=_plain))


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def unpack_error(packed: pb.Error) -> HeadwaterError:
    """The error that a message tells of, of the same class if it is one that is known here."""
    kind = getattr(errors, packed.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadwaterError)):
        return StoreError(f"{packed.kind}: {packed.message}")
    # Made without its constructor, whose arguments are not what travels.
    error: HeadwaterError = kind.__new__(kind)
    error.args = (packed.message,)
    try:
        attributes = json.loads(packed.attributes or "{}")
    except ValueError:
        attributes = {}
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if name.isidentifier() and not name.startswith("_"):
            setattr(error, name, Path(value) if name == "file" and value is not None else value)
    return error


def error_of(failure: grpc.RpcError) -> HeadwaterError | None:
    """The error that a failed call tells of; None when gRPC itself has failed."""
    for key, value in getattr(failure, "trailing_metadata", tuple)() or ():
        if key == ERROR_KEY:
            return unpack_error(pb.Error.FromString(value))
    return None
