"""Configuration, one typed dataclass per noun, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from headwater.errors import InvalidConfiguration

MIB = 1024 * 1024
DAY = 24 * 60 * 60.0

Sync = Literal["always", "never"] | float
Compression = Literal["none", "zstd", "lz4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionConfig:
    """How a partition stores its log. Times are seconds, sizes are bytes."""

    sync: Sync = "always"
    """When appends reach the disk. "always": before they are acknowledged or visible. A number: at most that many
    seconds later. "never": when the kernel likes. The last two acknowledge what a power loss can take back."""

    segment_bytes: int = 256 * MIB
    """A segment is closed when the next append would take it past this. Retention and compaction work on whole closed
    segments: large ones delay both, small ones cost files."""

    segment_age: float = DAY
    """A segment is closed when its first append is older than this, so that quiet logs expire too."""

    index_interval: int = 64 * 1024
    """One index entry for each so many bytes of log. Smaller finds offsets with fewer headers read, and costs space."""

    max_frame_bytes: int = 64 * MIB
    """The largest frame that is accepted; a reader holds at least one whole frame."""

    lock_timeout: float = 10.0
    """How long an append waits for another process before it raises PartitionBusy."""

    retention_age: float | None = None
    """Closed segments older than this, by the time of closing, are deleted by `retain`. None keeps them."""

    retention_bytes: int | None = None
    """The oldest closed segments are deleted by `retain` while the log is larger than this. None keeps them."""

    retention_segments: int = 1
    """`retain` keeps at least so many segments, the growing one included, whatever the other limits say."""

    delete_grace: float = DAY
    """Compaction keeps a delete marker for so long after its segment was closed, so that slow readers see it."""

    compaction_memory: int = 256 * MIB
    """About how much memory compaction spends on remembering keys. With less than the keys need, it removes less."""

    producer_expiry: float = 7 * DAY
    """A producer silent for so long is forgotten, and a retry of its last batch would then be refused."""

    mapping_cache_bytes: int = 1024 * MIB
    """How much address space (not memory) the readers of one partition keep mapped."""

    def __post_init__(self) -> None:
        if self.sync not in ("always", "never") and not (
            isinstance(self.sync, int | float) and not isinstance(self.sync, bool) and 0 < self.sync < 3600
        ):
            raise InvalidConfiguration(f'sync must be "always", "never" or seconds below 3600, not {self.sync!r}')
        _check_ranges(self, _RANGES)
        _check_whole(self)


def _check_whole(config: PartitionConfig | StewardConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if str(field.type).startswith("int") and not isinstance(value, int | None):
            raise InvalidConfiguration(f"{field.name} must be a whole number")


def _check_ranges(config: object, ranges: tuple[tuple[str, float, float], ...]) -> None:
    for name, least, most in ranges:
        value = getattr(config, name)
        if value is None and name in _OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidConfiguration(f"{name} must be between {least:g} and {most:g}, not {value!r}")


_YEARS = 100 * 365 * DAY
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("segment_bytes", 4096, 1 << 40),
    ("segment_age", 0.001, _YEARS),
    ("index_interval", 128, 1 << 30),
    ("max_frame_bytes", 4096, 1 << 30),
    ("lock_timeout", 0, 3600),
    ("retention_age", 0, _YEARS),
    ("retention_bytes", 0, 1 << 60),
    ("retention_segments", 1, 1 << 30),
    ("delete_grace", 0, _YEARS),
    ("compaction_memory", 4096, 1 << 40),
    ("producer_expiry", 1, _YEARS),
    ("mapping_cache_bytes", 0, 1 << 50),
)
_OPTIONAL = frozenset({"retention_age", "retention_bytes", "total_bytes", "force_after", "force_bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(PartitionConfig):
    """How a topic stores its records: that of its partitions, and what is checked before a record gets there."""

    compression: Compression = "none"
    """How frames are compressed. zstd is small, lz4 is fast; both cost the producer time, readers little."""

    compression_threshold: int = 512
    """Frames smaller than this are left as they are."""

    compact: bool = False
    """Keep only the newest record of each key. Then every record needs a key."""

    max_key_bytes: int = 1024
    """Longer keys are refused: keys are held in memory by compaction."""

    max_value_bytes: int = 10 * MIB
    """Larger values are refused: a reader holds at least one whole value."""

    max_headers_bytes: int = 64 * 1024
    """Headers that are longer together, names and values, are refused."""

    def __post_init__(self) -> None:
        PartitionConfig.__post_init__(self)
        if self.compression not in ("none", "zstd", "lz4"):
            raise InvalidConfiguration(f"compression must be none, zstd or lz4, not {self.compression!r}")
        if not isinstance(self.compact, bool):
            raise InvalidConfiguration(f"compact must be True or False, not {self.compact!r}")
        _check_ranges(self, _TOPIC_RANGES)


_TOPIC_RANGES: tuple[tuple[str, float, float], ...] = (
    ("compression_threshold", 0, 1 << 30),
    ("max_key_bytes", 0, MIB),
    ("max_value_bytes", 0, 1 << 30),
    ("max_headers_bytes", 0, 16 * MIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer gathers records into frames. Times are seconds, sizes are bytes."""

    linger: float = 0.005
    """How old a record may get before its batch is written. Longer makes larger frames and later records."""

    batch_records: int = 10_000
    """A batch of so many records is written by the call that fills it."""

    batch_bytes: int = MIB
    """So is a batch of so many bytes. Small batches cost time and space for each frame."""

    block_timeout: float = 30.0
    """How long a call waits while the batch before its own is still being written. 0 raises BufferFull at once."""

    close_timeout: float = 10.0
    """How long the end of the program waits for what is pending; what is not written by then is reported."""

    def __post_init__(self) -> None:
        _check_ranges(self, _PRODUCER_RANGES)


