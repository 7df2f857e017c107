"""Topics: the list, one of them with all that belongs to it, and changes to them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from headwater.console.page_request import PageRequest
from headwater.core.config import TopicConfig
from headwater.core.errors import InvalidConfiguration, SchemaError
from headwater.core.options import options_of
from headwater.core.schema import Schema
from headwater.log import PartitionStatistics
from headwater.log.format.frame import NO_PRODUCER, WRITER, FrameHeader
from headwater.streams.survey import Survey
from headwater.streams.topic import Topic

_LOOK_BACK_BYTES: Final = 1 << 20
_PRODUCERS: Final = 50
_PATIENCE: Final = 2.0
_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
"""The types of columns for topics that are created here; programs have all of Arrow's types."""


def listed(request: PageRequest) -> dict[str, Any]:
    """Every topic, with its numbers as far as they are known by now."""
    survey, rates = request.watch.survey, request.watch.rates()
    if survey is None:
        return {"ready": False, "topics": [{"name": name} for name in request.store.topics()]}
    lags = _lags_by_topic(survey)
    topics = []
    for name, info in survey.infos.items():
        document: dict[str, Any] = {"name": name, "partitions": info.partitions, "compact": info.config.compact}
        statistics = survey.topics.get(name)
        if statistics is None:
            document["problem"] = survey.problems.get(f"topic {name}", "it cannot be read")
        else:
            document |= {
                "records": statistics.records,
                "bytes": statistics.bytes,
                "rate": rates.topics.get(name, (0.0, 0.0))[0],
                "last": max((partition.last_append_ns for partition in statistics.partitions), default=0) / 1e6 or None,
                "lag": sum(lags[name].values()) if name in lags else None,
                "groups": len(lags.get(name, {})),
                "unhealthy": len(statistics.unhealthy),
            }
        topics.append(document)
    return {"ready": True, "topics": topics, "error": request.watch.error}


def _lags_by_topic(survey: Survey) -> dict[str, dict[str, int]]:
    """For each topic how far each group is behind in it."""
    by_topic: dict[str, dict[str, int]] = {}
    for group, lags in survey.lags().items():
        for tp, lag in lags.items():
            groups = by_topic.setdefault(tp.topic, {})
            groups[group] = groups.get(group, 0) + lag
    return by_topic


def shown_topic(request: PageRequest) -> dict[str, Any]:
    """One topic: its partitions, configuration, schemas, and the groups that read it."""
    topic = request.store.topic(request.path["topic"])
    info = topic.info
    survey = request.watch.survey
    statistics = topic.statistics()
    rate = request.watch.rates().topics.get(topic.name, (0.0, 0.0))
    return {
        "name": topic.name,
        "uuid": info.uuid.hex(),
        "created": info.created_ns / 1e6,
        "records": statistics.records,
        "bytes": statistics.bytes,
        "total_records": statistics.total_records,
        "total_bytes": statistics.total_bytes,
        "rate": rate[0],
        "bytes_per_second": rate[1],
        "activity": asdict(statistics.counters),
        "raw": topic.schema.raw,
        "internal": topic.name.startswith("__"),
        "partitions": [
            {
                "number": number,
                "start": partition.start,
                "end": partition.end,
                "durable_end": partition.durable_end,
                "bytes": partition.bytes,
                "segments": partition.segments,
                "last": partition.last_append_ns / 1e6 or None,
                "recoveries": partition.recoveries,
                "damaged": partition.damaged,
                "poisoned": partition.poisoned,
            }
            for number, partition in enumerate(statistics.partitions)
        ],
        "config": configuration(info.config),
        "schemas": [_schema(request.store.schema_by_id(info, schema_id)) for schema_id in info.schemas],
        "groups": _groups(survey, topic.name) if survey is not None else [],
    }


def configuration(config: TopicConfig) -> list[dict[str, Any]]:
    """Each option as it is written, and whether that is the default."""
    return [
        {
            "name": option.name,
            "value": option.written(getattr(config, option.name)),
            "default": option.written(option.default),
            "allowed": option.allowed,
        }
        for option in options_of(TopicConfig)
    ]


