"""Processing: each record is handled, retried or put aside, and none is tried for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import ConsumedRecord, DeadLetterRefused, InvalidConfiguration, Record, Store, UnknownTopic
from headwater.embedded.directory_store import DirectoryStore
from tests.support.backends import OpenStore
from tests.support.patience import PACES, has_finished


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store with a topic `in` of ten records, `0` to `9`, and an empty one for dead letters."""
    store = open_store()
    store.create_topic("in")
    store.create_topic("dead")
    with store.producer("in") as out:
        for number in range(10):
            out.send(b"%d" % number, b"key", {"trace": b"t%d" % number})
    return store


class Worker:
    """A handler that notes what it gets, fails for some, and asks to stop after the record with the value `last`."""

    def __init__(self, last: bytes = b"9", bad: dict[bytes, int] | None = None) -> None:
        self.stop = threading.Event()
        self.seen: list[bytes] = []
        self._last = last
        self._bad = bad or {}

    def __call__(self, record: ConsumedRecord) -> None:
        self.seen.append(record.value)
        if record.value == self._last:
            self.stop.set()
        if self._bad.get(record.value, 0) > 0:
            self._bad[record.value] -= 1
            raise ValueError(f"{record.value!r} is bad")


def values(records: list[Record]) -> list[Any]:
    return [record.value for record in records]


def position(store: Store, group: str = "g") -> list[int]:
    return [position.offset for position in store.group(group).committed().values()]


ALWAYS = 1 << 30
EVERYTHING = [b"%d" % number for number in range(10)]


# Success.


def test_every_record_is_handled_and_acknowledged(store: Store) -> None:
    worker = Worker()
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(worker, stop=worker.stop)
        assert position(store) == [10]
    assert worker.seen == EVERYTHING
    assert (summary.handled, summary.retries, summary.batches, summary.signal) == (10, 0, 1, None)
    assert (summary.dead_letters, summary.given_up) == (0, 0)


def test_batches_are_handled_as_lists(store: Store) -> None:
    stop = threading.Event()
    seen: list[list[Any]] = []

    def handle(records: list[ConsumedRecord]) -> None:
        seen.append([record.value for record in records])
        if records[-1].value == b"9":
            stop.set()

    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(handle, batch=True, batch_size=4, stop=stop)
    assert seen == [EVERYTHING[:4], EVERYTHING[4:8], EVERYTHING[8:]]
    assert (summary.handled, summary.batches) == (10, 3)
    assert position(store) == [10]


def test_batches_are_told_of_after_their_commit(store: Store) -> None:
    worker = Worker()
    told: list[tuple[int, list[int]]] = []
    with store.consumer("in", group="g") as inbox:
        inbox.process(
            worker,
            batch_size=5,
            on_batch=lambda records: told.append((len(records), position(store))),
            stop=worker.stop,
        )
    assert told == [(5, [5]), (5, [10])]


def test_without_a_group_it_works_as_well(store: Store) -> None:
    worker = Worker()
    with store.consumer("in") as inbox:
        assert inbox.process(worker, stop=worker.stop).handled == 10


def test_a_handler_that_acknowledges_decides_how_far_the_group_is(store: Store) -> None:
    later: list[ConsumedRecord] = []
    stop = threading.Event()
    with store.consumer("in", group="g") as inbox:

        def handle(record: ConsumedRecord) -> None:
            later.append(record)
            if record.offset < 3 or record.offset == 5:
                inbox.ack(record)
            if record.offset == 6:
                stop.set()

        assert inbox.process(handle, auto_ack=False, stop=stop).handled == 7
        assert position(store) == [3]
        assert [record.offset for record in inbox.poll()] == [7, 8, 9]  # what it was not given comes next
        for record in later[3:]:
            inbox.ack(record)
        inbox.commit()
        assert position(store) == [7]  # what it had acknowledged before its turn was not forgotten
    with store.consumer("in", group="g") as inbox:
        assert [record.offset for record in inbox.poll()] == [7, 8, 9]


