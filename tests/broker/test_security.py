"""A broker with TLS and an access file, and clients that know only the protocol: what they get, and what not."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.broker.security.guard import Guard
from headwater.broker.security.tls import Certificates
from headwater.broker.security.tokens import create_token, revoke_token, tokens_beside
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of
from headwater.wire.service import Stub
from tests.support.callers import Caller
from tests.support.certificates import Authority, Pair, needs_openssl

pytestmark = needs_openssl

FILE = """\
users:
  billing:
    topics:
      orders.*: read
      invoices: [read, write]
    groups:
      billing*: read
  operator:
    topics:
      "*": [read, write, admin]
    groups:
      "*": [read, write]
    broker: [read, admin]
"""
LOCAL = Address("127.0.0.1", 0)
TOPICS = ("orders.eu", "invoices", "payroll")


class Served:
    """A broker that serves a few topics, and its users' tokens."""

    def __init__(self, directory: Path, authority: Authority, store: hw.Store) -> None:
        self.access = directory / "access.yaml"
        self.access.write_text(FILE)
        self.tokens = {name: create_token(tokens_beside(self.access), name) for name in ("billing", "operator")}
        self.guard = Guard(self.access)
        self.authority = authority
        self.pair = authority.sign("broker", "DNS:localhost", "IP:127.0.0.1")
        self.store = store
        self.broker: Broker | None = None

    @contextmanager
    def serving(self, *, mutual: bool = False) -> Iterator[None]:
        certificates = Certificates(*self.pair, self.authority.certificate if mutual else None)
        with Broker(
            self.store, BrokerConfig(), self.guard, listen=LOCAL, credentials=certificates.credentials()
        ) as self.broker:
            yield

    @contextmanager
    def stub(self, user: str | None = None, *, token: str | None = None, own: Pair | None = None) -> Iterator[Any]:
        """The methods of the broker, called as a user, with a token or a certificate."""
        assert self.broker is not None
        root = self.authority.certificate.read_bytes()
        key, certificate = (own.key.read_bytes(), own.certificate.read_bytes()) if own is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(root, key, certificate)
        token = token or (self.tokens[user] if user is not None else None)
        with grpc.secure_channel(str(self.broker.address), credentials) as channel:
            stub = Stub(channel)
            yield stub if token is None else Caller(stub, token)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def served(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    with hw.open("memory:") as store:
        for name in TOPICS:
            store.create_topic(name)
            with store.producer(name) as out:
                out.send(f"of {name}".encode())
        yield Served(tmp_path, authority, store)


def refused(method: Any, request: Any) -> tuple[grpc.StatusCode, str, hw.HeadwaterError | None]:
    """Return the status, the message and the error with which a call is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=300)
    failure: Any = caught.value
    return failure.code(), failure.details(), error_of(failure)


def fetch(topic: str) -> pb.FetchRequest:
    partition = pb.TopicPartition(topic=topic)
    return pb.FetchRequest(positions=[pb.FetchPosition(partition=partition, offset=0)], as_records=True)


def produce(topic: str) -> pb.ProduceRequest:
    return pb.ProduceRequest(topic=topic, records=[pb.Record(value=b"x")])


# The caller's identity.


def test_a_token_over_tls_says_who_calls(served: Served) -> None:
    with served.serving(), served.stub("billing") as stub:
        answer = stub.Fetch(fetch("orders.eu"), timeout=300)
        assert [record.value for record in answer.partitions[0].records] == [b"of orders.eu"]


def test_without_a_token_nothing_is_answered(served: Served) -> None:
    with served.serving(), served.stub() as stub:
        for request in (fetch("orders.eu"), fetch("nothing")):
            code, _, error = refused(stub.Fetch, request)
            assert code == grpc.StatusCode.UNAUTHENTICATED
            assert isinstance(error, hw.Unauthenticated)
        assert refused(stub.GetMetadata, pb.GetMetadataRequest())[0] == grpc.StatusCode.UNAUTHENTICATED
        assert refused(stub.OpenProducer, pb.OpenProducerRequest())[0] == grpc.StatusCode.UNAUTHENTICATED


def test_a_revoked_token_is_refused_by_the_calls_that_follow(served: Served) -> None:
    token = served.tokens["billing"]
    with served.serving(), served.stub("billing") as stub:
        stub.Fetch(fetch("orders.eu"), timeout=300)
        revoke_token(tokens_beside(served.access), token.split("_")[1])
        served.guard.reload()
        code, message, _ = refused(stub.Fetch, fetch("orders.eu"))
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert token not in message


def test_a_token_that_is_being_hashed_holds_up_nobody_else(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, go_on = threading.Semaphore(0), threading.Event()

    def slow(_: str, salt: bytes) -> bytes:
        hashed.release()
        go_on.wait(300)
        return salt

    with served.serving(), served.stub("billing") as known:
        known.Fetch(fetch("orders.eu"), timeout=300)
        monkeypatch.setattr("headwater.broker.security.tokens._hashed", slow)
        try:
            with served.stub("operator") as unknown:
                waiting = unknown.GetMetadata.func.future(
                    pb.GetMetadataRequest(), timeout=300, **unknown.GetMetadata.keywords
                )
                assert hashed.acquire(timeout=300)
                known.Fetch(fetch("orders.eu"), timeout=300)
                go_on.set()
                assert waiting.code() == grpc.StatusCode.UNAUTHENTICATED
        finally:
            go_on.set()


def test_an_address_has_a_few_tokens_hashed_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(_: str, salt: bytes) -> bytes:
        go_on.wait(300)
        return salt

    monkeypatch.setattr("headwater.broker.security.tokens._hashed", slow)
    with served.serving(), served.stub("operator") as stub:
        method = stub.GetMetadata
        try:
            calls = [method.func.future(pb.GetMetadataRequest(), timeout=300, **method.keywords) for _ in range(50)]
            ended = as_they_end(calls)
            for refused in islice(ended, 46):
                assert refused.code() == grpc.StatusCode.UNAVAILABLE, "whoever is right tries again"
                assert "tokens from this address" in refused.details()
            go_on.set()
            assert {call.code() for call in ended} == {grpc.StatusCode.UNAUTHENTICATED}
        finally:
            go_on.set()


def as_they_end(calls: list[Any]) -> Iterator[Any]:
    ended: queue.Queue[Any] = queue.Queue()
    for call in calls:
        call.add_done_callback(ended.put)
    for _ in calls:
        yield ended.get(timeout=300)


def test_who_does_not_speak_tls_is_not_heard(served: Served) -> None:
    with served.serving():
        assert served.broker is not None
        with grpc.insecure_channel(str(served.broker.address)) as channel:
            assert refused(Stub(channel).GetMetadata, pb.GetMetadataRequest())[0] == grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_takes_the_name_from_the_certificate(served: Served, authority: Authority) -> None:
    plain, alternative = authority.sign("billing"), authority.sign("somebody", "DNS:billing", file="alternative")
    with served.serving(mutual=True):
        for own in (plain, alternative):
            with served.stub(own=own) as stub:
                stub.Fetch(fetch("orders.eu"), timeout=300)
                code, message, _ = refused(stub.Produce, produce("orders.eu"))
                assert code == grpc.StatusCode.PERMISSION_DENIED
                assert "'billing' lacks the right 'write' on topic 'orders.eu'" in message
        with served.stub("operator", own=plain) as stub:  # a token goes over the certificate
            stub.Produce(produce("orders.eu"), timeout=300)


def test_mutual_tls_lets_nobody_in_without_a_certificate_of_its_authority(served: Served, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    strange = Authority(tmp_path / "others", "another authority").sign("operator")
    with served.serving(mutual=True):
        for own in (None, strange):
            with served.stub("operator", own=own) as stub:
                assert refused(stub.GetMetadata, pb.GetMetadataRequest())[0] == grpc.StatusCode.UNAVAILABLE


def test_a_certificate_of_nobody_in_the_file_has_no_right(served: Served, authority: Authority) -> None:
    with served.serving(mutual=True), served.stub(own=authority.sign("stranger")) as stub:
        assert list(stub.ListTopics(pb.ListTopicsRequest(), timeout=300).topics) == []
        assert refused(stub.Fetch, fetch("orders.eu"))[0] == grpc.StatusCode.NOT_FOUND
        assert refused(stub.GetStatus, pb.GetStatusRequest())[0] == grpc.StatusCode.PERMISSION_DENIED


def test_a_renewed_certificate_is_taken_up_without_a_restart(served: Served, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    successor = Authority(tmp_path / "next", "next authority")
    with served.serving():
        with served.stub("billing") as stub:
            stub.Fetch(fetch("orders.eu"), timeout=300)
        renewed = successor.sign("broker", "IP:127.0.0.1")
        served.pair.certificate.write_bytes(renewed.certificate.read_bytes())
        # Between the two writes the files do not fit each other: the old ones stay.
        with served.stub("billing") as stub:
            stub.Fetch(fetch("orders.eu"), timeout=300)
        served.pair.key.write_bytes(renewed.key.read_bytes())
        served.authority = successor
        with served.stub("billing") as stub:
            stub.Fetch(fetch("orders.eu"), timeout=300)


def test_a_broker_stops_while_a_client_is_about_to_connect(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, seen = threading.Event(), Certificates._stamped

    def slow(certificates: Certificates) -> Any:
        if served.broker is not None:  # a client has come: gRPC asks for the certificate in a thread of its own
            looking.set()
            time.sleep(0.3)
        return seen(certificates)

    monkeypatch.setattr(Certificates, "_stamped", slow)
    with served.serving():
        assert served.broker is not None
        client = socket.create_connection((served.broker.address.host, served.broker.address.port))
        assert looking.wait(300)
    with client:
        assert client.recv(1) == b""  # and it is told that nobody is there


def test_files_that_are_no_certificates_are_named(served: Served, tmp_path: Path) -> None:
    (tmp_path / "rubbish.pem").write_text("rubbish")
    with pytest.raises(hw.InvalidConfiguration, match=r"missing\.pem: No such file"):
        Certificates(tmp_path / "missing.pem", served.pair.key)
    with pytest.raises(
        hw.InvalidConfiguration, match=r"rubbish\.pem and .* are no certificate with its unencrypted key"
    ):
        Certificates(tmp_path / "rubbish.pem", served.pair.key)
    with pytest.raises(hw.InvalidConfiguration, match="are no certificate with its"):
        Certificates(served.pair.certificate, served.authority.sign("other").key)
    with pytest.raises(hw.InvalidConfiguration, match=r"rubbish\.pem is no certificate in PEM"):
        Certificates(*served.pair, tmp_path / "rubbish.pem")


# The caller's rights.


def test_a_missing_right_is_named(served: Served) -> None:
    elect = pb.ElectLeaderRequest(partition=pb.TopicPartition(topic="invoices"), dry_run=True)
    with served.serving(), served.stub("billing") as stub:
        for method, request, right, subject in (
            (stub.Produce, produce("orders.eu"), "write", "topic 'orders.eu'"),
            (stub.CreateTopic, pb.CreateTopicRequest(name="new"), "admin", "topic 'new'"),
            (stub.DeleteTopic, pb.DeleteTopicRequest(name="invoices"), "admin", "topic 'invoices'"),
            (stub.AlterTopic, pb.AlterTopicRequest(name="orders.eu", partitions=2), "admin", "topic 'orders.eu'"),
            (stub.JoinGroup, pb.JoinGroupRequest(group="shipping", topics=["invoices"]), "read", "group 'shipping'"),
            (stub.ResetGroup, pb.ResetGroupRequest(group="billing"), "write", "group 'billing'"),
            (stub.ExpireGroup, pb.ExpireGroupRequest(group="billing"), "write", "group 'billing'"),
            (stub.ElectLeader, elect, "admin", "topic 'invoices'"),
            (stub.GetStatus, pb.GetStatusRequest(), "read", "broker"),
            (stub.RunSteward, pb.RunStewardRequest(), "admin", "broker"),
            (stub.PlanMoves, pb.PlanMovesRequest(), "admin", "broker"),
            (stub.BeginMoves, pb.BeginMovesRequest(), "admin", "broker"),
            (stub.CancelMoves, pb.CancelMovesRequest(), "admin", "broker"),
            (stub.ListMoves, pb.ListMovesRequest(), "admin", "broker"),
            (stub.GetAccess, pb.GetAccessRequest(), "admin", "broker"),
            (stub.SetAccess, pb.SetAccessRequest(remove_users=["operator"]), "admin", "broker"),
            (stub.JoinGroup, pb.JoinGroupRequest(group="billing", topics=["*"]), "read", "topic '*'"),
        ):
            code, message, error = refused(method, request)
            assert code == grpc.StatusCode.PERMISSION_DENIED
            assert f"'billing' lacks the right '{right}' on {subject}" in message
            assert isinstance(error, hw.PermissionDenied)
            assert error.right == right


def test_an_error_in_a_stream_names_the_right_too(served: Served) -> None:
    with served.serving(), served.stub("billing") as stub:
        answers = list(stub.ProduceStream(iter([produce("orders.eu"), produce("invoices")]), timeout=300))
        assert [answer.error.kind for answer in answers] == ["PermissionDenied", ""]


def test_what_a_caller_may_not_see_is_not_there_for_it(served: Served) -> None:
    """Whatever is asked of it, a topic of others gets the answer that a topic gets that does not exist."""
    with served.serving(), served.stub("billing") as stub:
        listed = [topic.name for topic in stub.ListTopics(pb.ListTopicsRequest(internal=True), timeout=300).topics]
        assert listed == ["invoices", "orders.eu"]
        metadata = stub.GetMetadata(pb.GetMetadataRequest(topics=["payroll", "nothing", "invoices"]), timeout=300)
        assert [topic.topic.name for topic in metadata.topics] == ["invoices"]
        statistics = stub.GetStatistics(pb.GetStatisticsRequest(), timeout=300)
        assert [topic.name for topic in statistics.topics] == ["invoices", "orders.eu"]
        for name in ("Fetch", "Subscribe", "FetchStream", "Produce", "DescribeTopic", "GetSchema", "ListOffsets",
                     "Sync", "JoinGroup", "Commit", "ListSegments", "GetStatistics", "DeleteTopic", "AlterTopic",
                     "CreateTopic", "WorkOnPartition", "EvolveTopic", "Stage", "ResetGroup",
                     "CommitTransaction", "ElectLeader"):  # fmt: skip
            answers = [answer_about(getattr(stub, name), name, topic) for topic in ("payroll", "nothing")]
            assert answers[0].replace("payroll", "nothing") == answers[1], name
            assert "payroll" in answers[0], name


def answer_about(method: Any, name: str, topic: str) -> str:
    """Return the answer, or the error, of a call that names a topic."""
    partition = pb.TopicPartition(topic=topic)
    advance = pb.Advance(topic=topic, offset=0)
    requests: dict[str, Any] = {
        "Fetch": fetch(topic),
        "Subscribe": fetch(topic),
        "FetchStream": iter([fetch(topic)]),
        "Produce": produce(topic),
        "DescribeTopic": pb.DescribeTopicRequest(name=topic),
        "GetSchema": pb.GetSchemaRequest(topic=topic),
        "ListOffsets": pb.ListOffsetsRequest(partitions=[partition]),
        "Sync": pb.SyncRequest(partitions=[partition]),
        "JoinGroup": pb.JoinGroupRequest(group="billing", topics=[topic]),
        "Commit": pb.CommitRequest(group="billing", positions=[advance]),
        "ListSegments": pb.ListSegmentsRequest(partition=partition),
        "GetStatistics": pb.GetStatisticsRequest(topics=[topic]),
        "DeleteTopic": pb.DeleteTopicRequest(name=topic),
        "AlterTopic": pb.AlterTopicRequest(name=topic, partitions=2),
        "CreateTopic": pb.CreateTopicRequest(name=topic),
        "WorkOnPartition": pb.WorkOnPartitionRequest(partition=partition, work="PARTITION_WORK_ROLL"),
        "EvolveTopic": pb.EvolveTopicRequest(name=topic),
        "Stage": iter([pb.StageRequest(topic=topic)]),
        "ResetGroup": pb.ResetGroupRequest(group="billing", positions=[advance], clamp=True),
        "CommitTransaction": pb.CommitTransactionRequest(group="billing", inputs=[advance]),
        "ElectLeader": pb.ElectLeaderRequest(partition=partition, dry_run=True),
    }
    try:
        answer = method(requests[name], timeout=300)
        return str(list(answer) if name in ("Subscribe", "FetchStream") else answer)
    except grpc.RpcError as failure:
        call: Any = failure
        return f"{call.code()} {call.details()} {call.trailing_metadata()}"


def test_a_member_polls_only_what_it_may_read(served: Served) -> None:
    with served.serving(), served.stub("billing") as stub:
        join = pb.JoinGroupRequest(group="billing", topics=["orders.*"])
        member = stub.JoinGroup(join, timeout=300).member_id
        poll = pb.PollRequest(group="billing", member_id=member, max_wait_ms=1000)
        polled = stub.Poll(poll, timeout=300)
        assert [(partition.topic, partition.records[0].value) for partition in polled.partitions] == [
            ("orders.eu", b"of orders.eu")
        ]
        served.access.write_text(FILE.replace("orders.*: read", "sales.*: read"))
        served.guard.reload()
        assert refused(stub.Poll, poll)[0] == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("by", ["token", "right"])
@pytest.mark.parametrize("method", ["Subscribe", "FetchStream"])
def test_a_subscription_ends_with_the_right_to_it(served: Served, method: str, by: str) -> None:
    with served.serving(), served.stub("billing") as stub:
        request = fetch("orders.eu")
        answers = getattr(stub, method)(iter([request]) if method == "FetchStream" else request, timeout=300)
        assert next(answers).partitions[0].records[0].value == b"of orders.eu"
        if by == "token":
            revoke_token(tokens_beside(served.access), served.tokens["billing"].split("_")[1])
        else:
            served.access.write_text(FILE.replace("orders.*: read", "sales.*: read"))
        served.guard.reload()
        with served.stub("operator") as other:
            other.Produce(produce("orders.eu"), timeout=300)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        ended: Any = caught.value
        assert ended.code() == (grpc.StatusCode.UNAUTHENTICATED if by == "token" else grpc.StatusCode.NOT_FOUND)


def test_a_stream_of_records_ends_with_its_token(served: Served) -> None:
    revoked = threading.Event()

    def requests() -> Iterator[pb.ProduceRequest]:
        yield produce("invoices")
        revoked.wait(300)
        yield produce("invoices")

    with served.serving(), served.stub("billing") as stub:
        answers = stub.ProduceStream(requests(), timeout=300)
        assert next(answers).error.kind == ""
        revoke_token(tokens_beside(served.access), served.tokens["billing"].split("_")[1])
        served.guard.reload()
        revoked.set()
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        ended: Any = caught.value
        assert ended.code() == grpc.StatusCode.UNAUTHENTICATED


def test_groups_of_others_are_not_told_of(served: Served) -> None:
    with served.serving(), served.stub("operator") as all_powerful, served.stub("billing") as stub:
        for group in ("billing", "shipping"):
            join = pb.JoinGroupRequest(group=group, topics=["payroll", "invoices"])
            all_powerful.JoinGroup(join, timeout=300)
        assert list(stub.ListGroups(pb.ListGroupsRequest(), timeout=300).groups) == ["billing"]
        described = stub.DescribeGroup(pb.DescribeGroupRequest(group="billing"), timeout=300)
        assert "payroll" not in str(described)
        assert list(described.members[0].topics) == ["invoices"]
        for group in ("shipping", "nothing"):
            assert refused(stub.DescribeGroup, pb.DescribeGroupRequest(group=group))[0] == (
                grpc.StatusCode.PERMISSION_DENIED
            )


def test_nobody_speaks_for_a_member_of_others(served: Served) -> None:
    with served.serving(), served.stub("operator") as other, served.stub("billing") as stub:
        member = other.JoinGroup(pb.JoinGroupRequest(group="billing", topics=["invoices"]), timeout=300).member_id
        for method, request in (
            (stub.Heartbeat, pb.HeartbeatRequest(group="billing", member_id=member)),
            (stub.SettleGroup, pb.SettleGroupRequest(group="billing", member_id=member)),
            (stub.Poll, pb.PollRequest(group="billing", member_id=member)),
            (stub.LeaveGroup, pb.LeaveGroupRequest(group="billing", member_id=member)),
        ):
            code, message, _ = refused(method, request)
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert "belongs to another caller" in message
        other.Heartbeat(pb.HeartbeatRequest(group="billing", member_id=member), timeout=300)


def test_nobody_numbers_the_transactions_of_others(served: Served) -> None:
    """A user that could use another user's name for a transaction could make the other's transaction count as done."""
    with served.serving(), served.stub("billing") as stub:
        request = pb.CommitTransactionRequest(writer="nightly", sequence=1 << 40, owner="x", takeover=True)
        code, message, _ = refused(stub.CommitTransaction, request)
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert "the right 'write' on group 'nightly'" in message


def test_health_tells_anyone_that_the_broker_is_there_and_no_more(served: Served) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with served.serving():
        assert served.broker is not None
        root = grpc.ssl_channel_credentials(served.authority.certificate.read_bytes())
        with grpc.secure_channel(str(served.broker.address), root) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                health_pb2.HealthCheckRequest(), timeout=300
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


# The client in Python.


def test_the_client_works_within_its_rights(served: Served) -> None:
    with served.serving():
        assert served.broker is not None
        where, root = f"hw://{served.broker.address}", str(served.authority.certificate)
        with hw.open(where, token=served.tokens["billing"], tls_ca=root) as store:
            assert store.topics() == ["invoices", "orders.eu"]
            with store.producer("invoices") as out, store.consumer("orders.*", group="billing") as inbox:
                (order,) = inbox.poll(timeout=300)
                out.send(b"for " + (order.value or b""))
                out.sync()
                inbox.ack(order)
                inbox.commit()
            with store.consumer(["orders.eu", "invoices"], group="billing-twice") as inbox:
                (order,) = [record for record in inbox.poll(timeout=300) if record.topic == "orders.eu"]
                with store.transaction(inbox) as transaction:
                    transaction.producer("invoices").send(b"once more")
                    inbox.ack(order)
            values = [record.value for record in store.topic("invoices").partition(0).records()]
            assert values == [b"of invoices", b"for of orders.eu", b"once more"]
            with pytest.raises(hw.PermissionDenied, match=r"the right 'write' on topic 'orders.eu'"):
                send(store, "orders.eu")
            with pytest.raises(hw.PermissionDenied, match="the right 'admin' on topic 'new'"):
                store.create_topic("new")
            with pytest.raises(hw.PermissionDenied, match="the right 'read' on group 'shipping'"):
                store.consumer("invoices", group="shipping").poll(timeout=300)
            with pytest.raises(hw.UnknownTopic):
                store.topic("payroll").partition(0).bounds()
            with pytest.raises(hw.UnknownTopic):
                send(store, "payroll")
        with (
            hw.open(where, token="hw_000000000000_" + "A" * 43, tls_ca=root) as store,
            pytest.raises(hw.Unauthenticated),
        ):
            store.topics()


def send(store: hw.Store, topic: str) -> None:
    with store.producer(topic) as out:
        out.send(b"x")
        out.flush()