def defaults(request: PageRequest) -> dict[str, Any]:
    """Answer with the configuration that a new topic would get."""
    return {"config": configuration(request.store.defaults.topic), "types": list(_TYPES)}


def _schema(schema: Schema) -> dict[str, Any]:
    columns = [
        {"name": field.name, "type": str(field.type), "nullable": bool(field.nullable)} for field in schema.payload
    ]
    return {"id": f"{schema.id:016x}", "raw": schema.raw, "columns": columns}


def _groups(survey: Survey, topic: str) -> list[dict[str, Any]]:
    documents = []
    for group, lags in survey.lags().items():
        here = {tp.partition: lag for tp, lag in lags.items() if tp.topic == topic}
        owned = sum(tp.topic == topic for tp in survey.groups[group].owners)
        if here or owned:
            members = len(survey.groups[group].members)
            documents.append({"name": group, "lag": sum(here.values()), "members": members, "partitions": here})
    return sorted(documents, key=lambda document: document["lag"], reverse=True)


def producers(request: PageRequest) -> dict[str, Any]:
    """Answer with the producers of the last frames of each partition, as far as there is time to look."""
    topic = request.store.topic(request.path["topic"])
    deadline = time.monotonic() + _PATIENCE
    by_identity: dict[str, dict[str, Any]] = {}
    for number, statistics in enumerate(topic.statistics().partitions):
        for header in _last_headers(topic, number, statistics, deadline):
            known = header.producer_id != NO_PRODUCER
            identity = header.producer_id.hex() if known else "unnamed"
            producer = by_identity.setdefault(
                identity,
                {
                    "id": identity,
                    "kind": "transactions" if header.attributes & WRITER else "idempotent" if known else "plain",
                    "records": 0,
                    "bytes": 0,
                    "partitions": [],
                    "last": 0.0,
                },
            )
            producer["records"] += header.record_count
            producer["bytes"] += header.length
            producer["last"] = max(producer["last"], header.max_timestamp / 1e6)
            if number not in producer["partitions"]:
                producer["partitions"].append(number)
    newest = sorted(by_identity.values(), key=lambda producer: producer["last"], reverse=True)
    return {"producers": newest[:_PRODUCERS], "looked_back": _LOOK_BACK_BYTES}


def _last_headers(topic: Topic, number: int, statistics: PartitionStatistics, deadline: float) -> Iterator[FrameHeader]:
    """The headers of the frames at the end of a partition, of about so many bytes."""
    start, end, size = statistics.start, statistics.end, statistics.bytes
    share = min(_LOOK_BACK_BYTES / size, 1.0) if size else 1.0
    first = max(end - max(int((end - start) * share), 1), start)
    if first >= end or time.monotonic() > deadline:
        return
    for frame in topic.partition(number).frames(first, end, on_damage=lambda _: None):
        yield frame.header
        if time.monotonic() > deadline:
            return


# Changes.


def create(request: PageRequest) -> dict[str, Any]:
    """Make a topic: `name`, `partitions`, `columns` for a typed one, `config` by options as text."""
    name = request.given("name", str)
    columns = request.body.get("columns") or []
    if not isinstance(columns, list):
        raise SchemaError("columns must be a list")
    schema = None
    if columns:
        schema = pa.schema([_column(column) for column in columns])
    options = _options(request.body.get("config") or {})
    topic = request.store.create_topic(name, request.given("partitions", int), schema, **options)
    request.watch.look_now()
    return {"name": topic.name}


def _column(column: Any) -> Any:
    try:
        return pa.field(str(column["name"]), _TYPES[column["type"]], bool(column.get("nullable", True)))
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        known = ", ".join(_TYPES)
        raise SchemaError(f"a column has a name and one of these types: {known}; not {str(column)[:60]!r}") from None


