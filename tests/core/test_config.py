"""Configuration is checked where it is made, and the error names the field and what it may be."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headwater import (
    ConsumerConfig,
    HeadwaterError,
    InvalidConfiguration,
    PartitionConfig,
    ProducerConfig,
    StewardConfig,
    TopicConfig,
)
from headwater.core.options import Option, options_of

KINDS: list[type[Any]] = [PartitionConfig, TopicConfig, ProducerConfig, ConsumerConfig, StewardConfig]
CENTURY = 100 * 365 * 86400

OPTIONS = [
    pytest.param(kind, option, id=f"{kind.__name__}.{option.name}") for kind in KINDS for option in options_of(kind)
]
NUMBERS = [parameter for parameter in OPTIONS if parameter.values[1].range is not None]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_an_option_that_its_default_fits(kind: type[Any]) -> None:
    assert [option.name for option in options_of(kind)] == [field.name for field in dataclasses.fields(kind)]
    assert all(option.words or option.range is not None for option in options_of(kind))
    assert all(option.allows(option.default) for option in options_of(kind))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("segment_bytes", 4096, 1 << 40),
        ("segment_age", 0.001, CENTURY),
        ("index_interval", 128, 1 << 30),
        ("max_frame_bytes", 4096, 1 << 30),
        ("lock_timeout", 0, 3600),
        ("retention_age", 0, CENTURY),
        ("retention_bytes", 0, 1 << 60),
        ("retention_segments", 1, 1 << 30),
        ("mapping_cache_bytes", 0, 1 << 50),
    ],
)
def test_the_range_is_what_its_line_says(name: str, least: float, most: float) -> None:
    allowed = next(option.range for option in options_of(PartitionConfig) if option.name == name)
    assert allowed is not None
    assert (allowed.least, allowed.most) == (least, most)


@pytest.mark.parametrize(("kind", "option"), NUMBERS)
def test_the_limits_themselves_are_allowed(kind: type[Any], option: Option) -> None:
    assert option.range is not None
    needed = {"auto_ack": True} if option.name.startswith("auto_commit_") else {}
    for value in (option.range.least, option.range.most):
        assert getattr(kind(**needed, **{option.name: value}), option.name) == value


@pytest.mark.parametrize(("kind", "option"), NUMBERS)
def test_what_is_beyond_the_limits_is_refused(kind: type[Any], option: Option) -> None:
    assert option.range is not None
    wrong = [option.range.least - 1, option.range.most + 1, math.nan, math.inf, -math.inf, 1 << 20_000]
    for value in wrong:
        with pytest.raises(InvalidConfiguration, match=f"^{option.name} must be .* from .* to "):
            kind(**{option.name: value})


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_values_of_other_types_are_refused(kind: type[Any], option: Option) -> None:
    wrong: list[Any] = ["1", b"1", [], {}, 1j, object()]
    wrong += [5000.5] if option.range is not None and option.range.whole else []
    wrong += [None] if None not in option.words else []
    wrong += [0, 1] if True in option.words else [True, False]
    for value in wrong:
        with pytest.raises(InvalidConfiguration, match=f"^{option.name} must be"):
            kind(**{option.name: value})


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_every_word_is_allowed(kind: type[Any], option: Option) -> None:
    for word in option.words:
        assert getattr(kind(**{option.name: word}), option.name) == word


@pytest.mark.parametrize(
    ("kind", "name", "optional"),
    [
        (PartitionConfig, "retention_age", True),
        (PartitionConfig, "retention_bytes", True),
        (PartitionConfig, "segment_age", False),
        (StewardConfig, "total_bytes", True),
        (StewardConfig, "force_after", True),
        (StewardConfig, "force_bytes", True),
        (StewardConfig, "group_expiry", False),
    ],
)
def test_only_what_is_optional_can_be_none(kind: type[Any], name: str, optional: bool) -> None:
    option = next(option for option in options_of(kind) if option.name == name)
    assert option.allows(None) is optional


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: PartitionConfig(segment_bytes=5), "segment_bytes must be a whole number of bytes from 4KiB to 1TiB"),
        (
            lambda: PartitionConfig(retention_age=-1),
            "retention_age must be a number of seconds from 0 to 36500d or None",
        ),
        (
            lambda: PartitionConfig(sync=0),
            'sync must be "always", "never" or a number of seconds from 1ms to 1h, not 0',
        ),
        (lambda: TopicConfig(compression="gzip"), 'compression must be "none", "zstd" or "lz4", not \'gzip\''),  # type: ignore[arg-type]
        (lambda: TopicConfig(compact=1), "compact must be True or False, not 1"),  # type: ignore[arg-type]
        (lambda: ProducerConfig(batch_records=0), "batch_records must be a whole number from 1 to 10000000, not 0"),
        (
            lambda: ConsumerConfig(fetch_bytes=1.5),  # type: ignore[arg-type]
            "fetch_bytes must be a whole number of bytes from 1 to 1GiB, not 1.5",
        ),
    ],
)
def test_the_message_says_what_is_allowed(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        wrong()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("sync", ["always", "never", 0.001, 1, 3600])
def test_sync_is_a_mode_or_seconds(sync: Any) -> None:
    assert PartitionConfig(sync=sync).sync == sync


@pytest.mark.parametrize(
    "sync", ["", "sometimes", "5", 0, -1, 3601, True, False, None, math.nan, math.inf, [], b"never"]
)
def test_other_sync_modes_are_refused(sync: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="sync must be"):
        PartitionConfig(sync=sync)


def test_the_defaults_are_safe() -> None:
    config = PartitionConfig()
    assert config.sync == "always"
    assert config.retention_age is config.retention_bytes is None
    assert StewardConfig().protect_unread
    assert not ConsumerConfig().auto_ack


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_cannot_be_changed(kind: type[Any]) -> None:
    name = dataclasses.fields(kind)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kind(), name, 1)


def test_an_invalid_configuration_is_a_value_error_and_one_of_headwaters() -> None:
    with pytest.raises(ValueError, match="sync") as caught:
        PartitionConfig(sync="x")  # type: ignore[arg-type]
    assert isinstance(caught.value, HeadwaterError)
