"""Streams: what users hold, written once for every backend."""

from headwater.streams.catalog import TopicInfo
from headwater.streams.consumer import Consumer, ConsumerStatistics
from headwater.streams.cursor import ConsumedBatch, ConsumedRecord
from headwater.streams.group import Assignment, Commit, Group, GroupInfo, PositionClaim
from headwater.streams.membership import Member
from headwater.streams.position import Position
from headwater.streams.processing import ProcessOptions, ProcessSummary
from headwater.streams.producer import Producer
from headwater.streams.receipt import Receipt
from headwater.streams.staging import Staged, Staging
from headwater.streams.start import Time, time
from headwater.streams.steward import CleanedPartition, Steward, StewardReport
from headwater.streams.store import Store, StoreStatistics
from headwater.streams.topic import Topic, TopicPartition, TopicStatistics
from headwater.streams.transaction import Transaction

__all__ = [
    "Assignment",
    "CleanedPartition",
    "Commit",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "ConsumerStatistics",
    "Group",
    "GroupInfo",
    "Member",
    "Position",
    "PositionClaim",
    "ProcessOptions",
    "ProcessSummary",
    "Producer",
    "Receipt",
    "Staged",
    "Staging",
    "Steward",
    "StewardReport",
    "Store",
    "StoreStatistics",
    "Time",
    "Topic",
    "TopicInfo",
    "TopicPartition",
    "TopicStatistics",
    "Transaction",
    "time",
]
