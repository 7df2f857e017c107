"""A store behind a broker: how it is opened, and what it does when the broker is away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater import BrokerUnavailable, ClientConfig, InvalidConfiguration
from headwater.client.credentials import Credentials
from headwater.core.address import parse_store
from tests.support.patience import at_some_pace
from tests.support.ports import free_port
from tests.support.served import Served

SOON = ClientConfig(timeout=1.0, attempt_timeout=0.3)
"""Gives up early, for brokers that never come."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "store") as served:
        yield served


# Opening.


def test_opening_asks_nobody_and_any_address_of_a_list_will_do(served: Served) -> None:
    nobody = free_port()
    with hw.open(f"hw://127.0.0.1:{nobody},{served.address.removeprefix('hw://')}") as store:
        store.create_topic("orders")
        assert store.topics() == ["orders"]
        assert f"127.0.0.1:{nobody}" in str(store)


@pytest.mark.parametrize("where", ["hw://", "hw://a b", "hw://host:70000", "hw://host,"])
def test_addresses_that_are_none_are_refused(where: str) -> None:
    with pytest.raises(InvalidConfiguration):
        hw.open(where)


def test_credentials_are_for_brokers_and_complete(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="token is for brokers"):
        hw.open(tmp_path / "store", token="secret")
    with pytest.raises(InvalidConfiguration, match="client is for brokers"):
        hw.open("memory:", client=ClientConfig())
    with pytest.raises(InvalidConfiguration, match="unknown options"):
        hw.open("hw://localhost", password="secret")
    with pytest.raises(InvalidConfiguration, match="belong together"):
        hw.open("hw://localhost", tls_certificate="cert.pem")
    with pytest.raises(InvalidConfiguration, match="only over TLS"):
        hw.open("hw://example.com", token="secret")
    with pytest.raises(InvalidConfiguration, match=r"ca\.pem cannot be read"):
        hw.open("hw://localhost", tls_ca=str(tmp_path / "ca.pem")).topics()


def test_a_token_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with hw.open(f"hw://127.0.0.1:{free_port()}", token="S3CRET", client=SOON) as store:
        with pytest.raises(BrokerUnavailable) as raised:
            store.topics()
        shown = f"{store} {store!r} {vars(store)} {raised.value} {caplog.text} {Credentials(token='S3CRET')!r}"
    assert "S3CRET" not in shown
    assert Credentials(token="S3CRET").metadata == (("authorization", "Bearer S3CRET"),)


def test_the_environment_says_how_to_talk_to_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CLIENT_TIMEOUT", "300ms")
    monkeypatch.setenv("HEADWATER_CLIENT_TOKEN", "secret")
    with hw.open(f"hw://127.0.0.1:{free_port()}") as store, pytest.raises(BrokerUnavailable):
        store.topics()
    monkeypatch.setenv("HEADWATER_CLIENT_TLS", "perhaps")
    with pytest.raises(InvalidConfiguration, match="HEADWATER_CLIENT_TLS"):
        hw.open("hw://localhost")
    monkeypatch.setenv("HEADWATER_CLIENT_TIMEOUT", "long")
    monkeypatch.setenv("HEADWATER_CLIENT_TLS", "")
    with pytest.raises(InvalidConfiguration, match="HEADWATER_CLIENT_TIMEOUT"):
        hw.open("hw://localhost")


