"""Options, as strings from Spark, checked: a wrong one says what is right.

Spark puts names in lower case before they arrive here. Those of Spark's own Kafka source are understood, so that a job
moves over by changing its format and its address.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from headwater.core.errors import InvalidConfiguration
from headwater.core.names import check_name
from headwater.spark.archive import archive_path
from headwater.streams import Time, time

Position = Literal["earliest", "latest"] | int | Time
"""A position at which reading of a partition begins or ends."""

Positions = dict[str, dict[int, Position]]
"""By topic and partition."""

STORE: Final = ("store", "path")
_KAFKA_POSITIONS: Final[dict[int, Position]] = {-2: "earliest", -1: "latest"}
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

SOURCE_OPTIONS: Final = (
    *STORE,
    "topic",
    "topics",
    "topicPattern",
    "subscribe",
    "subscribePattern",
    "assign",
    "partitions",
    "columns",
    "includeHeaders",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "group",
    "archive",
)
SINK_OPTIONS: Final = (*STORE, "topic", "txnId", "txnVersion", "txnOwner", "txnTakeover")
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options that Spark adds by itself."""


class SparkOptions:
    """The options that the user gave, under their proper names."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for key, value in given.items():
            if key.lower() not in names:
                raise InvalidConfiguration(_unknown(key, list(names.values())))
            self._given[names[key.lower()]] = str(value)

    def text(self, *names: str) -> str | None:
        """The value of an option, which may be called by one of several names."""
        given = [name for name in names if name in self._given]
        if len(given) > 1:
            raise InvalidConfiguration(f"give only one of the options {', '.join(given)}")
        return self._given[given[0]].strip() if given else None

    def whole(self, name: str) -> int | None:
        """A whole number above 0."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"0*[1-9]\d*", text):
            raise InvalidConfiguration(f"option {name} must be a whole number above 0, not {text!r}")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidConfiguration(f"option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def listed(self, name: str) -> tuple[str, ...]:
        """Names, separated by commas or as a JSON array."""
        text = self.text(name)
        if text is None:
            return ()
        entries = _json(name, text) if text.startswith("[") else [part.strip() for part in text.split(",")]
        if (
            not entries
            or not all(isinstance(entry, str) and entry for entry in entries)
            or len(set(entries)) < len(entries)
        ):
            raise InvalidConfiguration(f"option {name} must be a list of names, each once, not {text!r}")
        return tuple(entries)

    def seconds(self, name: str, default: float) -> float:
        """A length of time such as `15m`."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text)
        if not match:
            raise InvalidConfiguration(
                f"option {name} must be a length of time such as 500ms, 30s or 15m, not {text!r}"
            )
        return float(match[1]) * _SECONDS[match[2]]

    def store(self) -> str:
        """The address of the store, the same for every process: a path is made absolute where the query is planned."""
        address = self.text(*STORE)
        if not address:
            raise InvalidConfiguration("option store is missing: the directory of a store, or hw://host:port")
        if address == "memory:":
            raise InvalidConfiguration("option store: Spark's processes cannot see a store in memory; use a directory")
        if address.startswith("file:"):
            address = unquote(urlsplit(address).path)
        if "://" in address:
            return address
        return str(Path(address).expanduser().absolute())


def _unknown(key: str, known: list[str]) -> str:
    if key.lower() == "kafka.bootstrap.servers":
        return "option kafka.bootstrap.servers is for Kafka: name the store with the option store"
    if key.lower().startswith("kafka."):
        return f"option {key} is for a client of Kafka, which Headwater does not use: remove it"
    by_lower = {name.lower(): name for name in known}
    close = [by_lower[name] for name in get_close_matches(key.lower(), by_lower, n=1)]
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
    return f"unknown option {key}: {hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a source: which store and topics to read, from where to where, and how."""

    store: str
    topics: tuple[str, ...] | None
    """Names, in the order given, or None for a pattern."""
    pattern: str
    """A regular expression for whole names of topics."""
    several: bool
    """True if the options may mean more than one topic. Then rows say which one they are from."""
    partitions: dict[str, frozenset[int]] | frozenset[int] | None
    columns: tuple[str, ...]
    headers: bool
    starting: Position | Positions | None
    ending: Position | Positions
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    fail_on_data_loss: bool
    group: str | None
    archive: str | None
    """The directory of the archive that has the older part of the topics."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """The options of a source, checked."""
        options = SparkOptions(given, SOURCE_OPTIONS)
        store = options.store()
        chosen = [
            name
            for name in ("topic", "topics", "topicPattern", "subscribe", "subscribePattern", "assign")
            if options.text(name) is not None
        ]
        if len(chosen) != 1:
            mistake = f"not {' and '.join(chosen)}" if chosen else "none is given"
            raise InvalidConfiguration(f"give one of the options topic, topics and topicPattern: {mistake}")
        assigned = _assigned(options)
        topics: tuple[str, ...] | None = tuple(assigned) if assigned else None
        if chosen[0] in ("topics", "subscribe"):
            topics = options.listed(chosen[0])
        elif chosen[0] == "topic":
            topics = (options.text("topic") or "",)
        numbers = options.listed("partitions")
        if not all(number.isdecimal() for number in numbers):
            raise InvalidConfiguration(f"option partitions must be numbers such as 0,2, not {','.join(numbers)!r}")
        if numbers and assigned:
            raise InvalidConfiguration("give only one of the options partitions and assign")
        return cls(
            store=store,
            topics=topics,
            pattern=_pattern(options),
            several=chosen[0] != "topic",
            partitions=assigned or (frozenset(map(int, numbers)) if numbers else None),
            columns=options.listed("columns"),
            headers=options.flag("includeHeaders", False),
            starting=_position(options, "starting"),
            ending=_position(options, "ending") or "latest",
            min_partitions=options.whole("minPartitions"),
            max_records_per_partition=options.whole("maxRecordsPerPartition"),
            max_offsets_per_trigger=options.whole("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=options.whole("minOffsetsPerTrigger"),
            max_trigger_delay=options.seconds("maxTriggerDelay", 15 * 60.0),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            group=options.text("group"),
            archive=None if options.text("archive") is None else archive_path(options.text("archive") or ""),
        )

    def means(self, topic: str) -> bool:
        """Return whether the options mean a topic of this name."""
        return topic in self.topics if self.topics is not None else bool(re.fullmatch(self.pattern, topic))

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether the options include this partition of a wanted topic."""
        chosen = self.partitions
        if isinstance(chosen, dict):
            chosen = chosen.get(topic, frozenset())
        return chosen is None or partition in chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a sink: the store and topic, and the name and number under which a write counts once."""

    store: str
    topic: str | None
    """None if the rows name their topic themselves."""
    txn_id: str | None
    txn_version: int | None
    owner: str | None
    """The owner of the version numbers of batches. For a stream it is the query."""
    takeover: bool

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """The options of a sink of batches or of a stream."""
        options = SparkOptions(given, (*SINK_OPTIONS, *_SPARKS_OWN))
        txn_id, version = options.text("txnId"), options.text("txnVersion")
        if txn_id is not None:
            check_name("writer (option txnId)", txn_id)
        if streaming and version is not None:
            raise InvalidConfiguration("option txnVersion is only for a batch: Spark numbers the batches of a stream")
        if not streaming and (txn_id is None) != (version is None):
            raise InvalidConfiguration(
                "give both of the options txnId and txnVersion, or neither: a batch counts once only with both"
            )
        if version is not None and not version.isdecimal():
            raise InvalidConfiguration(f"option txnVersion must be a number from 0 on, not {version!r}")
        owner, takeover = options.text("txnOwner"), options.flag("txnTakeover", False)
        if owner is not None and version is None:
            raise InvalidConfiguration("option txnOwner is only for a batch with the options txnId and txnVersion")
        if takeover and (txn_id if streaming else owner) is None:
            raise InvalidConfiguration(
                "option txnTakeover is only for a stream with the option txnId, or a batch with the option txnOwner"
            )
        return cls(
            store=options.store(),
            topic=options.text("topic"),
            txn_id=txn_id,
            txn_version=None if version is None else int(version),
            owner=owner,
            takeover=takeover,
        )


def _pattern(options: SparkOptions) -> str:
    """As a regular expression: `topicPattern` is written like a consumer's, `subscribePattern` like Kafka's."""
    regular = options.text("subscribePattern")
    if regular is not None:
        try:
            re.compile(regular)
        except re.error as error:
            raise InvalidConfiguration(f"option subscribePattern is not a regular expression: {error}") from error
        return regular
    return fnmatch.translate(options.text("topicPattern") or "")


def _assigned(options: SparkOptions) -> dict[str, frozenset[int]] | None:
    text = options.text("assign")
    if text is None:
        return None
    assigned = _json("assign", text)
    if (
        not isinstance(assigned, dict)
        or not assigned
        or not all(_are_numbers(numbers) for numbers in assigned.values())
    ):
        raise InvalidConfiguration(f'option assign must be like {{"orders": [0, 1]}}, not {text!r}')
    return {topic: frozenset(numbers) for topic, numbers in assigned.items()}


def _are_numbers(numbers: Any) -> bool:
    return (
        isinstance(numbers, list) and bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
    )


def _position(options: SparkOptions, side: str) -> Position | Positions | None:
    """Return the position to begin or to end at: by offsets or by time, for all partitions or for each."""
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    if options.text(*names) is None:
        return None
    offsets, moment, moments = map(options.text, names)
    if moment is not None:
        return _moment(names[1], moment)
    if moments is not None:
        return _by_partition(names[2], moments, lambda value: _moment(names[2], value))
    assert offsets is not None
    if offsets.lower() in ("earliest", "latest"):
        return "earliest" if offsets.lower() == "earliest" else "latest"
    return _by_partition(names[0], offsets, lambda value: _offset(names[0], value))


def _by_partition(name: str, text: str, convert: Any) -> Positions:
    topics = _json(name, text)
    if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
        raise InvalidConfiguration(f'option {name} must be like {{"orders": {{"0": 23}}}}, not {text!r}')
    positions: Positions = {}
    for topic, partitions in topics.items():
        # A topic's id is there in the offsets of a stream: they can be given as they are.
        numbers = {number: value for number, value in partitions.items() if number != "id"}
        if not all(number.isdecimal() for number in numbers):
            raise InvalidConfiguration(f"option {name}: partitions of {topic!r} are numbers, not {sorted(numbers)}")
        positions[topic] = {int(number): convert(value) for number, value in numbers.items()}
    return positions


def _offset(name: str, value: Any) -> Position:
    if value in ("earliest", "latest"):
        return "earliest" if value == "earliest" else "latest"
    if type(value) is not int or value < -2:
        raise InvalidConfiguration(
            f"option {name}: {value!r} is not an offset; use a number, earliest (-2) or latest (-1)"
        )
    return _KAFKA_POSITIONS.get(value, value)


def _moment(name: str, value: Any) -> Time:
    """Milliseconds since 1970, as in the Kafka source, or what `headwater.time` understands."""
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        return Time(int(value) * 1_000_000)
    try:
        return time(value)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"option {name}: {error}, or milliseconds since 1970") from error


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidConfiguration(f"option {name} is not JSON: {error}") from error
