"""The history of a store: what a steward notes of it, and how that is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.names import HISTORY
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import encode
from headwater.streams import history
from headwater.streams.history import HistoryWriter, Sample, Samples, entries
from headwater.streams.survey import Survey
from headwater.testing import ManualClock
from tests.support.backends import Handles, OpenStore
from tests.support.patience import wait_until

SECOND = 10**9
BEGINNING = 1_800_000_000 * SECOND


def write(store: hw.Store, topic: str, count: int) -> None:
    with store.producer(topic) as out:
        for _ in range(count):
            out.send(b"x" * 10)


def samples(store: hw.Store, since_ns: int = 0) -> list[Sample]:
    return [entry for _, entry in entries(store, since_ns) if isinstance(entry, Sample)]


def test_what_was_noted_is_read_back(handle: Handles, clock: ManualClock) -> None:
    store = handle()
    writer = HistoryWriter(store, 15.0)
    expected = []
    store.create_topic("a", 2)
    for number in range(60):  # a quarter of an hour: some samples are whole, most are differences
        if number == 10:
            store.create_topic("b")
        if number == 45:
            store.delete_topic("b")
        if number % 3 == 0:
            write(store, "a", 5)
        if number == 30:
            with store.consumer("a", group="g") as inbox:
                for record in inbox.poll(20, timeout=300):
                    inbox.ack(record)
        clock.advance(15)
        writer.note(clock.now_ns())
        expected.append(Sample.of(Survey.of(store, clock.now_ns())))
    taken = samples(store)
    assert taken == expected
    assert taken[5].topics["a"][0] == 10
    assert "b" in taken[15].topics
    assert "b" not in taken[-1].topics
    assert taken[-1].lags["g"]["a"] == taken[-1].topics["a"][0] - 20

    # Twice in a quarter of an hour it is written whole: what has not changed is not written again.
    written = [json.loads(record.value) for record in store.topic(HISTORY).partition(0).records()]
    assert [number for number, entry in enumerate(written) if entry.get("whole")] == [0, 40]

    # From the middle on it is the same: there is a whole sample before every difference that is read.
    assert samples(store, expected[40].time_ns) == expected[40:]


def test_nothing_counts_on_a_sample_that_could_not_be_written(handle: Handles, clock: ManualClock) -> None:
    store, now_ns = handle(), clock.now_ns()
    partition = store.internal_topic(HISTORY).partition(0)
    noting = Samples()
    first = Sample(now_ns - 3 * SECOND, {"a": (1, 10, 100), "b": (1, 10, 100)})
    lost = Sample(now_ns - 2 * SECOND, {"a": (2, 20, 200), "b": (2, 20, 200)})
    last = Sample(now_ns - SECOND, {"a": (3, 30, 300), "b": (2, 20, 200)})
    for sample in (first, lost, last):
        frame = noting.frame(sample)
        if sample is not lost:
            partition.append(frame)
            noting.written(sample)
    assert samples(store) == [first, last]


def test_two_stewards_do_not_note_everything_twice(handle: Handles, clock: ManualClock) -> None:
    store = handle()
    writers = [HistoryWriter(store, 15.0) for _ in range(3)]
    for _ in range(4):
        clock.advance(15)
        for writer in writers:
            writer.note(clock.now_ns())
            clock.advance(0.5)
    assert len(samples(store)) == 4


@pytest.mark.embedded("whoever stewards through a broker leaves the notes to the broker's own steward")
def test_a_steward_in_the_background_notes_what_it_sees_and_does(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("a", retention_bytes=0)
    write(store, "a", 100)
    store.topic("a").partition(0).roll()
    with store.steward(history=0.1, interval=0.1):
        wait_until(lambda: len(samples(store)) >= 3)
    assert samples(store)[0].topics["a"][0] == 100
    (passed,) = [entry for _, entry in entries(store, 0) if isinstance(entry, dict)]
    assert (passed["kind"], passed["segments"]) == ("pass", 1)
    assert [(cleaned["topic"], cleaned["partition"]) for cleaned in passed["partitions"]] == [("a", 0)]


def test_history_can_be_left_out(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        topic = store.create_topic("a", retention_bytes=0)
        write(store, "a", 10)
        topic.partition(0).roll()
        with store.steward(history=None, interval=0.1):
            wait_until(lambda: topic.bounds()[0].start >= 10)
        assert store.topic_names() == ["a"]


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_OPTIONS", {"segment_bytes": 4096, "retention_bytes": 8192, "sync": "never"})
    clock = ManualClock()
    with DirectoryStore(tmp_path / "store", clock=clock) as store:
        for number in range(3):
            store.create_topic(f"topic-{number}")
        writer = HistoryWriter(store, 600.0)
        for _ in range(60):
            clock.advance(700)  # so long that each is whole
            writer.note(clock.now_ns())
            store.steward().run_once()
        assert store.topic(HISTORY).statistics().bytes < 16 * 1024
        assert 10 < len(samples(store)) < 60


def test_damage_and_strangers_are_passed_over(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        store.create_topic("a")
        writer = HistoryWriter(store, 1.0)
        writer.note(BEGINNING)
        log = store.topic(HISTORY).partition(0)
        for content in (b"", b"{", b"[]", b'{"kind": "sample", "topics": 5}', b'{"kind": "sample"}', b"null"):
            log.append(encode([content]))
        assert len(samples(store)) == 1


def test_a_topic_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            store.create_topic(name)
            write(store, name, 3)
        (tmp_path / "store" / "b" / "topic.json").write_text("{")
        survey = Survey.of(store, BEGINNING)
        assert list(survey.topics) == ["a", "c"]
        assert list(survey.problems) == ["topic b"]
