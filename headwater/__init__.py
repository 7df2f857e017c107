"""Headwater, the commit log for Python.

The package is imported as `hw`. This file is the one place where public names are exported; the storage engine's own
are in `headwater.log`, and what users need to test against faults is in `headwater.testing`. The same nouns for asyncio
are in `headwater.aio`. Nothing is imported before it is used, so that `hw --help` need not wait for Arrow.
"""

import importlib
import typing

from headwater.core.version import __version__

if typing.TYPE_CHECKING:
    from headwater import aio
    from headwater import spark as spark
    from headwater.core import presets
    from headwater.core.config import (
        BrokerConfig,
        ClientConfig,
        ConsumerConfig,
        PartitionConfig,
        ProducerConfig,
        StewardConfig,
        TopicConfig,
    )
    from headwater.core.errors import (
        BrokerUnavailable,
        BufferFull,
        CommitRefused,
        Damaged,
        DataLost,
        DeadLetterRefused,
        EtcdRefused,
        EtcdUnavailable,
        ExpectationFailed,
        FrameDamaged,
        GroupBusy,
        HeadwaterError,
        InvalidConfiguration,
        InvalidFile,
        InvalidFilter,
        InvalidName,
        InvalidPipeline,
        InvalidRecord,
        LeaderNotReady,
        NotLeader,
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
        RecoveryRefused,
        SchemaError,
        SparkUnavailable,
        StaleMember,
        StoreClosed,
        StoreError,
        StoreInUse,
        TooFewBrokers,
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
    from headwater.core.presets import Preset
    from headwater.core.record import Record
    from headwater.core.schema import RAW, Schema
    from headwater.opening import open_store as open
    from headwater.streams import (
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
        PositionClaim,
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
        time,
    )
    from headwater.streams.position import Position


__all__ = [
    "RAW",
    "Assignment",
    "BrokerConfig",
    "BrokerUnavailable",
    "BufferFull",
    "CleanedPartition",
    "ClientConfig",
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
    "EtcdRefused",
    "EtcdUnavailable",
    "ExpectationFailed",
    "FrameDamaged",
    "Group",
    "GroupBusy",
    "GroupInfo",
    "HeadwaterError",
    "InvalidConfiguration",
    "InvalidFile",
    "InvalidFilter",
    "InvalidName",
    "InvalidPipeline",
    "InvalidRecord",
    "LeaderNotReady",
    "Member",
    "NotLeader",
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
    "PositionClaim",
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
    "RecoveryRefused",
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
    "TooFewBrokers",
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


_MODULES = {"aio": "aio", "errors": "core.errors", "log": "log", "presets": "core.presets", "spark": "spark"}
_HOMES = ("core.errors", "core.config", "core.presets", "core.record", "core.schema", "streams", "opening")
"""The modules that define public names, those first that cost the least to import."""
_DEFINED_AS = {"open": "open_store"}

if not typing.TYPE_CHECKING:  # else every misspelt name would pass the type checker

    def __getattr__(name: str) -> object:
        """Import what is asked for when it is first asked for: Arrow takes a quarter of a second, PySpark much more."""
        if name in _MODULES:
            return importlib.import_module(f"headwater.{_MODULES[name]}")
        for home in _HOMES if name in __all__ else ():
            value = getattr(importlib.import_module(f"headwater.{home}"), _DEFINED_AS.get(name, name), None)
            if value is not None:
                globals()[name] = value
                return value
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
