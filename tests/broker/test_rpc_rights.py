"""Each RPC refuses a caller that lacks one of the rights it needs, and serves one that has exactly those.

The table has a row for every method of the service's description, so a new method without a row fails. It is checked at
a broker on its own and at a broker of a cluster.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pyarrow as pa
import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.broker.clustered.backend import ClusteredBackend
from headwater.broker.security.access import Kind, Right
from headwater.broker.security.access_file import rights_from_json
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import create_token, read_tokens
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.link import PASSWORD_KEY, password_of
from headwater.core.config import BrokerConfig
from headwater.core.errors import BrokerUnavailable, HeadwaterError, NotLeader
from headwater.core.names import GROUPS
from headwater.embedded.directory_store import DirectoryStore
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of, unpack_error
from headwater.wire.service import METHODS, Stub
from tests.support.broker import ANY_PORT, fetch, frame_of, position
from tests.support.callers import Calling, bearer
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.patience import Patience

PATIENCE: Final = 120.0
NOT_LED: Final = (NotLeader, BrokerUnavailable)
NEW: Final = (*NOT_LED, hw.UnknownTopic)
"""The errors that a call may get for a topic that was created just now."""
STREAMED: Final = {method.name: (method.request_streams, method.response_streams) for method in METHODS}


class Need(NamedTuple):
    """A right on something."""

    right: Right
    kind: Kind
    name: str = ""


BROKERS: Final = ("alone", "cluster")
RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "admin")
EVERYTHING: Final = {
    "topics": {"*": ["read", "write", "admin"], "__*": ["read", "write", "admin"]},
    "groups": {"*": ["read", "write", "admin"]},
    "broker": ["read", "write", "admin"],
}


class Scene:
    """A broker with an access file, a caller whose rights are set at will, and a topic and a group to ask about."""

    def __init__(self, directory: Path, store: hw.Store, stack: ExitStack, etcd: EtcdServer | None) -> None:
        access = directory / "access.yaml"
        access.write_text("users: {}\n")
        tokens = directory / "probe.tokens"
        self._guard = Guard(access)
        token = create_token(tokens, "probe")
        self._tokens = read_tokens(tokens)
        config = BrokerConfig(steward=False, internal_partitions=1)
        self.broker = stack.enter_context(
            Broker(
                store,
                config,
                self._guard,
                listen=ANY_PORT,
                etcd=None if etcd is None else lambda: Etcd([etcd.address]),
            )
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.stranger = Stub(stack.enter_context(grpc.insecure_channel(str(self.broker.address), options=options)))
        self.stub = Calling(self.stranger, bearer(token))
        self.at = "alone" if etcd is None else "cluster"
        self._numbers = count()
        self.topic = self.group = self._member = ""

    def renew(self) -> None:
        """Another topic with a record in it, and the name of another group."""
        number = next(self._numbers)
        self.topic, self.group = f"topic{number}", f"group{number}"
        self._member = ""
        self.allow_all()
        self.done("CreateTopic", pb.CreateTopicRequest(name=self.topic))
        self.done("Produce", pb.ProduceRequest(topic=self.topic, records=[pb.Record(value=b"x")]), awaited=NEW)

    def allow(self, *needs: Need) -> None:
        """Let the caller do this and nothing else."""
        rights: dict[str, Any] = {"topics": {}, "groups": {}, "broker": []}
        for right, kind, name in needs:
            if kind == "broker":
                rights["broker"].append(right)
            else:
                rights[f"{kind}s"].setdefault(name, []).append(right)
        self._guard.share({"probe": rights_from_json("probe", json.dumps(rights))}, self._tokens)

    def allow_all(self) -> None:
        """Let the caller do everything."""
        self._guard.share({"probe": rights_from_json("probe", json.dumps(EVERYTHING))}, self._tokens)

    def named(self, need: Need) -> Need:
        """The need, with the topic and the group of the scene."""
        return need._replace(name=need.name.format(topic=self.topic, group=self.group))

    def outcome(self, method: str, request: Any, stub: Any = None) -> Any:
        """The answer, or the first one of a stream; raises the error that it tells."""
        return ask(self.stub if stub is None else stub, method, request)

    def done(self, method: str, request: Any, stub: Any = None, awaited: tuple[type[Exception], ...] = NOT_LED) -> Any:
        """The answer, as soon as none of the `awaited` errors is in its way."""
        patience = Patience(PATIENCE)
        while True:
            try:
                return self.outcome(method, request, stub)
            except awaited:
                assert not patience.exhausted(), f"{method} is not served"
                time.sleep(0.02)

    def member(self) -> str:
        """A member of the group that is the caller's, and owns the topic's partition."""
        self.allow_all()
        if not self._member:
            joined = self.done("JoinGroup", pb.JoinGroupRequest(group=self.group, topics=[self.topic]))
            self.done("SettleGroup", pb.SettleGroupRequest(group=self.group, member_id=joined.member_id))
            self._member = joined.member_id
        return self._member

    def staged(self) -> pb.Staged:
        """A record for the topic that waits for a transaction."""
        self.allow_all()
        staged: pb.Staged = self.done("Stage", stage(self))
        return staged

    def led(self) -> pb.TopicPartition:
        """The topic's partition, which has something staged, with the uuid that brokers name it by."""
        self.staged()
        uuid = self.outcome("DescribeTopic", pb.DescribeTopicRequest(name=self.topic)).uuid
        return pb.TopicPartition(topic=self.topic, topic_uuid=uuid)

    def as_broker(self) -> Any:
        """The methods as another broker of the cluster calls them."""
        core = self.broker._core
        assert core is not None
        assert isinstance(core.backend, ClusteredBackend)
        return Calling(self.stranger, ((PASSWORD_KEY, password_of(core.backend.node._state.links.secret)),))


