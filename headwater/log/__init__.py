"""The engine: partitions of frames on disk. It knows nothing of topics, users or networks.

Three calls carry most of it: `encode` makes a frame of records, `Partition.append` adds it to a log, `Partition.scan`
and `Partition.records` read it back. `DirectoryPartition` is a log in a directory, `MemoryPartition` one in memory.
"""

from headwater.log.clock import Clock
from headwater.log.directory import ClosedSegment, DirectoryPartition
from headwater.log.files.counters import Counters
from headwater.log.files.disk import Disk
from headwater.log.format.encode import encode, encode_batch
from headwater.log.format.frame import Frame, FrameHeader, Identity, StoredFrame
from headwater.log.format.frame_filter import FrameFilter
from headwater.log.format.plain import Plain
from headwater.log.format.schemas import SchemaDirectory, Schemas
from headwater.log.format.untrusted import admit
from headwater.log.maintain.compaction import CompactionReport
from headwater.log.maintain.retention import RetentionReport, SegmentFacts
from headwater.log.memory import MemoryPartition
from headwater.log.partition import Bounds, Partition, PartitionStatistics, no_statistics
from headwater.log.recover.mending import Hole, Mending
from headwater.log.recover.report import Damage, RecoveryReport
from headwater.log.recover.survivors import Survivors
from headwater.log.write.commit import Appended, Extent, Stretch

__all__ = [
    "Appended",
    "Bounds",
    "Clock",
    "ClosedSegment",
    "CompactionReport",
    "Counters",
    "Damage",
    "DirectoryPartition",
    "Disk",
    "Extent",
    "Frame",
    "FrameFilter",
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
    "no_statistics",
]
