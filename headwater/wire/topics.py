"""Topics as messages: options travel as text, as they are written in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headwater.core.config import TopicConfig
from headwater.core.errors import InvalidConfiguration
from headwater.core.options import options_of
from headwater.core.schema import RAW
from headwater.streams.catalog import TopicInfo
from headwater.v1 import broker_pb2 as pb


def options_to_text(options: Mapping[str, Any], kind: type[Any] = TopicConfig) -> dict[str, str]:
    """Options by name, each as text; raises InvalidConfiguration for what is none."""
    known = {option.name: option for option in options_of(kind)}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidConfiguration(f"unknown options {unknown}; there are {', '.join(known)}")
    for name, value in options.items():
        known[name].check(value)
    return {name: known[name].written(value) for name, value in options.items()}


def options_from_text(texts: Mapping[str, str], kind: type[Any] = TopicConfig) -> dict[str, Any]:
    """The reverse; raises InvalidConfiguration, which names the option."""
    known = {option.name: option for option in options_of(kind)}
    options: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in known:
            raise InvalidConfiguration(f"unknown option {name!r:.60}; there are {', '.join(known)}")
        try:
            options[name] = known[name].parse(text)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{name}: {error}, not {text!r:.60}") from None
    return options


def pack_topic(info: TopicInfo) -> pb.Topic:
    """The topic as a message."""
    config = {field.name: getattr(info.config, field.name) for field in fields(info.config)}
    return pb.Topic(
        name=info.name,
        uuid=info.uuid,
        partitions=info.partitions,
        schema_ids=info.schemas,
        options=options_to_text(config),
        created_ns=info.created_ns,
        raw=info.schemas[-1] == RAW.id,
        replication=info.replication or 0,
        min_insync=info.min_insync or 0,
    )


def unpack_topic(packed: pb.Topic) -> TopicInfo:
    """The reverse. Options that only a newer broker has are left out."""
    known = {option.name for option in options_of(TopicConfig)}
    texts = {name: text for name, text in packed.options.items() if name in known}
    return TopicInfo(
        packed.name,
        packed.uuid,
        packed.partitions,
        tuple(packed.schema_ids),
        TopicConfig(**options_from_text(texts)),
        packed.created_ns,
        packed.replication or None,
        packed.min_insync or None,
    )
