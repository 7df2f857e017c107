"""The request of a page, as handlers get it, and the answer to a page when something goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headwater.core.errors import (
    BrokerUnavailable,
    CommitRefused,
    GroupBusy,
    HeadwaterError,
    InvalidConfiguration,
    InvalidName,
    InvalidRecord,
    NotLeader,
    OffsetOutOfRange,
    PartitionBusy,
    PermissionDenied,
    SchemaError,
    StoreError,
    StoreInUse,
    TopicExists,
    Unauthenticated,
    UnknownTopic,
)
from headwater.streams.store import Store

if TYPE_CHECKING:
    from headwater.console.watch import StoreWatch

_Kind = TypeVar("_Kind")
_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Unauthenticated, 401),
    (PermissionDenied, 403),
    (UnknownTopic, 404),
    (OffsetOutOfRange, 404),
    (TopicExists, 409),
    (CommitRefused, 409),
    (PartitionBusy, 409),
    (GroupBusy, 409),
    (StoreInUse, 409),
    (NotLeader, 409),
    (InvalidConfiguration, 400),
    (InvalidName, 400),
    (InvalidRecord, 400),
    (SchemaError, 400),
    (BrokerUnavailable, 503),
    (StoreError, 409),
)


def status_of(error: Exception) -> int:
    """The status that tells of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


class NotFound(HeadwaterError):
    """There is nothing of that name."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of a caller who may make it."""

    watch: StoreWatch
    path: Mapping[str, Any]
    query: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The store that is looked at."""
        return self.watch.store

    def text(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.query.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number among the parameters; raises InvalidConfiguration."""
        text = self.query.get(name, "")
        try:
            value = int(text) if text else default
        except ValueError:
            raise InvalidConfiguration(f"{name} must be a whole number, not {text!r:.40}") from None
        return min(max(value, least), most)

    def given(self, name: str, kind: type[_Kind]) -> _Kind:
        """A part of the body; raises InvalidConfiguration."""
        value = self.body.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidConfiguration(f"{name} is missing or has the wrong type")
        return value
