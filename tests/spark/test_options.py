"""Options of the source: what they mean, and what is said when they are wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import headwater as hw
from headwater.spark.options import SOURCE_OPTIONS, SourceOptions


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"store": "events", "topic": "orders"} | options)


def test_names_are_known_whatever_their_case() -> None:
    assert parse(STARTINGOFFSETS="latest").starting == parse(startingoffsets="LATEST").starting == "latest"


def test_paths_are_the_same_for_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse().store == str(tmp_path / "events")
    assert parse(store="~/events").store == os.path.expanduser("~/events")
    assert parse(store="file:///data/my%20events").store == "/data/my events"
    assert parse(store="hw://host:6174").store == "hw://host:6174"


def test_offsets_of_a_stream_can_be_given_as_they_are() -> None:
    assert parse(startingOffsets='{"orders": {"id": "00ff", "0": 23, "1": -2}}').starting == {
        "orders": {0: 23, 1: "earliest"}
    }


def test_times_are_milliseconds_or_what_headwater_understands() -> None:
    assert parse(startingTimestamp="1500").starting == hw.Time(1_500_000_000)
    assert parse(endingTimestamp="2026-01-31T12:00:00Z").ending == hw.time("2026-01-31T12:00:00Z")


def test_patterns_are_a_consumers_or_kafkas() -> None:
    def meant(name: str, **options: str) -> bool:
        return bool(re.fullmatch(SourceOptions.parse({"store": "events"} | options).pattern, name))

    assert meant("orders.eu", topicPattern="orders.*")
    assert not meant("orders-eu", topicPattern="orders.*")
    assert meant("orders-eu", subscribePattern="orders.*")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "a"}, "give one of the options topic, topics and topicPattern: not topic and topics"),
        ({"startingOffsets": "earlier"}, "startingOffsets is not JSON"),
        ({"startingOffsets": "[1]"}, r'startingOffsets must be like {"orders": {"0": 23}}'),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, "partitions of 'orders' are numbers"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 is not an offset"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "True is not an offset"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is no time.*or milliseconds since 1970"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "give only one of the options startingOffsets, startingT",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number above 0, not '0'"),
        ({"minPartitions": "two"}, "minPartitions must be a whole number above 0, not 'two'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay must be a length of time such as 500ms, 30s or 15m, not '15'"),
        ({"columns": "a,a"}, "columns must be a list of names, each once"),
        ({"partitions": "0,x"}, "partitions must be numbers such as 0,2"),
        ({"store": ""}, "option store is missing"),
        ({"path": "elsewhere"}, "give only one of the options store, path"),
        ({"maxOffsetPerTriger": "5"}, r"unknown option maxOffsetPerTriger: did you mean maxOffsetsPerTrigger\?"),
        ({"qqq": "5"}, "unknown option qqq: there are archive, assign"),
        ({"kafka.security.protocol": "SSL"}, "is for a client of Kafka, which Headwater does not use: remove it"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=message):
        parse(**options)


def test_wrong_choices_of_topics_are_said() -> None:
    for given, message in (
        ({"assign": '{"orders": ["0"]}'}, r'assign must be like {"orders": \[0, 1\]}'),
        ({"assign": '{"orders": [0]}', "partitions": "1"}, "give only one of the options partitions and assign"),
        ({"subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"topics": ""}, "topics must be a list of names"),
    ):
        with pytest.raises(hw.InvalidConfiguration, match=message):
            SourceOptions.parse({"store": "events"} | given)


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in SOURCE_OPTIONS if f"`{name}`" not in text] == []
