"""Headwater, the commit log for Python.

The package is imported as `hw`. This file is the one place where public names are exported; the storage engine's own
are in `headwater.log`, and what users need to test against faults is in `headwater.testing`.
"""

import typing

from headwater.config import ConsumerConfig, PartitionConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.errors import (
    BufferFull,
    CommitRefused,
    Damaged,
    DataLost,
    FrameDamaged,
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
    RangeUnreadable,
    SchemaError,
    SparkUnavailable,
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
    from headwater import spark as spark

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
    "DataLost",
    "FrameDamaged",
    "Group",
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
    "ProcessOptions",
    "ProcessSummary",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "RangeUnreadable",
    "Receipt",
    "Record",
    "Schema",
    "SchemaError",
    "SparkUnavailable",
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
    "open",
    "time",
]


if not typing.TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> object:
        """`headwater.spark` when it is first asked for: most programs do without."""
        if name == "spark":
            from importlib import import_module

            return import_module("headwater.spark")
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
