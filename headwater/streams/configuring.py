"""Configurations as callers give them: a whole one, or options by name over a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from headwater.core.config import ConsumerConfig, PartitionConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.core.errors import InvalidConfiguration

_PARTITION_FIELDS: Final = tuple(field.name for field in fields(PartitionConfig))
_Config = TypeVar("_Config", TopicConfig, ProducerConfig, ConsumerConfig, StewardConfig)


def configured(default: _Config, config: _Config | None, options: Mapping[str, Any]) -> _Config:
    """Return `config`, or else the default, with the options by name over it; raises InvalidConfiguration."""
    kind = type(default)
    if config is not None and not isinstance(config, kind):
        raise InvalidConfiguration(f"config must be a {kind.__name__}, not {config!r:.60}")
    known = [field.name for field in fields(kind)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidConfiguration(f"unknown options {unknown}; there are {', '.join(known)}")
    return replace(config or default, **options)


def partition_config(config: TopicConfig) -> PartitionConfig:
    """Return the part of a topic's configuration that its partitions need."""
    return PartitionConfig(**{name: getattr(config, name) for name in _PARTITION_FIELDS})
