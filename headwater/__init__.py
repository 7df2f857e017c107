"""Headwater, the commit log for Python.

The package is imported as `hw`. This file is the one place where public names are exported; the storage engine's own
are in `headwater.log`, and what users need to test against faults is in `headwater.testing`. The same nouns for asyncio
are in `headwater.aio`, which is imported when it is first used.
"""

import importlib
import typing

from headwater import presets
from headwater.config import ConsumerConfig, PartitionConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.errors import (
    BufferFull,
    CommitRefused,
    Damaged,
    DeadLetterRefused,
    FrameDamaged,
    GroupBusy,
    HeadwaterError,
    InvalidConfiguration,
    InvalidName,
    InvalidRecord,
    OffsetOutOfRange,
    OpenFailed,
    OutOfOrderSequence,
    PartitionBusy,
    PartitionClosed,
    PartitionDeleted,
    PartitionError,
    PartitionForked,
    PartitionPoisoned,
    ProducerFenced,
    RecordsDamaged,
    SchemaError,
    StaleMember,
    StoreClosed,
    StoreError,
    StoreInUse,
    TopicExists,
    TransactionAborted,
    TransactionUnfinished,
    UnknownSchema,
    UnknownTopic,
    UnsupportedFileSystem,
    UntrustedFrame,
    WriteFailed,
)
from headwater.presets import Preset
from headwater.record import Record
from headwater.schema import RAW, Schema
from headwater.store import (
    Assignment,
    CleanedPartition,
    Commit,
    ConsumedBatch,
    ConsumedRecord,
    Consumer,
    ConsumerStatistics,
    Group,
    GroupInfo,
    Member,
    Position,
    ProcessOptions,
    ProcessSummary,
    Producer,
    Receipt,
    Steward,
    StewardReport,
    Store,
    StoreStatistics,
    Time,
    Topic,
    TopicInfo,
    TopicPartition,
    TopicStatistics,
    Transaction,
    open,
    time,
)

if typing.TYPE_CHECKING:
    from headwater import aio

__version__ = "0.1.0"

__all__ = [
    "RAW",
    "Assignment",
    "BufferFull",
    "CleanedPartition",
    "Commit",
    "CommitRefused",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "Damaged",
    "DeadLetterRefused",
    "FrameDamaged",
    "Group",
    "GroupBusy",
    "GroupInfo",
    "HeadwaterError",
    "InvalidConfiguration",
    "InvalidName",
    "InvalidRecord",
    "Member",
    "OffsetOutOfRange",
    "OpenFailed",
    "OutOfOrderSequence",
    "PartitionBusy",
    "PartitionClosed",
    "PartitionConfig",
    "PartitionDeleted",
    "PartitionError",
    "PartitionForked",
    "PartitionPoisoned",
    "Position",
    "Preset",
    "ProcessOptions",
    "ProcessSummary",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "Receipt",
    "Record",
    "RecordsDamaged",
    "Schema",
    "SchemaError",
    "StaleMember",
    "Steward",
    "StewardConfig",
    "StewardReport",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreInUse",
    "StoreStatistics",
    "Time",
    "Topic",
    "TopicConfig",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "TopicStatistics",
    "Transaction",
    "TransactionAborted",
    "TransactionUnfinished",
    "UnknownSchema",
    "UnknownTopic",
    "UnsupportedFileSystem",
    "UntrustedFrame",
    "WriteFailed",
    "__version__",
    "aio",
    "open",
    "presets",
    "time",
]


def __getattr__(name: str) -> object:
    if name == "aio":  # asyncio takes some 30 ms to import, which those who do without it need not spend
        return importlib.import_module("headwater.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