def _options(said: Any) -> dict[str, Any]:
    """Options of a topic by their texts; raises InvalidConfiguration, which names the option."""
    known = {option.name: option for option in options_of(TopicConfig)}
    if not isinstance(said, dict) or not said.keys() <= known.keys():
        raise InvalidConfiguration(f"config takes the options of a topic: {', '.join(known)}")
    options = {}
    for name, text in said.items():
        try:
            options[name] = known[name].parse(str(text))
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{name} {error}, not {text!r:.60}") from None
    return options


def alter(request: PageRequest) -> dict[str, Any]:
    """Change options by their texts, and the number of partitions."""
    name = request.path["topic"]
    partitions = request.body.get("partitions")
    if partitions is not None and (not isinstance(partitions, int) or isinstance(partitions, bool)):
        raise InvalidConfiguration("partitions must be a whole number")
    info = request.store.alter_topic(name, partitions=partitions, **_options(request.body.get("config") or {}))
    request.watch.look_now()
    return {"name": name, "partitions": info.partitions, "config": configuration(info.config)}


def delete(request: PageRequest) -> dict[str, Any]:
    """Delete a topic; the body says its name once more, as the one who deletes has typed it."""
    name = request.path["topic"]
    if request.given("confirm", str) != name:
        raise InvalidConfiguration(f"type the name of the topic to delete it: {name}")
    if name.startswith("__"):
        raise InvalidConfiguration(f"{name} is one of Headwater's own topics, and cannot be deleted")
    request.store.delete_topic(name)
    request.watch.look_now()
    return {"deleted": name}


def produce(request: PageRequest) -> dict[str, Any]:
    """Write one record, and wait until it is durable."""
    topic = request.store.topic(request.path["topic"])
    if topic.name.startswith("__"):
        raise InvalidConfiguration(f"{topic.name} is one of Headwater's own topics, and cannot be written to")
    key = _content(request.body.get("key"), "key")
    partition = request.body.get("partition")
    said = request.body.get("headers") or {}
    if not isinstance(said, dict):
        raise InvalidConfiguration("headers must be an object")
    headers = {name: _content(value, f"header {name!r:.60}") or b"" for name, value in said.items()}
    value = request.body.get("value")
    with request.store.producer(topic.name, linger=0.0) as out:
        sent = _content(value, "value") if topic.schema.raw else _row(value, topic.schema)
        receipt = out.send(sent, key=key, headers=headers or None, partition=partition)
        out.sync()
    request.watch.look_now()
    return {"partition": receipt.partition, "offset": receipt.offset}


def _content(said: Any, name: str) -> bytes | None:
    """Bytes from `{"as": "text" | "json" | "hex", "text": ...}`; None for null."""
    if said is None:
        return None
    kind = ""
    try:
        kind, text = said["as"], said["text"]
        if kind == "hex":
            return bytes.fromhex(text)
        if kind == "json":
            json.loads(text)
        elif kind != "text":
            raise InvalidConfiguration(f"{name} must be text, json or hex, not {kind!r:.20}")
        content: bytes = text.encode()
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(f"{name} has the wrong type: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"{name} is not valid {kind}: {error}") from None
    return content


def _row(said: Any, schema: Schema) -> dict[str, Any] | None:
    """The columns of a typed record, from a JSON object; times and dates as ISO 8601 says them."""
    content = _content(said, "value")
    if content is None:
        return None
    try:
        document = json.loads(content)
        if not isinstance(document, dict) or not document.keys() <= set(schema.payload.names):
            raise SchemaError(f"a record of this topic is an object with the columns {', '.join(schema.payload.names)}")
        return {name: _converted(value, schema.payload.field(name)) for name, value in document.items()}
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"value is not JSON: {error}") from None


def _converted(value: Any, field: Any) -> Any:
    """Return a value that JSON has no type for, such as a time, from its text."""
    kind = field.type
    try:
        if isinstance(value, str) and (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
            return pa.scalar(value).cast(kind).as_py()
        if isinstance(value, str) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            return value.encode()
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(f"column {field.name!r} is {kind}, and {value!r:.60} is not: {error}") from None
    return value
