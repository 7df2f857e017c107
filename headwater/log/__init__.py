"""The engine: partitions of frames on disk. It knows nothing of topics, users or networks.

Three calls carry most of it: `encode` makes a frame of records, `Partition.append` adds it to a log, `Partition.scan`
and `Partition.records` read it back. `DirectoryPartition` is a log in a directory, `MemoryPartition` one in memory.
"""

from headwater.log.clock import Clock
from headwater.log.commit import Appended, Extent, Stretch
from headwater.log.compaction import CompactionReport
from headwater.log.directory import ClosedSegment, DirectoryPartition
from headwater.log.disk import Disk
from headwater.log.encode import encode, encode_batch
from headwater.log.frame import Frame, FrameHeader, Identity, StoredFrame
from headwater.log.memory import MemoryPartition
from headwater.log.mending import Hole, Mending
from headwater.log.partition import Bounds, Partition, PartitionStatistics
from headwater.log.plain import Plain
from headwater.log.report import Damage, RecoveryReport
from headwater.log.retention import RetentionReport, SegmentFacts
from headwater.log.schemas import SchemaDirectory, Schemas
from headwater.log.survivors import Survivors
from headwater.log.untrusted import admit

__all__ = [
    "Appended",
    "Bounds",
    "Clock",
    "ClosedSegment",
    "CompactionReport",
    "Damage",
    "DirectoryPartition",
    "Disk",
    "Extent",
    "Frame",
    "FrameHeader",
    "Hole",
    "Identity",
    "MemoryPartition",
    "Mending",
    "Partition",
    "PartitionStatistics",
    "Plain",
    "RecoveryReport",
    "RetentionReport",
    "SchemaDirectory",
    "Schemas",
    "SegmentFacts",
    "StoredFrame",
    "Stretch",
    "Survivors",
    "admit",
    "encode",
    "encode_batch",
]
