"""Cleaning a store behind a broker: the broker does it, when it is told to."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from headwater.client.connection import Connection
from headwater.core.config import StewardConfig
from headwater.log import CompactionReport
from headwater.streams.steward import CleanedPartition, StewardReport
from headwater.streams.stopping import Stop
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_to_text


class RemoteCleaner:
    """Has the broker make the passes, with the options of the caller's steward."""

    notes_history = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def clean(self, config: StewardConfig, *, dry_run: bool, stop: Stop) -> StewardReport:  # noqa: ARG002 - it goes on
        options = {field.name: getattr(config, field.name) for field in fields(config)}
        request = pb.RunStewardRequest(dry_run=dry_run, options=options_to_text(options, StewardConfig))
        return unpack_report(json.loads(self._connection.call("RunSteward", request, slow=True).report))


def unpack_report(report: dict[str, Any]) -> StewardReport:
    """Return the report that these plain values, from JSON, describe."""
    partitions = [
        CleanedPartition(
            **partition
            | {
                "protected_by": tuple(partition["protected_by"]),
                "compaction": None if partition["compaction"] is None else CompactionReport(**partition["compaction"]),
            }
        )
        for partition in report["partitions"]
    ]
    return StewardReport(
        **report
        | {
            "partitions": tuple(partitions),
            "expired_groups": tuple(report["expired_groups"]),
            "errors": tuple(report["errors"]),
        }
    )
