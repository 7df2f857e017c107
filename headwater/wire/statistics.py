"""The numbers of a partition as a message, and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Final

from headwater.log import Counters, PartitionStatistics
from headwater.v1 import broker_pb2 as pb

_RENAMED: Final = {"start": "log_start", "end": "log_end"}
"""Names of numbers that are others in the message."""
_NUMBERS: Final = tuple(field.name for field in fields(PartitionStatistics) if field.name != "counters")
_COUNTERS: Final = tuple(field.name for field in fields(Counters))


def pack_statistics(statistics: PartitionStatistics) -> pb.PartitionStatistics:
    """The numbers of a partition as a message."""
    numbers = {_RENAMED.get(name, name): getattr(statistics, name) for name in _NUMBERS}
    return pb.PartitionStatistics(**numbers, counters=pb.Counters(**asdict(statistics.counters)))


def unpack_statistics(message: pb.PartitionStatistics) -> PartitionStatistics:
    """The reverse. Brokers of older versions count less; there the counters are 0."""
    counters = Counters(*(getattr(message.counters, name) for name in _COUNTERS))
    numbers = {name: getattr(message, _RENAMED.get(name, name)) for name in _NUMBERS}
    return PartitionStatistics(**numbers, counters=counters)