def ask(stub: Any, method: str, request: Any) -> Any:
    """The answer, or the first one of a stream; raises the error that it tells."""
    takes_stream, gives_stream = STREAMED[method]
    requests = iter([] if request is None else [request])
    call = None
    try:
        call = getattr(stub, method)(requests if takes_stream else request, timeout=300)
        answer = next(call, None) if gives_stream else call
    except grpc.RpcError as failure:
        error = error_of(failure)
        if error is None:
            raise
        raise error from None
    finally:
        if gives_stream and call is not None:
            call.cancel()
    for told in errors_in(answer):
        raise unpack_error(told)
    return answer


def errors_in(answer: Any) -> Iterator[pb.Error]:
    """Errors that are told for a part of a request."""
    if isinstance(answer, pb.CommitAllResponse):
        yield from (outcome.error for outcome in answer.outcomes if outcome.HasField("error"))
    elif isinstance(answer, pb.ProduceResponse) and answer.HasField("error"):
        yield answer.error
    elif isinstance(answer, pb.FetchResponse | pb.ListOffsetsResponse):
        yield from (partition.error for partition in answer.partitions if partition.HasField("error"))


class Row(NamedTuple):
    """A way to call a method, and the rights that it takes."""

    method: str
    request: Callable[[Scene], Any]
    needs: tuple[Need, ...] = ()
    at: tuple[str, ...] = BROKERS
    """The kinds of brokers at which the method requires these rights."""
    otherwise: Mapping[str, type[Exception]] = {}
    """The error that a caller with all rights gets, by kind of broker, if the broker cannot do what it is asked."""


def partition(scene: Scene) -> pb.TopicPartition:
    return pb.TopicPartition(topic=scene.topic)


def advance(scene: Scene) -> pb.Advance:
    return pb.Advance(topic=scene.topic, offset=1)


def stage(scene: Scene) -> pb.StageRequest:
    return pb.StageRequest(topic=scene.topic, frames=[frame_of(b"staged")])


def produce(scene: Scene) -> pb.ProduceRequest:
    return pb.ProduceRequest(topic=scene.topic, records=[pb.Record(value=b"y")])


def grouped_fetch(scene: Scene) -> pb.FetchRequest:
    return pb.FetchRequest(positions=[position(scene.topic)], group=scene.group, as_records=True)


def commit(scene: Scene) -> pb.CommitRequest:
    return pb.CommitRequest(group=scene.group, positions=[advance(scene)])


def roll(scene: Scene) -> pb.WorkOnPartitionRequest:
    return pb.WorkOnPartitionRequest(partition=partition(scene), work=pb.PARTITION_WORK_ROLL)


def elect(scene: Scene) -> pb.ElectLeaderRequest:
    return pb.ElectLeaderRequest(partition=partition(scene), dry_run=True)


