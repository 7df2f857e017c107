"""Embedded streams: topics, producers, consumers and groups over the engine, with no daemon."""

from headwater.store.catalog import TopicInfo
from headwater.store.consumer import Consumer
from headwater.store.consumer_statistics import ConsumerStatistics
from headwater.store.cursor import ConsumedBatch, ConsumedRecord
from headwater.store.directory_store import DirectoryStore
from headwater.store.group import Assignment, Commit, Group, GroupInfo
from headwater.store.membership import Member
from headwater.store.memory_store import MemoryStore
from headwater.store.offsets import Position
from headwater.store.open import open_store as open
from headwater.store.processing import ProcessOptions, ProcessSummary
from headwater.store.producer import Producer
from headwater.store.receipt import Receipt
from headwater.store.staging import Staged, Staging
from headwater.store.start import Time, time
from headwater.store.steward import CleanedPartition, Steward, StewardReport
from headwater.store.store import Store, StoreStatistics
from headwater.store.topic import Topic, TopicPartition, TopicStatistics
from headwater.store.transaction import Transaction

__all__ = [
    "Assignment",
    "CleanedPartition",
    "Commit",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "ConsumerStatistics",
    "DirectoryStore",
    "Group",
    "GroupInfo",
    "Member",
    "MemoryStore",
    "Position",
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
    "open",
    "time",
]
