"""The environment sets options by one rule; explicit arguments go over it, and it goes over presets and defaults."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.core.environment import VARIABLES, overridden
from headwater.core.options import CENTURY, Option, Range, count, options_of, seconds, size

NOUNS = {"TOPIC": hw.TopicConfig, "PRODUCER": hw.ProducerConfig, "CONSUMER": hw.ConsumerConfig}
NOUNS |= {"STEWARD": hw.StewardConfig}
PRESET = hw.Preset(
    topic=hw.TopicConfig(retention_segments=5),
    producer=hw.ProducerConfig(batch_records=5),
    consumer=hw.ConsumerConfig(max_poll_records=5),
    steward=hw.StewardConfig(interval=5.0),
)


@pytest.fixture(params=["memory", "directory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store, in memory or in a directory."""
    return "memory:" if request.param == "memory" else str(tmp_path / "store")


def said(**environment: str) -> hw.Preset:
    return overridden(hw.presets.DEFAULT, {f"HEADWATER_{name}": text for name, text in environment.items()})


# The rule.


def test_every_option_of_every_noun_has_a_variable() -> None:
    expected = [f"HEADWATER_{noun}_{field.name.upper()}" for noun, kind in NOUNS.items() for field in fields(kind)]
    assert list(VARIABLES) == expected


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_default_can_be_written_and_read_back(variable: str) -> None:
    noun, option = VARIABLES[variable]
    value = getattr(getattr(overridden(PRESET, {variable: option.written(option.default)}), noun), option.name)
    assert value == option.default
    assert type(value) is type(option.default)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("TOPIC_SYNC", "never", "never"),
        ("TOPIC_SYNC", " Never ", "never"),
        ("TOPIC_SYNC", "250ms", 0.25),
        ("TOPIC_COMPRESSION", "none", "none"),
        ("TOPIC_COMPACT", "true", True),
        ("TOPIC_COMPACT", "0", False),
        ("TOPIC_RETENTION_AGE", "none", None),
        ("TOPIC_RETENTION_AGE", "7d", 7 * 86400.0),
        ("TOPIC_RETENTION_AGE", "1.5 h", 5400.0),
        ("TOPIC_RETENTION_BYTES", "None", None),
        ("TOPIC_SEGMENT_BYTES", "1.5MiB", 3 << 19),
        ("PRODUCER_LINGER", "0.02", 0.02),
        ("PRODUCER_LINGER", "20ms", 0.02),
        ("PRODUCER_LINGER", "2min", 120.0),
        ("PRODUCER_BATCH_RECORDS", "1", 1),
        ("CONSUMER_FETCH_BYTES", "4MiB", 4 << 20),
        ("CONSUMER_FETCH_BYTES", "4 mib", 4 << 20),
        ("CONSUMER_FETCH_BYTES", "4096", 4096),
        ("CONSUMER_AUTO_ACK", "Yes", True),
        ("STEWARD_PROTECT_UNREAD", "off", False),
        ("STEWARD_TOTAL_BYTES", "1EiB", 1 << 60),
    ],
)
def test_values_are_read_by_the_type_of_their_option(variable: str, text: str, value: object) -> None:
    noun, name = variable.lower().split("_", 1)
    read = getattr(getattr(said(**{variable: text}), noun), name)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("TOPIC_SYNC", "sometimes", '"always", "never" or a number of seconds from 1ms to 1h'),
        ("TOPIC_SYNC", "0", "from 1ms to 1h"),
        ("TOPIC_SYNC", "none", "from 1ms to 1h"),
        ("TOPIC_COMPACT", "maybe", "True or False"),
        ("TOPIC_COMPACT", "2", "True or False"),
        ("TOPIC_SEGMENT_BYTES", "1", "a whole number of bytes from 4KiB to 1TiB; units are KiB, MiB"),
        ("TOPIC_SEGMENT_BYTES", "4MB", "units are KiB, MiB"),
        ("TOPIC_SEGMENT_BYTES", "none", "from 4KiB to 1TiB"),
        ("TOPIC_SEGMENT_BYTES", "4096.5", "a whole number"),
        ("TOPIC_SEGMENT_BYTES", "9" * 5000, "from 4KiB to 1TiB"),
        ("PRODUCER_LINGER", "-1", "from 0 to 1h; units are ms, s, min, h, d"),
        ("PRODUCER_LINGER", "nan", "from 0 to 1h"),
        ("PRODUCER_LINGER", "inf", "from 0 to 1h"),
        ("PRODUCER_LINGER", "1e9", "from 0 to 1h"),
        ("PRODUCER_LINGER", "20 parsecs", "from 0 to 1h"),
        ("PRODUCER_LINGER", "٣", "from 0 to 1h"),
        ("PRODUCER_BATCH_RECORDS", "1KiB", "a whole number from 1 to 10000000"),
        ("PRODUCER_BATCH_RECORDS", "1_000", "a whole number from 1 to 10000000"),
        ("STEWARD_TOTAL_BYTES", "\udcff", "or None"),
    ],
)
def test_an_error_names_the_variable_its_value_and_what_is_allowed(variable: str, text: str, allowed: str) -> None:
    with pytest.raises(hw.InvalidConfiguration) as caught:
        said(**{variable: text})
    assert str(caught.value).startswith(f"HEADWATER_{variable}={text!r:.60}: must be ")
    assert allowed in str(caught.value)


@given(st.sampled_from([size(0, 1 << 60), seconds(0, CENTURY), count(0, 1 << 60)]), st.data())
def test_what_is_written_is_read_back(limits: Range, data: st.DataObject) -> None:
    value: float = data.draw(st.integers(0, 1 << 60))
    if not limits.whole:
        value = data.draw(st.integers(0, int(CENTURY) * 1000)) / 1000
    assert limits.parse(limits.written(value)) == value