READ, WRITE, ADMIN = (Need(right, "topic", "{topic}") for right in RIGHTS)
READ_GROUP, WRITE_GROUP, ADMIN_GROUP = (Need(right, "group", "{group}") for right in RIGHTS)
READ_BROKER, _, ADMIN_BROKER = (Need(right, "broker") for right in RIGHTS)
SCHEMA: Final = pa.schema([("x", pa.int64())]).serialize().to_pybytes()

TOPICS: Final = (
    Row("GetMetadata", lambda _: pb.GetMetadataRequest()),
    Row(
        "CreateTopic",
        lambda scene: pb.CreateTopicRequest(name=f"{scene.topic}x"),
        (Need("admin", "topic", "{topic}x"),),
    ),
    Row("ListTopics", lambda _: pb.ListTopicsRequest()),
    *(
        Row("DescribeTopic", lambda scene: pb.DescribeTopicRequest(name=scene.topic), (right,))
        for right in (READ, WRITE, ADMIN)
    ),
    Row("AlterTopic", lambda scene: pb.AlterTopicRequest(name=scene.topic, partitions=2), (ADMIN,)),
    Row(
        "EvolveTopic",
        lambda scene: pb.EvolveTopicRequest(name=scene.topic, schema=SCHEMA),
        (ADMIN,),
        otherwise=dict.fromkeys(BROKERS, hw.SchemaError),
    ),
    Row("DeleteTopic", lambda scene: pb.DeleteTopicRequest(name=scene.topic), (ADMIN,)),
    *(
        Row("GetSchema", lambda scene: pb.GetSchemaRequest(topic=scene.topic), (right,))
        for right in (READ, WRITE, ADMIN)
    ),
)
RECORDS: Final = (
    Row("OpenProducer", lambda _: pb.OpenProducerRequest()),
    Row("Produce", produce, (WRITE,)),
    Row("Produce", lambda scene: pb.ProduceRequest(topic=scene.topic, partition=0, frames=[frame_of(b"y")]), (WRITE,)),
    Row("ProduceStream", produce, (WRITE,)),
    Row("Sync", lambda scene: pb.SyncRequest(partitions=[partition(scene)]), (WRITE,)),
    Row("Fetch", lambda scene: fetch(scene.topic, as_records=True), (READ,)),
    Row("Fetch", grouped_fetch, (READ, READ_GROUP)),
    Row("Subscribe", grouped_fetch, (READ, READ_GROUP)),
    Row("FetchStream", grouped_fetch, (READ, READ_GROUP)),
    Row("Consume", lambda scene: pb.ConsumeRequest(partition=partition(scene)), (READ,)),
    Row("ListOffsets", lambda scene: pb.ListOffsetsRequest(partitions=[partition(scene)]), (READ,)),
)
GROUPS_TABLE: Final = (
    Row("ListGroups", lambda _: pb.ListGroupsRequest()),
    Row("DescribeGroup", lambda scene: pb.DescribeGroupRequest(group=scene.group), (READ_GROUP,)),
    Row("JoinGroup", lambda scene: pb.JoinGroupRequest(group=scene.group, topics=[scene.topic]), (READ_GROUP, READ)),
    Row("SettleGroup", lambda scene: pb.SettleGroupRequest(group=scene.group, member_id=scene.member()), (READ_GROUP,)),
    Row("Heartbeat", lambda scene: pb.HeartbeatRequest(group=scene.group, member_id=scene.member()), (READ_GROUP,)),
    Row("Heartbeat", lambda scene: pb.HeartbeatRequest(group=scene.group), (READ_GROUP,)),
    Row("LeaveGroup", lambda scene: pb.LeaveGroupRequest(group=scene.group, member_id=scene.member()), (READ_GROUP,)),
    Row("Unsubscribe", lambda scene: pb.LeaveGroupRequest(group=scene.group, member_id=scene.member()), (READ_GROUP,)),
    Row("Commit", commit, (READ_GROUP, READ)),
    Row("CommitAll", lambda scene: pb.CommitAllRequest(commits=[commit(scene)]), (READ_GROUP, READ)),
    Row(
        "ResetGroup",
        lambda scene: pb.ResetGroupRequest(group=scene.group, positions=[advance(scene)]),
        (WRITE_GROUP, READ),
    ),
    Row(
        "ResetGroup",
        lambda scene: pb.ResetGroupRequest(group=scene.group, positions=[advance(scene)], clamp=True),
        (READ_GROUP, READ),
    ),
    Row("ExpireGroup", lambda scene: pb.ExpireGroupRequest(group=scene.group), (WRITE_GROUP,)),
    Row(
        "Poll",
        lambda scene: pb.PollRequest(group=scene.group, member_id=scene.member(), max_wait_ms=1),
        (READ_GROUP, READ),
    ),
)
TRANSACTIONS: Final = (
    Row("Stage", stage, (WRITE,)),
    Row("DropStages", lambda scene: pb.DropStagesRequest(staged=[scene.staged()]), (WRITE,)),
    Row("CommitTransaction", lambda scene: pb.CommitTransactionRequest(staged=[scene.staged()]), (WRITE,)),
    Row(
        "CommitTransaction",
        lambda scene: pb.CommitTransactionRequest(group=scene.group, inputs=[advance(scene)]),
        (READ_GROUP, READ),
    ),
    Row(
        "CommitTransaction",
        lambda scene: pb.CommitTransactionRequest(writer=scene.group, sequence=1, staged=[scene.staged()]),
        (WRITE_GROUP, WRITE),
    ),
    Row("RollForward", lambda scene: pb.RollForwardRequest(group=scene.group), (READ_GROUP,)),
    Row("RollForward", lambda _: pb.RollForwardRequest(), (ADMIN_BROKER,)),
)
NO_CLUSTER: Final = {"alone": hw.StoreError}
OPERATIONS: Final = (
    Row("GetStatistics", lambda _: pb.GetStatisticsRequest()),
    Row("GetStatistics", lambda scene: pb.GetStatisticsRequest(topics=[scene.topic]), (READ,)),
    Row("ListSegments", lambda scene: pb.ListSegmentsRequest(partition=partition(scene)), (READ,)),
    Row("WorkOnPartition", roll, (ADMIN,), otherwise={"cluster": hw.StoreError}),
    Row("RunSteward", lambda _: pb.RunStewardRequest(), (ADMIN_BROKER,), otherwise={"cluster": hw.StoreError}),
    Row("GetStatus", lambda _: pb.GetStatusRequest(), (READ_BROKER,)),
    Row("ElectLeader", elect, (ADMIN,), otherwise=dict.fromkeys(BROKERS, hw.StoreError)),
    Row("PlanMoves", lambda _: pb.PlanMovesRequest(), (ADMIN_BROKER,), otherwise=NO_CLUSTER),
    Row("BeginMoves", lambda _: pb.BeginMovesRequest(), (ADMIN_BROKER,), otherwise=NO_CLUSTER),
    Row("CancelMoves", lambda _: pb.CancelMovesRequest(), (ADMIN_BROKER,), otherwise=NO_CLUSTER),
    Row("ListMoves", lambda _: pb.ListMovesRequest(), (ADMIN_BROKER,), otherwise=NO_CLUSTER),
    Row("GetAccess", lambda _: pb.GetAccessRequest(), (ADMIN_BROKER,)),
    Row("SetAccess", lambda _: pb.SetAccessRequest(), (ADMIN_BROKER,), otherwise=NO_CLUSTER),
    Row("ListLogEnds", lambda _: pb.ListLogEndsRequest(), (READ_BROKER,), otherwise={"alone": grpc.RpcError}),
)
TABLE: Final = TOPICS + RECORDS + GROUPS_TABLE + TRANSACTIONS + OPERATIONS