@pytest.mark.parametrize("batch", [False, True])
def test_what_a_handler_never_acknowledges_comes_again(store: Store, batch: bool) -> None:
    stop = threading.Event()
    with store.consumer("in", group="g") as inbox:
        inbox.process(lambda _: stop.set(), batch=batch, batch_size=10, auto_ack=False, stop=stop)
    assert position(store) == [0]
    with store.consumer("in", group="g") as inbox:
        assert len(inbox.poll()) == 10


def test_what_fails_for_good_is_acknowledged_for_the_handler(store: Store) -> None:
    stop = threading.Event()
    with store.consumer("in", group="g") as inbox:

        def handle(record: ConsumedRecord) -> None:
            if record.offset == 4:
                raise ValueError("bad")
            inbox.ack(record)
            if record.offset == 9:
                stop.set()

        inbox.process(handle, auto_ack=False, retries=0, dead_letter="dead", stop=stop)
        assert position(store) == [10]
    assert values(store.topic("dead").recent()) == [b"4"]


def test_the_wait_of_an_idle_poll_can_be_chosen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, waits = Worker(), list[float]()
    with store.consumer("in", group="g") as inbox:
        poll = inbox.poll

        def noting(max_records: int | None = None, timeout: float = 0.0) -> list[ConsumedRecord]:
            waits.append(timeout)
            return poll(max_records, timeout)

        monkeypatch.setattr(inbox, "poll", noting)
        inbox.process(worker, poll_interval=0.01, stop=worker.stop)
    assert waits == [0.01]


# Failure.


def test_a_failure_is_tried_again(store: Store) -> None:
    worker = Worker(bad={b"3": 2})
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(worker, retries=2, retry_delay=0, stop=worker.stop)
    assert worker.seen == [b"0", b"1", b"2", b"3", b"3", b"3", *EVERYTHING[4:]]
    assert (summary.handled, summary.retries) == (10, 2)


def test_there_is_a_pause_before_it_is_tried_again(store: Store) -> None:
    worker = Worker(bad={b"3": 2})
    begun = time.monotonic()
    with store.consumer("in", group="g", refresh_interval=0.01) as inbox:
        inbox.process(worker, retry_delay=0.1, stop=worker.stop)
    assert time.monotonic() - begun >= 0.2


def test_what_fails_for_good_goes_to_the_dead_letters(store: Store) -> None:
    worker = Worker(bad={b"3": ALWAYS, b"5": ALWAYS})
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(worker, retries=1, retry_delay=0, dead_letter="dead", stop=worker.stop)
    assert (summary.handled, summary.dead_letters, summary.retries) == (8, 2, 2)
    assert position(store) == [10]
    dead = store.topic("dead").recent()
    assert values(dead) == [b"3", b"5"]
    assert dead[0].key == b"key"
    assert dict(dead[0].headers) == {
        "trace": b"t3",
        "dead-letter-error": b"b'3' is bad",
        "dead-letter-error-type": b"builtins.ValueError",
        "dead-letter-topic": b"in",
        "dead-letter-partition": b"0",
        "dead-letter-offset": b"3",
        "dead-letter-attempts": b"2",
    }


@pytest.mark.parametrize("room", [0, 30, 90, 170, 200, 1000])
def test_what_does_not_fit_into_the_headers_gives_way(store: Store, room: int) -> None:
    store.create_topic("small", max_headers_bytes=len("trace") + len(b"t3") + room)

    def fail(record: ConsumedRecord) -> None:
        if record.value == b"3":
            stop.set()
            raise ValueError("ü" * 5000)

    stop = threading.Event()
    with store.consumer("in", group="g") as inbox:
        assert inbox.process(fail, retries=0, dead_letter="small", stop=stop).dead_letters == 1
    (dead,) = store.topic("small").recent()
    headers = dict(dead.headers)
    assert (dead.value, dead.key, headers["trace"]) == (b"3", b"key", b"t3")
    assert ("dead-letter-offset" in headers) == (room >= 90)
    assert ("dead-letter-error" in headers) == (room >= 170)
    text = headers.get("dead-letter-error", b"").decode()
    assert text == "ü" * len(text)
    if "dead-letter-error" in headers:
        assert room - 1 <= sum(len(name) + len(value) for name, value in headers.items()) - len("tracet3") <= room


