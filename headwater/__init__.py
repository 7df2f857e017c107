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
    DataLost,
    DeadLetterRefused,
    ExpectationFailed,
    FrameDamaged,
    GroupBusy,
    HeadwaterError,
    InvalidConfiguration,
    InvalidFile,
    InvalidName,
    InvalidPipeline,
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
    PermissionDenied,
    PipelineFailed,
    PipelineRunning,
    Problem,
    ProducerFenced,
    RangeUnreadable,
    RecordsDamaged,
    SchemaError,
    SparkUnavailable,
    StaleMember,
    StoreClosed,
    StoreError,
    StoreInUse,
    TopicExists,
    TransactionAborted,
    TransactionUnfinished,
    Unauthenticated,
    UnknownSchema,
    UnknownTopic,
    UnsupportedFileSystem,
    UntrustedFrame,
    WriteFailed,
    WriterTaken,
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
    Staged,
    Staging,
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
    "DeadLetterRefused",
    "ExpectationFailed",
    "FrameDamaged",
    "Group",
    "GroupBusy",
    "GroupInfo",
    "HeadwaterError",
    "InvalidConfiguration",
    "InvalidFile",
    "InvalidName",
    "InvalidPipeline",
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
    "PermissionDenied",
    "PipelineFailed",
    "PipelineRunning",
    "Position",
    "Preset",
    "Problem",
    "ProcessOptions",
    "ProcessSummary",
    "Producer",
    "ProducerConfig",
    "ProducerFenced",
    "RangeUnreadable",
    "Receipt",
    "Record",
    "RecordsDamaged",
    "Schema",
    "SchemaError",
    "SparkUnavailable",
    "Staged",
    "Staging",
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
    "Unauthenticated",
    "UnknownSchema",
    "UnknownTopic",
    "UnsupportedFileSystem",
    "UntrustedFrame",
    "WriteFailed",
    "WriterTaken",
    "__version__",
    "aio",
    "open",
    "presets",
    "time",
]


_LAZY = frozenset({"aio", "spark"})
"""Imported when they are first asked for: asyncio takes some 30 ms, PySpark much more, and most programs do without."""

if not typing.TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> object:
        """`headwater.aio` and `headwater.spark`."""
        if name in _LAZY:
            return importlib.import_module(f"headwater.{name}")
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