BETWEEN_BROKERS: Final[dict[str, Callable[[Scene], Any]]] = {
    "Replicate": lambda _: None,
    "ReadReplica": lambda scene: pb.ReadReplicaRequest(topic_uuid=scene.led().topic_uuid, end=1),
    "ListReaders": lambda _: pb.ListReadersRequest(),
    "HoldStages": lambda scene: pb.StagesRequest(partition=scene.led()),
    "ApplyStages": lambda scene: pb.StagesRequest(partition=scene.led(), writer=bytes(range(16))),
    "ListUndone": lambda scene: pb.ListUndoneRequest(partition=partition(scene)),
}
"""Methods that no user may call, whatever its rights."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("alone")
    with ExitStack() as stack:
        store = stack.enter_context(DirectoryStore(directory / "store", exclusive=True))
        yield Scene(directory, store, stack, None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        etcd = EtcdServer(directory / "etcd").start()
        stack.callback(etcd.kill)
        store = stack.enter_context(DirectoryStore(directory / "store", exclusive=True))
        yield Scene(directory, store, stack, etcd)


BOTH: Final = ("alone", pytest.param("cluster", marks=needs_etcd))
SEEN: Final = frozenset({"DescribeTopic", "GetSchema"})
"""Methods for which any right on the topic will do."""
CASES: Final = [
    pytest.param(at, row, id=f"{at}-{number}-{row.method}", marks=[needs_etcd] if at == "cluster" else [])
    for at in BROKERS
    for number, row in enumerate(TABLE)
    if at in row.at
]


@pytest.fixture
def scene(request: pytest.FixtureRequest, at: str) -> Scene:
    """A broker on its own, or one of a cluster, with a new topic."""
    scene: Scene = request.getfixturevalue(at)
    scene.renew()
    return scene


def test_every_method_has_a_row() -> None:
    for at in BROKERS:
        listed = {row.method for row in TABLE if at in row.at}
        assert listed.isdisjoint(BETWEEN_BROKERS)
        assert listed | set(BETWEEN_BROKERS) == {method.name for method in METHODS}


@pytest.mark.parametrize(("at", "row"), CASES)
def test_each_right_is_needed_and_together_they_are_enough(scene: Scene, row: Row) -> None:
    needs = [scene.named(need) for need in row.needs]
    for missing in needs:
        request = row.request(scene)
        others = [need for need in needs if need != missing]
        # Another right on the same thing does not stand in for the one that is missing.
        beside = [missing._replace(right=right) for right in RIGHTS if right != missing.right]
        for allowed in (others,) if row.method in SEEN else (others, others + beside):
            scene.allow(*allowed)
            with pytest.raises((hw.PermissionDenied, hw.UnknownTopic)) as caught:
                scene.outcome(row.method, request)
            check_names_what_is_missing(caught.value, missing, allowed)
    request = row.request(scene)
    scene.allow(*needs)
    expected = row.otherwise.get(scene.at)
    if expected is None:
        scene.done(row.method, request)
        return
    with pytest.raises(expected) as otherwise:
        scene.outcome(row.method, request)
    assert not isinstance(otherwise.value, hw.PermissionDenied | hw.UnknownTopic | hw.Unauthenticated)


def check_names_what_is_missing(error: HeadwaterError, missing: Need, allowed: list[Need]) -> None:
    """A right is named, unless the caller may not know of the topic: that one is told of as if it were not there."""
    sees = any((need.kind, need.name) == (missing.kind, missing.name) for need in allowed)
    if isinstance(error, hw.PermissionDenied):
        assert (error.right, error.kind, error.name) == missing
    else:
        assert missing.kind == "topic"
        assert not sees
        assert missing.name in str(error)


@pytest.mark.parametrize("at", BOTH)
def test_nobody_is_served_without_a_token(scene: Scene) -> None:
    requests = {row.method: row.request for row in TABLE} | BETWEEN_BROKERS
    for method, request in requests.items():
        with pytest.raises(hw.Unauthenticated):
            scene.outcome(method, request(scene), scene.stranger)


@needs_etcd
@pytest.mark.parametrize("method", BETWEEN_BROKERS)
def test_methods_between_brokers_are_for_brokers_alone(cluster: Scene, method: str) -> None:
    cluster.renew()
    request = BETWEEN_BROKERS[method](cluster)
    with pytest.raises(hw.PermissionDenied) as caught:
        cluster.outcome(method, request)
    assert (caught.value.right, caught.value.kind) == ("admin", "broker")
    cluster.done(method, request, cluster.as_broker())


@needs_etcd
def test_nobody_writes_the_topics_that_a_cluster_keeps_and_admins_alone_read_them(cluster: Scene) -> None:
    cluster.renew()
    cluster.done("Commit", commit(cluster))  # which makes the topic of groups
    every = [Need(right, "topic", GROUPS) for right in RIGHTS]
    cluster.allow(*every)
    for method, request in (
        ("Produce", pb.ProduceRequest(topic=GROUPS, records=[pb.Record(value=b"x")])),
        ("ProduceStream", pb.ProduceRequest(topic=GROUPS, records=[pb.Record(value=b"x")])),
        ("Stage", pb.StageRequest(topic=GROUPS, frames=[frame_of(b"x")])),
        ("Sync", pb.SyncRequest(partitions=[pb.TopicPartition(topic=GROUPS)])),
    ):
        with pytest.raises(hw.PermissionDenied, match="the right 'write'"):
            cluster.outcome(method, request)
    cluster.done("Fetch", fetch(GROUPS))
    cluster.allow(*(need for need in every if need.right != "admin"))
    with pytest.raises(hw.PermissionDenied, match="the right 'admin'"):
        cluster.outcome("Fetch", fetch(GROUPS))


@pytest.mark.parametrize("at", BOTH)
def test_a_group_shows_positions_and_owners_only_in_topics_that_the_caller_sees(scene: Scene) -> None:
    scene.member()
    scene.done("ResetGroup", pb.ResetGroupRequest(group=scene.group, positions=[advance(scene)]))
    request = pb.DescribeGroupRequest(group=scene.group)
    whole = scene.done("DescribeGroup", request)
    assert [position.offset for position in whole.positions] == [1]
    for seen in (READ, WRITE, ADMIN):
        scene.allow(scene.named(READ_GROUP), scene.named(seen))
        assert scene.done("DescribeGroup", request) == whole
    scene.allow(scene.named(READ_GROUP))
    hidden = scene.done("DescribeGroup", request)
    assert (list(hidden.positions), list(hidden.partitions)) == ([], [])
    assert [list(member.topics) for member in hidden.members] == [[]]
    scene.allow_all()
    scene.done("LeaveGroup", pb.LeaveGroupRequest(group=scene.group, member_id=scene.member()))
    scene.done("DeleteTopic", pb.DeleteTopicRequest(name=scene.topic))
    scene.allow(scene.named(READ_GROUP))
    assert list(scene.done("DescribeGroup", request).positions) == []


@pytest.mark.parametrize("at", BOTH)
@pytest.mark.parametrize("method", ["Commit", "CommitAll", "ResetGroup", "CommitTransaction"])
def test_a_position_in_one_topic_is_not_set_under_the_name_of_another(scene: Scene, method: str) -> None:
    secret = scene.outcome("DescribeTopic", pb.DescribeTopicRequest(name=scene.topic)).uuid
    scene.done("ResetGroup", pb.ResetGroupRequest(group=scene.group, positions=[advance(scene)]))
    group, hidden = scene.group, scene.topic
    scene.renew()
    scene.allow(scene.named(READ), Need("read", "group", group), Need("write", "group", group))
    disguised = pb.Advance(topic=scene.topic, topic_uuid=secret, offset=2)
    requests = {
        "Commit": pb.CommitRequest(group=group, positions=[disguised]),
        "CommitAll": pb.CommitAllRequest(commits=[pb.CommitRequest(group=group, positions=[disguised])]),
        "ResetGroup": pb.ResetGroupRequest(group=group, positions=[disguised]),
        "CommitTransaction": pb.CommitTransactionRequest(group=group, inputs=[disguised]),
    }
    with pytest.raises(hw.InvalidConfiguration, match="uuid of another topic") as caught:
        scene.outcome(method, requests[method])
    assert hidden not in str(caught.value)
    scene.allow_all()
    described = scene.done("DescribeGroup", pb.DescribeGroupRequest(group=group))
    assert [position.offset for position in described.positions] == [1]


@pytest.mark.parametrize("at", BOTH)
def test_lists_have_what_the_caller_may_know_of(scene: Scene) -> None:
    scene.done("Commit", commit(scene))

    def listed() -> list[bool]:
        metadata = scene.outcome("GetMetadata", pb.GetMetadataRequest())
        named = scene.outcome("GetMetadata", pb.GetMetadataRequest(topics=[scene.topic]))
        topics = scene.outcome("ListTopics", pb.ListTopicsRequest(internal=True))
        statistics = scene.done("GetStatistics", pb.GetStatisticsRequest())
        groups = scene.done("ListGroups", pb.ListGroupsRequest())
        return [
            scene.topic in [topic.topic.name for topic in metadata.topics],
            scene.topic in [topic.topic.name for topic in named.topics],
            scene.topic in [topic.name for topic in topics.topics],
            scene.topic in [topic.name for topic in statistics.topics],
            scene.group in groups.groups,
        ]

    for right in RIGHTS:
        scene.allow(Need(right, "topic", scene.topic))
        assert listed() == [True, True, True, True, False]
        scene.allow(Need(right, "group", scene.group))
        assert listed() == [False, False, False, False, True]
    scene.allow(READ_BROKER, ADMIN_BROKER)
    assert listed() == [False] * 5
