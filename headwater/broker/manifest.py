"""A manifest: the wanted or present state of a cluster as one document: topics, rights and brokers.

    topics:
      orders:
        partitions: 6
        replication: 3
        config: {retention_age: 7d}
        schema: {id: int64 not null, amount: "decimal128(12, 2)"}
    permissions:
      users:
        billing: {topics: {orders: read}}
    brokers:
      1: {address: 10.0.0.1:6174}

It leaves everything as it is that it does not name: a topic's options, and whole sections. Names that are there and not
in it are told of, and removed only when that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from headwater.broker.security.access_file import users_in, written_rights
from headwater.broker.security.tokens import token_of
from headwater.cluster.control.assignment import default_min_insync
from headwater.core.columns import read_column, write_columns
from headwater.core.config import TopicConfig
from headwater.core.document import Kind, read_document
from headwater.core.errors import HeadwaterError, InvalidConfiguration, InvalidFile
from headwater.core.names import check_name
from headwater.core.options import Option, options_of
from headwater.core.schema import Schema
from headwater.core.section import Section, suggestion
from headwater.streams.catalog import MAX_PARTITIONS, MAX_REPLICATION
from headwater.streams.topic import check_evolution

SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml")
_KIND: Final = Kind("a manifest", "a mapping with topics, permissions and brokers", suffixes=SUFFIXES)
_OPTIONS: Final = {option.name: option for option in options_of(TopicConfig)}
_DEFAULTS: Final = TopicConfig()


@dataclass(frozen=True, slots=True)
class ManifestTopic:
    """A topic. A value of None is not said: for a new topic it is left to the broker."""

    partitions: int | None = None
    replication: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Each as text, as it is written in the environment."""
    schema: Schema | None = None
    """None for raw topics, and where it is not said."""
    min_insync: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterManifest:
    """The wanted or the present state. A section that is None is not there, and nothing is said of it."""

    topics: Mapping[str, ManifestTopic] | None = None
    users: Mapping[str, Mapping[str, Any]] | None = None
    """Each with its rights, as an access file has them."""
    tokens: Mapping[str, Mapping[str, Any]] | None = None
    """A salted hash of each."""
    brokers: Mapping[int, str | None] | None = None
    """Each with its address, where that is said."""
    cluster: str | None = None

    def document(self) -> dict[str, Any]:
        """The manifest as it is written."""
        document: dict[str, Any] = {}
        if self.cluster:
            document["cluster"] = self.cluster
        if self.brokers is not None:
            document["brokers"] = {number: {"address": address} for number, address in sorted(self.brokers.items())}
        if self.topics is not None:
            document["topics"] = {name: _topic_document(topic) for name, topic in sorted(self.topics.items())}
        if self.users is not None:
            document["permissions"] = {"users": {name: dict(rights) for name, rights in sorted(self.users.items())}}
            if self.tokens:
                kept = sorted(self.tokens.items())
                document["permissions"]["tokens"] = {
                    name: {key: value for key, value in token.items() if key != "id" and value is not None}
                    for name, token in kept
                }
        return document


def _topic_document(topic: ManifestTopic) -> dict[str, Any]:
    document: dict[str, Any] = {"partitions": topic.partitions}
    if topic.replication:
        document["replication"] = topic.replication
    if topic.min_insync and topic.min_insync != default_min_insync(topic.replication or 1):
        document["min_insync"] = topic.min_insync
    changed = {name: text for name, text in topic.options.items() if text != written_option(name, default_of(name))}
    if changed:
        document["config"] = changed
    if topic.schema is not None:
        document["schema"] = write_columns(topic.schema)
    return document


def default_of(name: str) -> Any:
    """The value of a topic's option where nobody says otherwise."""
    return getattr(_DEFAULTS, name)


def written_option(name: str, value: Any) -> str:
    """A value of a topic's option as text."""
    return _OPTIONS[name].written(value)


# Reading.


def read_manifest(path: Path) -> ClusterManifest:
    """The manifest in a file. Raises InvalidFile, with everything that is wrong and where, or OSError."""
    whole = Section.whole(read_document(path, _KIND))
    manifest = ClusterManifest(
        topics=_topics(whole),
        **_permissions(whole),
        brokers=_brokers(whole),
        cluster=whole.text("cluster", noun="the name of a cluster"),
    )
    whole.finish()
    if whole.problems:
        raise InvalidFile(sorted(whole.problems, key=lambda problem: problem.line))
    return manifest


