"""The options of a sink, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.core.errors import InvalidConfiguration
from headwater.core.names import check_name
from headwater.spark.options import STORE, SparkOptions

SINK_OPTIONS: Final = (*STORE, "topic", "txnId", "txnVersion", "txnOwner", "txnTakeover")
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options that Spark adds by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a sink: the store and topic, and the name and number under which a write counts once."""

    store: str
    topic: str | None
    """None if the rows name their topic themselves."""
    txn_id: str | None
    txn_version: int | None
    owner: str | None
    """The owner of the version numbers of batches. For a stream it is the query."""
    takeover: bool

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """The options of a sink of batches or of a stream."""
        options = SparkOptions(given, (*SINK_OPTIONS, *_SPARKS_OWN))
        txn_id, version = options.text("txnId"), options.text("txnVersion")
        if txn_id is not None:
            check_name("writer (option txnId)", txn_id)
        if streaming and version is not None:
            raise InvalidConfiguration("option txnVersion is for a batch: a stream has the numbers of its batches")
        if not streaming and (txn_id is None) != (version is None):
            raise InvalidConfiguration("a batch that counts once has both of the options txnId and txnVersion")
        if version is not None and not version.isdecimal():
            raise InvalidConfiguration(f"option txnVersion must be a number from 0 on, not {version!r}")
        owner, takeover = options.text("txnOwner"), options.flag("txnTakeover", False)
        if owner is not None and version is None:
            raise InvalidConfiguration("option txnOwner is for a batch with the options txnId and txnVersion")
        if takeover and (txn_id if streaming else owner) is None:
            raise InvalidConfiguration(
                "option txnTakeover is for a stream with the option txnId, or a batch with the option txnOwner"
            )
        return cls(
            store=options.store(),
            topic=options.text("topic"),
            txn_id=txn_id,
            txn_version=None if version is None else int(version),
            owner=owner,
            takeover=takeover,
        )
