"""Configuration is checked where it is made, and the error names the field and its range."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headwater import HeadwaterError, InvalidConfiguration, PartitionConfig

LIMITS: dict[str, tuple[float, float]] = {
    "segment_bytes": (4096, 1 << 40),
    "index_interval": (128, 1 << 30),
    "max_frame_bytes": (4096, 1 << 30),
    "retention_bytes": (0, 1 << 60),
    "retention_segments": (1, 1 << 30),
    "compaction_memory": (4096, 1 << 40),
    "mapping_cache_bytes": (0, 1 << 50),
    "lock_timeout": (0, 3600),
    "retention_age": (0, 100 * 365 * 86400),
    "delete_grace": (0, 100 * 365 * 86400),
    "producer_expiry": (1, 100 * 365 * 86400),
    "segment_age": (0.001, 100 * 365 * 86400),
}
SECONDS = ("lock_timeout", "retention_age", "delete_grace", "producer_expiry", "segment_age")


def made(**values: Any) -> PartitionConfig:
    return PartitionConfig(**values)


def test_every_field_has_limits() -> None:
    assert {field.name for field in dataclasses.fields(PartitionConfig)} == {*LIMITS, "sync"}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limits_themselves_are_allowed(name: str) -> None:
    for value in LIMITS[name]:
        assert getattr(made(**{name: value}), name) == value


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_beyond_the_limits_is_refused(name: str) -> None:
    least, most = LIMITS[name]
    wrong: list[Any] = [least - 1, most + 1, math.nan, math.inf, "1", b"1", True, []]
    for value in wrong:
        with pytest.raises(InvalidConfiguration, match=f"^{name} must be"):
            made(**{name: value})


@pytest.mark.parametrize("name", set(LIMITS) - set(SECONDS))
def test_bytes_and_counts_are_whole(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^{name} must be a whole number"):
        made(**{name: 5000.5})


@pytest.mark.parametrize("name", set(LIMITS) - {"retention_age", "retention_bytes"})
def test_only_what_is_optional_can_be_none(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^{name} must be"):
        made(**{name: None})
    assert made(retention_age=None, retention_bytes=None) == PartitionConfig()


@pytest.mark.parametrize("sync", ["always", "never", 0.001, 1, 3599.9])
def test_sync_is_a_mode_or_seconds(sync: Any) -> None:
    assert made(sync=sync).sync == sync


@pytest.mark.parametrize(
    "sync", ["", "sometimes", "5", 0, -1, 3600, True, False, None, math.nan, math.inf, [], b"never"]
)
def test_other_sync_modes_are_refused(sync: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="sync must be"):
        made(sync=sync)


def test_the_defaults_are_safe() -> None:
    config = PartitionConfig()
    assert config.sync == "always"
    assert config.retention_age is config.retention_bytes is None


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PartitionConfig().sync = "never"  # type: ignore[misc]


def test_an_invalid_configuration_is_a_value_error_and_one_of_headwaters() -> None:
    with pytest.raises(ValueError, match="sync") as caught:
        made(sync="x")
    assert isinstance(caught.value, HeadwaterError)