_PRODUCER_RANGES: tuple[tuple[str, float, float], ...] = (
    ("linger", 0, 3600),
    ("batch_records", 1, 10_000_000),
    ("batch_bytes", 1, 1 << 30),
    ("block_timeout", 0, 3600),
    ("close_timeout", 0, 3600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer reads and belongs to its group. Times are seconds, sizes are bytes."""

    fetch_bytes: int = MIB
    """About how much is read from one partition at a time; at least one frame."""

    max_poll_records: int = 500
    """How many records an iteration takes at a time. Positions are committed between them."""

    max_poll_interval: float = 300.0
    """A member that does not poll for so long loses its partitions to the others."""

    refresh_interval: float = 1.0
    """How often new topics, new partitions and dead members are looked for."""

    auto_ack: bool = False
    """Take a record as done when the next poll comes. Convenient, and right if your handling never fails."""

    def __post_init__(self) -> None:
        if not isinstance(self.auto_ack, bool):
            raise InvalidConfiguration(f"auto_ack must be True or False, not {self.auto_ack!r}")
        _check_ranges(self, _CONSUMER_RANGES)


_CONSUMER_RANGES: tuple[tuple[str, float, float], ...] = (
    ("fetch_bytes", 1, 1 << 30),
    ("max_poll_records", 1, 10_000_000),
    ("max_poll_interval", 0.01, 7 * DAY),
    ("refresh_interval", 0.001, 3600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardConfig:
    """How a steward cleans a store. What a topic keeps is in its own configuration. Times are seconds, sizes bytes."""

    interval: float = 60.0
    """How long it rests between two passes. Longer lets logs outgrow their limits by what is written meanwhile."""

    total_bytes: int | None = None
    """While all topics together are larger than this, the oldest closed segments go, wherever they are, whatever their
    topics' own limits say. Compacted topics are counted and spared: their oldest records may be the present ones."""

    protect_unread: bool = True
    """Keep what a group that has read a partition has yet to acknowledge there. False lets slow groups lose records;
    True lets a group that has stopped hold its records until it expires, or until one of the next two is reached."""

    force_after: float | None = None
    """Segments closed for longer than this go, read or not. Set it lower than your longest outage and groups lose
    records; None lets a stuck group fill the disk."""

    force_bytes: int | None = None
    """The oldest segments of a partition that is larger than this go, read or not: the same bargain, by size."""

    group_expiry: float = 7 * DAY
    """A group without members is forgotten so long after its last commit, and protects nothing then. If it comes back
    later it begins where its `start` says."""

    def __post_init__(self) -> None:
        if not isinstance(self.protect_unread, bool):
            raise InvalidConfiguration(f"protect_unread must be True or False, not {self.protect_unread!r}")
        _check_ranges(self, _STEWARD_RANGES)
        _check_whole(self)


_STEWARD_RANGES: tuple[tuple[str, float, float], ...] = (
    ("interval", 0.001, 7 * DAY),
    ("total_bytes", 0, 1 << 60),
    ("force_after", 0, _YEARS),
    ("force_bytes", 0, 1 << 60),
    ("group_expiry", 0, _YEARS),
)