def test_a_dead_letter_that_is_read_tells_of_its_last_failure(store: Store) -> None:
    store.create_topic("deader")
    for topic, dead_letter, attempts in (("in", "dead", 1), ("dead", "deader", 2)):
        worker = Worker(last=b"0", bad={b"0": ALWAYS})
        with store.consumer(topic, group=topic) as inbox:
            inbox.process(worker, retries=attempts - 1, retry_delay=0, dead_letter=dead_letter, stop=worker.stop)
    (dead,) = store.topic("deader").recent()
    assert dict(dead.headers)["dead-letter-topic"] == b"dead"
    assert dict(dead.headers)["dead-letter-attempts"] == b"2"
    assert dict(dead.headers)["trace"] == b"t0"


@pytest.mark.parametrize(
    "limits",
    [
        {"max_value_bytes": 0},
        {"max_key_bytes": 1},
        {"max_headers_bytes": 2},
        {"schema": pa.schema([("x", pa.int64())])},
    ],
    ids=["value", "key", "headers", "schema"],
)
@pytest.mark.parametrize("batch", [False, True])
def test_what_the_dead_letter_topic_cannot_take_ends_it_and_is_not_done(
    store: Store, limits: dict[str, Any], batch: bool
) -> None:
    store.create_topic("strict", **limits)

    def fail(work: ConsumedRecord | list[ConsumedRecord]) -> None:
        record = work[0] if isinstance(work, list) else work
        if record.offset == 4:
            raise ValueError("bad")

    with store.consumer("in", group="g") as inbox:
        for _ in range(2):
            with pytest.raises(DeadLetterRefused, match=r"in/0 offset 4 .*'strict' cannot take it") as caught:
                inbox.process(fail, batch=batch, batch_size=2, retries=0, dead_letter="strict")
            assert isinstance(caught.value.__cause__, ValueError)
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 0, 4)
            assert position(store) == [4]
        assert inbox.poll(1)[0].offset == 4
    assert store.topic("strict").recent() == []


def test_a_batch_fails_as_a_whole(store: Store) -> None:
    stop = threading.Event()

    def handle(records: list[ConsumedRecord]) -> None:
        if records[0].value == b"8":
            stop.set()
        if records[0].value == b"4":
            raise ValueError("bad")

    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(handle, batch=True, batch_size=4, retries=0, dead_letter="dead", stop=stop)
    assert (summary.handled, summary.dead_letters) == (6, 4)
    assert values(store.topic("dead").recent()) == EVERYTHING[4:8]


def test_what_fails_for_good_can_go_to_a_callback(store: Store) -> None:
    worker = Worker(bad={b"3": ALWAYS})
    told: list[tuple[int, str]] = []
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(
            worker,
            retries=0,
            on_error=lambda record, error: told.append((record.offset, str(error))),
            stop=worker.stop,
        )
    assert told == [(3, "b'3' is bad")]
    assert (summary.handled, summary.given_up, summary.dead_letters) == (9, 1, 0)
    assert position(store) == [10]


def test_the_callback_is_told_of_dead_letters_too(store: Store) -> None:
    worker = Worker(bad={b"3": ALWAYS})
    told: list[int] = []
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(
            worker,
            retries=0,
            dead_letter="dead",
            on_error=lambda record, _: told.append(record.offset),
            stop=worker.stop,
        )
    assert (told, summary.dead_letters, summary.given_up) == ([3], 1, 0)


