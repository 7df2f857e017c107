"""`hw broker` as a process: it serves, drains, refuses what it must in one line, and its log keeps secrets."""

from __future__ import annotations

import http.client
import json
import signal
import stat
from pathlib import Path

import grpc
import pytest

import headwater
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.callers import Caller
from tests.support.certificates import Authority, needs_openssl
from tests.support.processes import BrokerProcess, hw

ACCESS = """\
users:
  billing:
    topics: {"orders.*": [read, write, admin]}
  watcher:
    broker: read
"""


def get(address: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def produce(address: str, topic: str, value: bytes) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = Stub(channel)
        stub.CreateTopic(pb.CreateTopicRequest(name=topic, exist_ok=True), timeout=300)
        stub.Produce(pb.ProduceRequest(topic=topic, records=[pb.Record(value=value)]), timeout=300)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it_and_what_it_acknowledged_is_there(tmp_path: Path, number: int) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        produce(broker.address, "orders", b"two teas")
        assert broker.stop(number) == 0
        messages = [line["message"] for line in broker.lines()]
        assert messages == ["serving", "draining", "stopped: everything that was acknowledged is on disk"]
    with headwater.open(tmp_path / "events") as store:
        assert [record.value for record in store.topic("orders").partition(0).records()] == [b"two teas"]


def test_waiting_fetches_do_not_hold_up_a_drain(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        produce(broker.address, "orders", b"x")
        with grpc.insecure_channel(broker.address) as channel:
            position = pb.FetchPosition(partition=pb.TopicPartition(topic="orders"), offset=1)
            stub = Stub(channel)
            stub.ListTopics(pb.ListTopicsRequest(), timeout=300)
            waiting = stub.Fetch.future(pb.FetchRequest(positions=[position], max_wait_ms=60_000), timeout=300)
            stub.ListTopics(pb.ListTopicsRequest(), timeout=300)  # behind it on the same connection: the fetch is there
            assert broker.stop() == 0
            (answer,) = waiting.result().partitions
            assert not answer.frames
            assert answer.next_offset == 1


def test_a_hangup_without_an_access_file_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        broker.process.send_signal(signal.SIGHUP)
        produce(broker.address, "orders", b"x")
        assert broker.stop() == 0


def test_a_second_broker_on_the_same_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log"):
        refused = hw("broker", tmp_path / "events", "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"hw: {tmp_path / 'events'} cannot be opened: others have it open")


def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", log=tmp_path / "log") as broker:
        for flags in (["--listen", broker.address], ["--listen", "127.0.0.1:0", "--metrics", broker.address]):
            refused = hw("broker", tmp_path / "others", *flags)
            assert refused.returncode == 1
            (line,) = refused.stderr.splitlines()
            assert f"nothing can listen at {broker.address}: Address already in use" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure-no-authentication"),
        (["--listen", "0.0.0.0:0", "--access", "ACCESS"], "tokens would cross the network"),
        (["--metrics", "0.0.0.0:0"], "--insecure-no-authentication"),
        (["--access", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--tls-certificate", "no.pem", "--tls-key", "no.key"], "no.pem: No such file"),
        (["--max-wait", "soon"], "--max-wait 'soon': must be a number of seconds"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--listn", "x"], "No such option"),
    ],
)
def test_what_it_cannot_serve_with_is_refused_in_one_line(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "access.yaml").write_text(ACCESS)
    flags = [str(tmp_path / "access.yaml") if flag == "ACCESS" else flag for flag in flags]
    refused = hw("broker", tmp_path / "events", *flags)
    assert refused.returncode in (1, 2)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("hw: ")
    assert message in line
    assert not (tmp_path / "events").exists(), "nothing is made before it is known that it will be served"


def test_the_status_of_a_broker_that_is_not_there_is_one_line() -> None:
    refused = hw("broker", "status", "hw://127.0.0.1:1", "--wait", "500ms")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith("hw: hw://127.0.0.1:1: GetStatus was not answered")
    assert "--wait 'soon'" in hw("broker", "status", "--wait", "soon").stderr


def test_it_says_what_is_missing() -> None:
    refused = hw("broker", "serve", "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert "say which directory to serve" in refused.stderr


def test_configuration_comes_from_everywhere_and_the_command_shows_from_where(tmp_path: Path) -> None:
    (tmp_path / "broker.yaml").write_text("directory: events\nbroker_id: 1\nlog_level: error\nmax_wait: 5s\n")
    shown = hw(
        *("broker", "check-config", "--config", tmp_path / "broker.yaml", "--broker-id", 3, "--no-steward"),
        HEADWATER_BROKER_LOG_LEVEL="debug",
    )
    assert shown.returncode == 0, shown.stderr
    options = json.loads(shown.stdout)["options"]
    assert options["broker_id"] == {"value": "3", "from": "flag"}
    assert options["steward"] == {"value": "false", "from": "flag"}
    assert options["log_level"] == {"value": "debug", "from": "environment"}
    assert options["max_wait"] == {"value": "5s", "from": str(tmp_path / "broker.yaml")}
    assert options["directory"]["value"] == str(tmp_path / "events")
    assert options["threads"]["from"] == "default"
    assert not (tmp_path / "events").exists()


def test_a_broken_access_file_is_refused_by_line_and_key(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text("users:\n  billing:\n    topics:\n      orders: reed\n")
    for command in (["check-config"], ["serve"]):
        refused = hw("broker", *command, tmp_path / "events", "--access", tmp_path / "access.yaml")
        assert refused.returncode == 1
        assert "access.yaml:4: users.billing.topics.orders: there is no right 'reed': did you mean read?" in (
            refused.stderr
        )


# Tokens and secrets.


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(ACCESS)
    made = hw("broker", "token", "create", "billing", "--access", access, "--expires", "90d")
    token = made.stdout.strip()
    assert made.returncode == 0
    assert token.startswith("hw_")
    assert stat.S_IMODE((tmp_path / "access.tokens").stat().st_mode) == 0o600
    second = json.loads(
        hw("broker", "token", "create", "watcher", "--json", HEADWATER_BROKER_ACCESS=str(access)).stdout
    )
    assert second["token"].startswith(f"hw_{second['id']}_")
    listed = hw("broker", "token", "list", "--access", access)
    tokens = json.loads(listed.stdout)["tokens"]
    assert [token["user"] for token in tokens] == ["billing", "watcher"]
    assert [token["expires"] is None for token in tokens] == [False, True]
    assert token.split("_", 2)[2] not in listed.stdout
    revoked = hw("broker", "token", "revoke", tokens[0]["id"], "--access", access)
    assert json.loads(revoked.stdout) == {"revoked": tokens[0]["id"], "user": "billing"}
    assert len(json.loads(hw("broker", "token", "list", "--access", access).stdout)["tokens"]) == 1
    for arguments, message in (
        (["create", "biling"], "has no user 'biling'"),
        (["create", "billing", "--expires", "soon"], "--expires must be a number of seconds"),
        (["revoke", "000000000000"], "token '000000000000' does not exist"),
    ):
        refused = hw("broker", "token", *arguments, "--access", access)
        assert refused.returncode == 1
        assert message in refused.stderr


@needs_openssl
def test_a_guarded_broker_serves_those_with_rights_and_logs_no_secret(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(ACCESS)
    authority = Authority(tmp_path)
    pair = authority.sign("broker", "IP:127.0.0.1")
    tokens = {
        user: hw("broker", "token", "create", user, "--access", access).stdout.strip()
        for user in ("billing", "watcher")
    }
    flags = ["--access", access, "--tls-certificate", pair.certificate, "--tls-key", pair.key, "--log-level", "debug"]
    with BrokerProcess(tmp_path / "events", *flags, log=tmp_path / "log") as broker:
        root = grpc.ssl_channel_credentials(authority.certificate.read_bytes())

        def stub(token: str) -> Caller:
            return Caller(Stub(grpc.secure_channel(broker.address, root)), token)

        billing = stub(tokens["billing"])
        billing.CreateTopic(pb.CreateTopicRequest(name="orders.eu"), timeout=300)
        with pytest.raises(grpc.RpcError):
            billing.CreateTopic(pb.CreateTopicRequest(name="payroll\n\x1b[2J"), timeout=300)
        with pytest.raises(grpc.RpcError):
            stub(tokens["billing"][:-3] + "abc").ListTopics(pb.ListTopicsRequest(), timeout=300)
        denied = broker.wait_for("denied")
        assert (denied["who"], denied["right"], denied["name"]) == ("billing", "admin", "payroll\n\x1b[2J")
        assert broker.wait_for("unauthenticated")["level"] == "warning"
        for token, code, told in (
            ("watcher", 0, '"state": "serving"'),
            ("billing", 1, "lacks the right 'read' on broker"),
        ):
            status = hw(
                *("broker", "status", f"hw://{broker.address}", "--tls-ca", authority.certificate),
                HEADWATER_CLIENT_TOKEN=tokens[token],
            )
            assert status.returncode == code
            assert told in status.stdout + status.stderr
        # The file is read again by itself, and when it is told to.
        access.write_text(ACCESS.replace("orders.*", "sales.*"))
        broker.wait_for("access file read")
        broker.process.send_signal(signal.SIGHUP)
        with pytest.raises(grpc.RpcError):
            billing.CreateTopic(pb.CreateTopicRequest(name="orders.us"), timeout=300)
        billing.CreateTopic(pb.CreateTopicRequest(name="sales.eu"), timeout=300)
        assert broker.stop() == 0
    content = (tmp_path / "log").read_text()
    assert not any(token.split("_", 2)[2][:20] in content for token in tokens.values())
    assert "scrypt" not in content
    assert "hash" not in content


# Pages.


def test_metrics_and_health_are_served_beside_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "events", "--metrics", "127.0.0.1:0", log=tmp_path / "log") as broker:
        where = str(broker.wait_for("serving")["metrics"])
        produce(broker.address, "orders", b"two teas")
        assert get(where, "/healthz") == (200, "alive\n")
        assert get(where, "/readyz") == (200, "serving\n")
        status, text = get(where, "/metrics")
        assert status == 200
        assert 'headwater_broker_requests_total{method="Produce",code="OK"} 1' in text
        assert 'headwater_topic_records_total{topic="orders"} 1' in text
        assert get(where, "/metrics", Host="evil.example")[0] == 421


def test_metrics_of_a_guarded_broker_need_the_right_to_read_it(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(ACCESS)
    tokens = {
        user: hw("broker", "token", "create", user, "--access", access).stdout.strip()
        for user in ("billing", "watcher")
    }
    flags = ["--access", access, "--metrics", "127.0.0.1:0"]
    with BrokerProcess(tmp_path / "events", *flags, log=tmp_path / "log") as broker:
        where = str(broker.wait_for("serving")["metrics"])
        assert get(where, "/readyz")[0] == 200
        assert get(where, "/metrics")[0] == 401
        assert get(where, "/metrics", Authorization="Bearer rubbish")[0] == 401
        status, text = get(where, "/metrics", Authorization=f"Bearer {tokens['billing']}")
        assert status == 403
        assert "'billing' lacks the right 'read' on broker" in text
        assert get(where, "/metrics", Authorization=f"Bearer {tokens['watcher']}")[0] == 200
