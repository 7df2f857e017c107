"""A steward behind a broker: the broker cleans, when it is told to."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from headwater.client.connection import Connection
from headwater.core.config import StewardConfig
from headwater.log import CompactionReport
from headwater.log.clock import Clock
from headwater.streams.steward import CleanedPartition, Steward, StewardReport
from headwater.streams.stopping import Stop
from headwater.streams.store import Store
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_to_text


class RemoteSteward(Steward):
    """Has the broker make the passes, with the options of this one."""

    def __init__(self, store: Store, config: StewardConfig, clock: Clock, connection: Connection) -> None:
        super().__init__(store, config, clock)
        self._connection = connection

    def _run(self, dry_run: bool, stop: Stop) -> StewardReport:  # noqa: ARG002 - a pass at the broker goes on
        options = {field.name: getattr(self.config, field.name) for field in fields(self.config)}
        request = pb.RunStewardRequest(dry_run=dry_run, options=options_to_text(options, StewardConfig))
        found = json.loads(self._connection.call("RunSteward", request, slow=True).report)
        self.last_report = unpack_report(found)
        return self.last_report

    def _history(self) -> None:
        """The broker's own steward notes what there is to note."""


def unpack_report(found: dict[str, Any]) -> StewardReport:
    """The report that plain values tell of."""
    partitions = [
        CleanedPartition(
            **one
            | {
                "protected_by": tuple(one["protected_by"]),
                "compaction": None if one["compaction"] is None else CompactionReport(**one["compaction"]),
            }
        )
        for one in found["partitions"]
    ]
    return StewardReport(
        **found
        | {
            "partitions": tuple(partitions),
            "expired_groups": tuple(found["expired_groups"]),
            "errors": tuple(found["errors"]),
        }
    )