def test_with_nowhere_to_go_the_error_is_raised_and_the_record_is_not_done(store: Store) -> None:
    worker = Worker(bad={b"3": 2})
    with store.consumer("in", group="g") as inbox:
        with pytest.raises(ValueError, match="b'3' is bad"):
            inbox.process(worker, retries=1, retry_delay=0, stop=worker.stop)
        assert position(store) == [3]
        assert worker.seen == [b"0", b"1", b"2", b"3", b"3"]
        assert inbox.process(worker, stop=worker.stop).handled == 7, "it goes on where it failed"
    assert worker.seen[5:] == EVERYTHING[3:]
    assert position(store) == [10]


def test_an_error_of_the_callback_leaves_the_record_undone(store: Store) -> None:
    worker = Worker(bad={b"3": ALWAYS})

    def fail(_: ConsumedRecord, error: Exception) -> None:
        raise RuntimeError("give up") from error

    with store.consumer("in", group="g") as inbox, pytest.raises(RuntimeError, match="give up"):
        inbox.process(worker, retries=0, on_error=fail, stop=worker.stop)
    assert position(store) == [3]


def test_typed_records_have_typed_dead_letters(open_store: OpenStore) -> None:
    store = open_store()
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    store.create_topic("in", schema=schema)
    store.create_topic("dead", schema=schema)
    with store.producer("in") as out:
        out.send({"a": 1, "b": "x"})
    stop = threading.Event()

    def fail(_: ConsumedRecord) -> None:
        stop.set()
        raise ValueError("bad")

    with store.consumer("in", group="g") as inbox:
        assert inbox.process(fail, retries=0, dead_letter="dead", stop=stop).dead_letters == 1
    assert store.topic("dead").scan(columns=["a", "b"]).read_all().to_pylist() == [{"a": 1, "b": "x"}]


# Stopping.


def test_what_was_taken_and_not_handled_comes_again(store: Store) -> None:
    first, second = Worker(last=b"4"), Worker()
    with store.consumer("in", group="g") as inbox:
        assert inbox.process(first, stop=first.stop).handled == 5
        assert position(store) == [5]
        inbox.process(second, stop=second.stop)
    assert (first.seen, second.seen) == (EVERYTHING[:5], EVERYTHING[5:])
    assert position(store) == [10]


def test_stopping_does_not_wait_for_the_next_attempt(store: Store) -> None:
    worker = Worker(last=b"3", bad={b"3": ALWAYS})
    begun = time.monotonic()
    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(worker, retry_delay=1000, dead_letter="dead", stop=worker.stop)
    assert time.monotonic() - begun < 1000 / 2
    assert (summary.handled, summary.dead_letters, position(store)) == (3, 0, [3])


def test_in_another_thread_the_event_ends_it(store: Store) -> None:
    worker = Worker(last=b"none")
    with store.consumer("in", group="g") as inbox:
        thread = threading.Thread(target=inbox.process, args=(worker,), kwargs={"stop": worker.stop})
        thread.start()
        while len(worker.seen) < 10:
            time.sleep(0.01)
        worker.stop.set()
        assert has_finished(thread, 60)
    assert position(store) == [10]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_record_at_hand(store: Store, number: signal.Signals) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(record: ConsumedRecord) -> None:
        if record.value == b"4":
            signal.raise_signal(number)

    with store.consumer("in", group="g") as inbox:
        summary = inbox.process(handle)
    assert (summary.handled, summary.signal) == (5, number)
    assert position(store) == [5]
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_second_signal_acts_as_ever(store: Store) -> None:
    def handle(record: ConsumedRecord) -> None:
        if record.value == b"4":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with store.consumer("in", group="g") as inbox, pytest.raises(KeyboardInterrupt):
        inbox.process(handle)
    assert position(store) == [4]