@given(st.sampled_from([option for kind in NOUNS.values() for option in options_of(kind)]), st.text(max_size=20))
def test_any_text_is_a_value_that_is_allowed_or_an_error(option: Option, text: str) -> None:
    try:
        value = option.parse(text)
    except hw.InvalidConfiguration:
        return
    assert option.allows(value)


# Names.


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("HEADWATER_TOPIC_SINC", "HEADWATER_TOPIC_SYNC"),
        ("HEADWATER_PRODUCER_LINGERS", "HEADWATER_PRODUCER_LINGER"),
        ("HEADWATER_PRODUCERS_LINGER", "HEADWATER_PRODUCER_LINGER"),
        ("HEADWATER_CONSUMER_FETCHBYTES", "HEADWATER_CONSUMER_FETCH_BYTES"),
        ("HEADWATER_LINGER", "HEADWATER_PRODUCER_LINGER"),
        ("HEADWATER_SYNC", "HEADWATER_TOPIC_SYNC"),
        ("HEADWATER_topic_sync", "HEADWATER_TOPIC_SYNC"),
        ("HEADWATER_STEWARD_X", "HEADWATER_STEWARD_"),
    ],
)
def test_a_name_that_is_none_of_ours_but_looks_like_it_is_refused(name: str, nearest: str) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=f"no option for {name}; the nearest variable is {nearest}"):
        overridden(hw.presets.DEFAULT, {name: "1"})


@pytest.mark.parametrize(
    "name", ["HEADWATER_STORE", "HEADWATER_HOME", "HEADWATER_LOG_MIB", "HEADWATER_TOPIC", "HEADWATER", "LINGER", "PATH"]
)
def test_other_variables_are_left_alone(name: str) -> None:
    assert overridden(PRESET, {name: "anything"}) is not None
    assert overridden(PRESET, {name: "anything"}) == PRESET


def test_a_variable_that_is_set_to_nothing_is_not_set() -> None:
    assert overridden(PRESET, {"HEADWATER_TOPIC_SYNC": "", "HEADWATER_PRODUCER_LINGER": " "}) == PRESET


# Precedence.


@pytest.mark.parametrize(
    ("noun", "option"),
    [
        ("topic", "retention_segments"),
        ("producer", "batch_records"),
        ("consumer", "max_poll_records"),
        ("steward", "interval"),
    ],
)
def test_explicit_goes_over_environment_over_preset_over_default(
    where: str, noun: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(store: hw.Store, **explicit: Any) -> Any:
        if noun == "topic":
            store.create_topic("made", **explicit)
            config = store.describe_topic("made").config
            store.delete_topic("made")
            return getattr(config, option)
        about = () if noun == "steward" else ("there",)
        return getattr(getattr(store, noun)(*about, **explicit).config, option)

    kind = NOUNS[noun.upper()]
    default = getattr(kind(), option)
    with hw.open(where) as store:
        store.create_topic("there")
        assert made(store) == default
    with hw.open(where, preset=PRESET) as store:
        store.create_topic("there", exist_ok=True)
        assert made(store) == 5
    monkeypatch.setenv(f"HEADWATER_{noun}_{option}".upper(), "6")
    with hw.open(where, preset=PRESET) as store:
        store.create_topic("there", exist_ok=True)
        assert made(store) == 6
        assert made(store, **{option: 7}) == 7
        assert made(store, config=kind(**{option: 8})) == 8
        assert made(store, config=kind()) == default
        assert made(store, config=kind(**{option: 8}), **{option: 9}) == 9
        monkeypatch.setenv(f"HEADWATER_{noun}_{option}".upper(), "1")
        assert made(store) == 6, "the environment is read when the store is opened"


def test_topics_that_are_there_keep_what_they_were_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hw.open(tmp_path) as store:
        before = store.create_topic("old", lock_timeout=3.0).info
    monkeypatch.setenv("HEADWATER_TOPIC_SYNC", "never")
    monkeypatch.setenv("HEADWATER_TOPIC_LOCK_TIMEOUT", "1s")
    with hw.open(tmp_path, preset=hw.presets.COMPRESSION) as store:
        assert store.create_topic("old", exist_ok=True).info == before
        assert store.topic("old").partition(0).config.sync == "always"
        assert store.topic("old").partition(0).config.lock_timeout == 3.0
        store.alter_topic("old", retention_age=60.0)
        assert store.create_topic("new").info.config.sync == "never"
    monkeypatch.undo()
    with hw.open(tmp_path) as store:
        changed = store.describe_topic("old").config
        assert (changed.sync, changed.compression, changed.lock_timeout) == ("always", "none", 3.0)
        new = store.describe_topic("new").config
        assert (new.sync, new.compression, new.lock_timeout) == ("never", "zstd", 1.0)


def test_a_mistake_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_TOPIC_SYNC", "perhaps")
    with pytest.raises(hw.InvalidConfiguration, match="HEADWATER_TOPIC_SYNC='perhaps'"):
        hw.open(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_process_takes_its_own_environment(tmp_path: Path) -> None:
    program = """
import headwater as hw
with hw.open("store") as store:
    print(store.create_topic("t").info.config.sync, store.producer("t").config.linger)
"""
    environment = {"HEADWATER_TOPIC_SYNC": "2s", "HEADWATER_PRODUCER_LINGER": "20ms"}
    environment["PYTHONPATH"] = str(Path(hw.__file__).parent.parent)
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "2.0 0.02\n"