def _topics(whole: Section) -> dict[str, ManifestTopic] | None:
    if "topics" not in whole:
        whole.anything("topics")
        return None
    topics = {}
    for section in whole.sections("topics", "topics", identifiers=False):
        try:
            check_name("topic", section.name)
        except HeadwaterError as error:
            section.wrong(str(error))
        topics[section.name] = ManifestTopic(
            section.number("partitions", None, most=MAX_PARTITIONS),
            section.number("replication", None, most=MAX_REPLICATION),
            _options(section),
            _schema(section),
            section.number("min_insync", None, most=MAX_REPLICATION),
        )
        section.finish()
    return topics


def _options(topic: Section) -> dict[str, str]:
    section = topic.section("config")
    options = {}
    for name in section.present if section is not None else ():
        assert section is not None
        value = section.anything(name)
        if name not in _OPTIONS:
            section.wrong(f"there is no option {name!r}: {suggestion(name, list(_OPTIONS))}", name)
            continue
        try:
            options[name] = _option(_OPTIONS[name], value)
        except InvalidConfiguration as error:
            section.wrong(f"{error}, not {value!r:.60}", name)
    return options


def _option(option: Option, value: Any) -> str:
    if not isinstance(value, str | int | float | None):
        raise InvalidConfiguration(f"must be {option.allowed}")
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return option.written(option.parse(text))


def _schema(topic: Section) -> Schema | None:
    section = topic.section("schema")
    if section is None:
        return None
    columns = []
    for name in section.present:
        text = section.text(name, required=True, noun="a type such as int64 or string not null")
        try:
            columns.append(read_column(name, text or ""))
        except HeadwaterError as error:
            section.wrong(str(error), name)
    try:
        import pyarrow as pa

        return Schema(pa.schema(columns)) if len(columns) == len(section.present) else None
    except HeadwaterError as error:
        section.wrong(str(error))
        return None


def _permissions(whole: Section) -> dict[str, Any]:
    section = whole.section("permissions")
    if section is None:
        return {}
    users = {name: written_rights(rights) for name, rights in users_in(section).items()}
    tokens = {}
    for token in section.sections("tokens", "what is kept of tokens", identifiers=False):
        content = {name: token.anything(name) for name in token.present}
        try:
            tokens[token.name] = token_of({**content, "id": token.name})._asdict()
        except (ValueError, TypeError):  # without its text, which may quote what is there
            token.wrong("must have user, salt, hash and created, as `hw cluster export` writes them")
    section.finish()
    return {"users": users, "tokens": tokens if "tokens" in section else None}


def _brokers(whole: Section) -> dict[int, str | None] | None:
    value = whole.anything("brokers")
    if value is None:
        return None
    brokers: dict[int, str | None] = {}
    for name, content in value.items() if isinstance(value, dict) else ():
        number = str(name)
        if not number.isascii() or not number.isdigit() or not isinstance(content, dict | None):
            whole.wrong(
                f"a broker is a number and a mapping with its address, not {name!r}: {content!r:.60}", "brokers"
            )
            continue
        section = Section(whole.document, ("brokers", number), content or {}, whole.problems)
        brokers[int(number)] = section.text("address", noun="host:port")
        section.finish()
    if not isinstance(value, dict):
        whole.wrong(f"must be a mapping of numbers to brokers, not {value!r:.60}", "brokers")
    return brokers


# Comparing.


class Difference(NamedTuple):
    """Something that is not as the manifest says."""

    kind: Literal["topic", "user", "token", "broker"]
    name: str
    action: Literal["add", "change", "remove"]
    details: tuple[str, ...] = ()
    problem: str = ""
    """Why it cannot be brought about from here."""

    def __str__(self) -> str:
        about = f": {', '.join(self.details)}" if self.details else ""
        return f"{self.action} {self.kind} {self.name}{about}"


def differences(wanted: ClusterManifest, running: ClusterManifest) -> list[Difference]:
    """All that would have to be done, in an order in which it can be; what is not named by `wanted` comes last."""
    if wanted.cluster is not None and wanted.cluster != running.cluster:
        raise InvalidConfiguration(
            f"the manifest describes cluster {wanted.cluster!r}, but this is cluster {running.cluster!r}"
        )
    steps = [*_broker_differences(wanted, running), *_topic_differences(wanted, running)]
    steps += _named("user", wanted.users, running.users)
    steps += _named("token", wanted.tokens, running.tokens)
    return sorted(steps, key=lambda step: step.action == "remove")