def test_without_grpc_only_brokers_are_out_of_reach(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["grpc"] = None
import headwater as hw
hw.open(sys.argv[1]).create_topic("orders")
assert not any(name.startswith(("google.protobuf", "headwater.client")) for name in sys.modules)
try:
    hw.open("hw://localhost")
except hw.InvalidConfiguration as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert "pip install 'headwater[broker]'" in done.stdout


# A broker that is away.


def test_calls_outlast_a_restart(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    served.stop()
    restart = threading.Timer(0.7, served.start)
    restart.start()
    assert store.topics() == ["orders"]
    restart.join()


@pytest.mark.parametrize("again", [False, True])
def test_a_consumer_closes_though_the_broker_was_given_another_directory(
    served: Served, tmp_path: Path, again: bool
) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"1")
    consumer = store.consumer("orders", group="billing")
    assert [record.value for record in consumer.poll(timeout=300)] == [b"1"]
    served.stop()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    served.start()
    if again:
        served.store.create_topic("orders")
    consumer.close()  # there is nothing to leave any more
    assert served.store.group_names() == []


def test_a_broker_that_stays_away_is_named(served: Served) -> None:
    def named(pace: int) -> None:
        served.network.go_on()
        served.store.create_topic(topic := f"orders{pace}")
        client = ClientConfig(timeout=SOON.timeout * pace, attempt_timeout=SOON.attempt_timeout * pace)
        store = served.connect(client)
        inbox = store.consumer(topic)
        assert inbox.poll() == []
        out = store.producer(topic, linger=0)
        served.network.cut(refuse=True)
        begun = time.monotonic()
        receipt = out.send(b"x")
        with pytest.raises(BrokerUnavailable, match="not known"):
            receipt.wait(300)
        with pytest.raises(BrokerUnavailable):
            out.flush()
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
            store.topics()
        with pytest.raises(BrokerUnavailable):
            next(iter(inbox))
        assert time.monotonic() - begun > client.timeout
        served.network.go_on()
        assert topic in store.topics()
        assert out.send(b"y").wait(300) >= 0
        received: list[bytes] = []
        while b"y" not in received:
            received += [record.value for record in inbox.poll(timeout=1)]

    at_some_pace(named, BrokerUnavailable)


def test_a_connection_that_says_nothing_any_more_is_given_up(served: Served) -> None:
    store = served.connect(ClientConfig(timeout=300, attempt_timeout=0.5, fetch_wait=0.2))
    store.create_topic("orders")
    inbox = store.consumer("orders")
    out = store.producer("orders", linger=0)
    assert out.send(b"1").wait(300) == 0
    assert [record.value for record in inbox.poll(timeout=300)] == [b"1"]
    served.network.stall()
    receipt = out.send(b"2")
    time.sleep(1)
    served.network.cut()  # the other end never hears of it, and what was held up is lost
    served.network.go_on()
    assert receipt.wait(300) == 1
    received: list[bytes] = []
    while not received:
        received = [record.value for record in inbox.poll(timeout=1)]
    assert received == [b"2"]
    assert [record.value for record in store.topic("orders").partition(0).records()] == [b"1", b"2"]


def test_errors_are_those_of_the_store(served: Served) -> None:
    store = served.connect()
    with pytest.raises(hw.UnknownTopic, match="orders") as unknown:
        store.topic("orders")
    assert unknown.value.name == "orders"
    store.create_topic("orders")
    with pytest.raises(hw.TopicExists):
        store.create_topic("orders")
    with pytest.raises(hw.OffsetOutOfRange) as beyond:
        list(store.topic("orders").partition(0).records(5))
    assert (beyond.value.offset, beyond.value.end) == (5, 0)
    store.close()
    with pytest.raises(hw.StoreClosed):
        store.topics()


# The end of a program.


def test_a_program_that_does_not_close_its_consumer_ends(served: Served) -> None:
    """gRPC's threads stop with the program, and one may have held the lock of the stream then: here it does."""
    program = f"""
import threading
import headwater as hw
store = hw.open({served.address!r})
store.create_topic("orders")
inbox = store.consumer("orders")
inbox.poll()
holding = threading.Thread(target=inbox._fetcher._streams[0].call._state.condition.acquire)
holding.start()
holding.join()
print("done")
"""
    assert _run(program) == (0, "done\n")


def _run(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(hw.__file__).parent.parent)},
    )
    return done.returncode, done.stdout


# Forking.


def test_a_forked_child_is_told_to_open_its_own(served: Served) -> None:
    program = f"""
import os
import headwater as hw
store = hw.open({served.address!r})
store.create_topic("orders")
out = store.producer("orders", linger=3600)
out.send(b"parent")
inbox = store.consumer("orders", group="g")
inbox.poll()
pid = os.fork()
if pid == 0:
    code = 1
    for use in (store.topic_names, lambda: out.send(b"child"), inbox.poll):
        try:
            use()
        except (hw.PartitionForked, hw.StoreClosed):
            code = 0
        else:
            code = 2
            break
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
out.close()
assert [record.value for record in inbox.poll(timeout=300)] == [b"parent"]
print("done")
"""
    assert _run(program) == (0, "done\n")


def test_addresses_are_lists() -> None:
    assert [str(address) for address in parse_store("hw://one,two:1")] == ["one:6174", "two:1"]
