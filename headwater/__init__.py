"""Headwater, the commit log for Python.

The package is imported as `hw`. This file is the one place where public names are exported; the storage engine's own
are in `headwater.log`, and what users need to test against faults is in `headwater.testing`.
"""

from headwater.config import PartitionConfig
from headwater.errors import (
    Damaged,
    FrameDamaged,
    HeadwaterError,
    InvalidConfiguration,
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
    SchemaError,
    UnknownSchema,
    UnsupportedFileSystem,
    UntrustedFrame,
    WriteFailed,
)
from headwater.record import Record
from headwater.schema import RAW, Schema

__version__ = "0.1.0"

__all__ = [
    "RAW",
    "Damaged",
    "FrameDamaged",
    "HeadwaterError",
    "InvalidConfiguration",
    "InvalidRecord",
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
    "ProducerFenced",
    "Record",
    "Schema",
    "SchemaError",
    "UnknownSchema",
    "UnsupportedFileSystem",
    "UntrustedFrame",
    "WriteFailed",
    "__version__",
]
