"""The limits on the size of values, keys, headers and frames: the one place that says which is exceeded."""

from __future__ import annotations

from headwater.core.config import PartitionConfig, TopicConfig
from headwater.core.errors import InvalidRecord


def check_sizes(limits: TopicConfig, *, value: int = 0, key: int = 0, headers: int = 0) -> None:
    """Raise InvalidRecord if a record, or the largest of several, is over a limit of its topic. Sizes are in bytes."""
    if value > limits.max_value_bytes:
        raise _too_large(f"a value of {value} bytes is", limits.max_value_bytes, "max_value_bytes")
    if key > limits.max_key_bytes:
        raise _too_large(f"a key of {key} bytes is", limits.max_key_bytes, "max_key_bytes")
    if headers > limits.max_headers_bytes:
        raise _too_large(f"headers of {headers} bytes are", limits.max_headers_bytes, "max_headers_bytes")


def check_frame_size(limits: PartitionConfig, length: int, where: object) -> None:
    """Raise InvalidRecord if a frame of this length is over the limit of its partition, which is named by `where`."""
    if length > limits.max_frame_bytes:
        subject = f"{where}: a frame of {length} bytes is"
        raise _too_large(subject, limits.max_frame_bytes, "max_frame_bytes", ": send fewer records at a time")


def _too_large(subject: str, limit: int, option: str, remedy: str = "") -> InvalidRecord:
    return InvalidRecord(f"{subject} over the limit of {limit} ({option}){remedy}")