PROCESS = """
import sys, time
import headwater as hw
with hw.open(sys.argv[1]) as store, store.consumer("in", group="g") as inbox:
    def handle(record):
        print(record.offset, flush=True)
        time.sleep(0.05)
    summary = inbox.process(handle)
    print("handled", summary.handled, summary.signal, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_well_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with DirectoryStore(tmp_path / "store") as store:
        store.create_topic("in")
        with store.producer("in") as out:
            for _ in range(2000):
                out.send(b"x")
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
            child.send_signal(number)
            lines = child.communicate(timeout=300)[0].splitlines()
        assert child.returncode == 0
        handled = 3 + len(lines) - 1
        assert lines[-1] == f"handled {handled} {int(number)}"
        assert position(store) == [handled]


# Belonging to a group.


def test_a_slow_handler_stays_a_member_and_lets_partitions_go(open_store: OpenStore) -> None:
    """With one member in the middle of a long batch, another one joins: each record is handled by one of them."""
    store = open_store()

    def handled_at(pace: int) -> list[bytes]:
        topic = f"in{pace}"
        store.create_topic(topic, partitions=2)
        with store.producer(topic) as out:
            for number in range(100):
                out.send(b"%d" % number, partition=number % 2)
        handled: list[bytes] = []
        stop = threading.Event()

        def handle(record: ConsumedRecord) -> None:
            handled.append(record.value)
            time.sleep(0.02 * pace)
            if len(set(handled)) == 100:
                stop.set()

        def work() -> None:
            group = f"g{pace}"
            with store.consumer(topic, group=group, max_poll_interval=0.5 * pace, refresh_interval=0.05) as inbox:
                inbox.process(handle, stop=stop)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        for thread in threads:
            assert has_finished(thread, 60 + 4 * pace)
        assert [position.offset for position in store.group(f"g{pace}").committed().values()] == [50, 50]
        return sorted(handled, key=int)

    assert any(handled_at(pace) == [b"%d" % number for number in range(100)] for pace in PACES)


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"retries": -1}, "retries must be"),
        ({"retries": 0.5}, "retries must be"),
        ({"retry_delay": -1}, "retry_delay must be"),
        ({"retry_delay": "1"}, "retry_delay must be"),
        ({"auto_ack": 0}, "auto_ack must be"),
        ({"poll_interval": -1}, "poll_interval must be"),
        ({"poll_interval": True}, "poll_interval must be"),
        ({"dead_letter": "in"}, "would come again"),
    ],
)
def test_wrong_options_are_refused(store: Store, options: dict[str, Any], message: str) -> None:
    with store.consumer("in", group="g") as inbox, pytest.raises(InvalidConfiguration, match=message):
        inbox.process(Worker(), **options)


def test_dead_letters_that_a_pattern_matches_are_refused(store: Store) -> None:
    with store.consumer("*", group="g") as inbox, pytest.raises(InvalidConfiguration, match="would come again"):
        inbox.process(Worker(), dead_letter="dead")


def test_the_topic_of_dead_letters_must_be_there(store: Store) -> None:
    with store.consumer("in", group="g") as inbox, pytest.raises(UnknownTopic):
        inbox.process(Worker(), dead_letter="nowhere")


def test_acknowledging_by_itself_is_not_mixed_with_processing(store: Store) -> None:
    with store.consumer("in", group="g", auto_ack=True) as inbox:
        with pytest.raises(InvalidConfiguration, match="auto_ack"):
            inbox.process(Worker())
        inbox.poll()


def test_a_dead_letter_is_durable_before_its_record_is_acknowledged(store: Store) -> None:
    store.create_topic("letters", sync="never")  # nobody else syncs it
    worker = Worker(last=b"1", bad={b"0": ALWAYS, b"1": ALWAYS})
    seen: list[tuple[int, list[int]]] = []

    def told(_: ConsumedRecord, __: Exception) -> None:
        seen.append((store.topic("letters").bounds()[0].durable_end, position(store)))

    with store.consumer("in", group="g") as inbox:
        inbox.process(worker, dead_letter="letters", on_error=told, retries=0, batch_size=1, stop=worker.stop)
    assert seen == [(1, [0]), (2, [1])]
    assert position(store) == [2]
