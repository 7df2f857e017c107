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
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise InvalidConfiguration(f"{name} must be between {least:g} and {most:g}, not {value!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if str(field.type).startswith("int") and not isinstance(value, int | None):
                raise InvalidConfiguration(f"{field.name} must be a whole number")


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
_OPTIONAL = frozenset({"retention_age", "retention_bytes"})