def _broker_differences(wanted: ClusterManifest, running: ClusterManifest) -> Iterator[Difference]:
    if wanted.brokers is None:
        return
    existing = running.brokers or {}
    for number, address in wanted.brokers.items():
        if number not in existing:
            yield Difference(
                "broker", str(number), "add", problem="start it yourself: a manifest does not start brokers"
            )
        elif address is not None and existing[number] != address:
            details = (f"address: {existing[number]} → {address}",)
            yield Difference(
                "broker", str(number), "change", details, "restart the broker with --advertise and that address"
            )
    for number in existing.keys() - wanted.brokers.keys():
        problem = f"run hw cluster remove-broker {number}, which moves its replicas to other brokers"
        yield Difference("broker", str(number), "remove", problem=problem)


def _topic_differences(wanted: ClusterManifest, running: ClusterManifest) -> Iterator[Difference]:
    existing = running.topics or {}
    for name, topic in (wanted.topics or {}).items():
        known = existing.get(name)
        if known is None:
            yield Difference("topic", name, "add", tuple(_described(topic)), _too_few(topic, running.brokers))
            continue
        details, problem = _changes(topic, known)
        if topic.replication != known.replication:
            problem = problem or _too_few(topic, running.brokers)
        if details:
            yield Difference("topic", name, "change", tuple(details), problem)
    for name in existing.keys() - wanted.topics.keys() if wanted.topics is not None else ():
        yield Difference("topic", name, "remove")


def _too_few(topic: ManifestTopic, brokers: Mapping[int, str | None] | None) -> str:
    """Why a topic cannot be kept as often as it is to be, if it cannot. `brokers` is None for a single broker."""
    if brokers is None:
        more = max(topic.replication or 1, topic.min_insync or 1) > 1
        return "a single broker keeps one copy of each topic" if more else ""
    if topic.replication is None or topic.replication <= len(brokers):
        return ""
    return f"{len(brokers)} brokers are alive: start more of them first"


def _described(topic: ManifestTopic) -> Iterator[str]:
    yield f"partitions: {topic.partitions or 1}"
    if topic.replication is not None:
        yield f"replication: {topic.replication}"
    if topic.min_insync is not None:
        yield f"min_insync: {topic.min_insync}"
    yield from (f"{name}: {text}" for name, text in topic.options.items())
    if topic.schema is not None:
        yield f"columns: {' '.join(topic.schema.payload.names)}"


def _changes(topic: ManifestTopic, known: ManifestTopic) -> tuple[list[str], str]:
    """A difference, and the reason why it cannot be changed, if it cannot."""
    details, problem = [], ""
    if topic.partitions is not None and topic.partitions != known.partitions:
        details.append(f"partitions: {known.partitions} → {topic.partitions}")
        if topic.partitions < (known.partitions or 1):
            problem = "a topic never loses partitions"
    if topic.replication is not None and topic.replication != (known.replication or 1):
        details.append(f"replication: {known.replication or 1} → {topic.replication}")
    if topic.min_insync is not None and topic.min_insync != (known.min_insync or 1):
        details.append(f"min_insync: {known.min_insync or 1} → {topic.min_insync}")
    for name, text in topic.options.items():
        if known.options.get(name) != text:
            details.append(f"{name}: {known.options.get(name)} → {text}")
    if topic.schema is not None and topic.schema != known.schema:
        details.append(f"columns: {' '.join(topic.schema.payload.names)}")
        problem = problem or _incompatible(topic.schema, known.schema)
    return details, problem


def _incompatible(schema: Schema, known: Schema | None) -> str:
    if known is None:
        return "it is raw, and its records have no columns"
    try:
        check_evolution(known, schema)
    except HeadwaterError as error:
        return str(error)
    return ""


def _named(
    kind: Literal["user", "token"], wanted: Mapping[str, Any] | None, running: Mapping[str, Any] | None
) -> Iterator[Difference]:
    existing = running or {}
    for name, content in (wanted or {}).items():
        if name not in existing:
            yield Difference(kind, name, "add", (_shown(content),) if kind == "user" else ())
        elif existing[name] != content:
            yield Difference(kind, name, "change", (_shown(content),) if kind == "user" else ())
    for name in existing.keys() - wanted.keys() if wanted is not None else ():
        yield Difference(kind, name, "remove")


def _shown(rights: Mapping[str, Any]) -> str:
    return json.dumps(rights).replace('"', "")
