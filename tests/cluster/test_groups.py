"""Groups of a cluster, where they are kept: in a topic that only brokers write, short, and read again when need be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import pytest

import headwater as hw
from headwater import Store, TopicPartition
from headwater.broker import Broker
from headwater.broker.clustered.coordinator import Coordination
from headwater.broker.clustered.groups import CoordinatedGroups
from headwater.client.connection import Connection
from headwater.client.credentials import Credentials
from headwater.client.leaders import Leaders
from headwater.cluster import internal
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.internal import InternalTopics, number_of
from headwater.cluster.node import ClusterNode
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.core.errors import NotLeader, WriteFailed
from headwater.core.names import GROUPS
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.streams.group import Commit
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.backends import SharedCluster, clustered
from tests.support.broker import ANY_PORT
from tests.support.etcd_server import needs_etcd
from tests.support.patience import Patience, wait_until

pytestmark = needs_etcd
PATIENCE = 300.0
EIGHT_DAYS_NS = 8 * 24 * 3600 * 10**9
_R = TypeVar("_R")


@pytest.fixture
def store(cluster: SharedCluster) -> Iterator[Store]:
    with cluster.open(REAL_CLOCK) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def commit(store: Store, group: str, offset: int, partition: int = 0) -> None:
    """As who is no member, and the first there: the generation stays at 0."""
    key = (store.describe_topic("orders").uuid, partition)
    commits = {TopicPartition("orders", partition): Commit(key, offset)}
    assert store.group(group).commit(None, commits, known={key: 0}) == frozenset()


def position(store: Store, group: str, partition: int = 0) -> int | None:
    committed = store.group(group).position((store.describe_topic("orders").uuid, partition))
    return None if committed is None else committed.offset


class Keeper:
    """The broker that coordinates a group, and its coordination."""

    def __init__(self, cluster: SharedCluster, group: str) -> None:
        for broker in cluster.brokers:
            groups = clustered(broker).group_home
            coordination = groups.coordinators.all().get(number_of(group, 2))
            if coordination is not None:
                self.groups: CoordinatedGroups = groups
                self.coordination: Coordination = coordination
                self._loop = broker._loop
                return
        raise AssertionError(f"nobody coordinates {group!r}")

    def fail(self) -> None:
        """As if its disk had failed: the log is read again, by another coordinator. Returns when that one serves."""

        async def fail() -> None:
            self.coordination._log._fail([], OSError("no disk"))

        self.run(fail())
        wait_until(lambda: self._kept_by() not in (None, self.coordination))

    def _kept_by(self) -> Coordination | None:
        return self.groups.coordinators.all().get(self.coordination.partition.partition)

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """Do something in the broker's event loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


def starts(cluster: SharedCluster, group: str) -> list[int]:
    """Return the start of the log of the group's partition, at each broker."""
    offsets = []
    for broker in cluster.brokers:
        info = broker._store.describe_topic(GROUPS)
        offsets.append(broker._store.partition(info, number_of(group, info.partitions)).bounds().start)
    return offsets


def test_any_broker_knows_all_groups(cluster: SharedCluster, store: Store) -> None:
    names = [f"group-{number}" for number in range(6)]
    for number, name in enumerate(names):
        commit(store, name, number)
    assert store.group_names() == names
    for broker in cluster.brokers:
        with hw.open(f"hw://{broker.address}") as other:
            assert other.group_names() == names
            assert [position(other, name) for name in names] == list(range(6))


def test_the_log_of_groups_stays_short_and_says_everything(cluster: SharedCluster, store: Store) -> None:
    commit(store, "quiet", 7)
    commit(store, "busy", 0)
    keeper = Keeper(cluster, "busy")
    keeper.coordination._enough = 2000
    before = starts(cluster, "busy")
    for offset in range(100):
        commit(store, "busy", offset)
    wait_until(
        lambda: all(now > was for now, was in zip(starts(cluster, "busy"), before, strict=True))
    )  # followers too
    keeper.fail()
    assert (position(store, "busy"), position(store, "quiet")) == (99, 7)
    commit(store, "busy", 100)


def test_a_write_that_failed_is_told_to_nobody_as_done(
    cluster: SharedCluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, "g", 1)
    keeper = Keeper(cluster, "g")
    partition = keeper.coordination._log._local.log.partition
    real = partition.append
    failed: list[bool] = []

    def fail_once(frames: Any) -> Any:
        if not failed:
            failed.append(True)
            raise WriteFailed(partition.path, OSError(28, "No space left on device"))
        return real(frames)

    monkeypatch.setattr(partition, "append", fail_once)
    commit(store, "g", 2)  # the client asks again, and is heard by who has read the log anew
    assert failed
    assert position(store, "g") == 2
    assert Keeper(cluster, "g").coordination is not keeper.coordination


def test_members_outlive_their_coordinator(cluster: SharedCluster, store: Store) -> None:
    with store.consumer("orders", group="g") as inbox:
        assert len(inbox.assignment()) == 2
        before = store.group("g").describe()
        Keeper(cluster, "g").fail()
        assert store.group("g").describe() == before
        inbox._assignment.refresh_soon()
        assert len(inbox.assignment()) == 2


def test_nobody_but_brokers_makes_or_writes_what_is_theirs(store: Store) -> None:
    commit(store, "g", 1)
    out = store.producer(GROUPS)
    out.send(b"value", key=b"key")
    with pytest.raises(hw.PermissionDenied):
        out.close()
    for work in (
        lambda: store.delete_topic(GROUPS),
        lambda: store.alter_topic(GROUPS, partitions=50),
        lambda: store.internal_topic("__txn"),
    ):
        with pytest.raises(hw.InvalidConfiguration, match="the cluster's own"):
            work()


def test_what_groups_have_not_read_is_known_to_who_deletes(cluster: SharedCluster, store: Store) -> None:
    uuid = store.describe_topic("orders").uuid
    commit(store, "slow", 3)
    commit(store, "quick", 9)
    commit(store, "quick", 4, partition=1)
    groups = Keeper(cluster, "slow").groups
    readers = Keeper(cluster, "slow").run(groups.readers())
    assert readers is not None
    assert (readers[uuid, 0], readers[uuid, 1]) == (3, 4)


def test_who_is_cut_off_does_not_tell_what_groups_have_read(
    cluster: SharedCluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, "g", 3)
    keeper = Keeper(cluster, "g")
    another = next(broker for broker in cluster.brokers if clustered(broker).group_home is not keeper.groups)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(internal, "_CONFIRMING", 0.2)
        cut_off.setattr(keeper.coordination._log._local.replica, "confirmed", lambda mark: False)  # noqa: ARG005
        assert keeper.run(keeper.groups.readers()) is None
        assert another._loop is not None
        asked = asyncio.run_coroutine_threadsafe(clustered(another).group_home.readers(), another._loop)
        assert asked.result(PATIENCE) is None
    assert keeper.run(keeper.groups.readers()) is not None


class DelayedCalls(Clock):
    """The clocks in eight days, or now, if the wall clock has only been set ahead."""

    def __init__(self, *, jumped: bool) -> None:
        self._jumped = jumped

    def now_ns(self) -> int:
        return super().now_ns() + EIGHT_DAYS_NS

    def boot_ns(self) -> int:
        return super().boot_ns() + (0 if self._jumped else EIGHT_DAYS_NS)


@pytest.mark.parametrize("living", [False, True])
def test_a_group_that_nobody_needs_is_forgotten(cluster: SharedCluster, store: Store, living: bool) -> None:
    commit(store, "g", 3)
    member = store.consumer("orders", group="g") if living else None
    keeper = Keeper(cluster, "g")
    kept = keeper.coordination

    def clean() -> None:
        keeper.groups._clean(kept, kept.rules.groups["g"])

    keeper.run(kept.do(clean))
    assert store.group_names() == ["g"]
    cluster.clock.present = DelayedCalls(jumped=True)
    keeper.run(kept.do(clean))
    assert store.group_names() == ["g"], "nobody forgets it because the wall clock was set"
    cluster.clock.present = DelayedCalls(jumped=False)
    keeper.run(kept.do(clean))
    assert store.group_names() == (["g"] if living else [])
    if member is not None:
        member.close()


def test_a_directory_with_groups_of_its_own_joins_no_cluster(tmp_path: Path) -> None:
    with hw.open(tmp_path) as alone:
        alone.create_topic("orders")
        alone.consumer("orders", group="g").close()
    with DirectoryStore(tmp_path, exclusive=True) as kept:
        broker = Broker(kept, listen=ANY_PORT, etcd=lambda: Etcd([Address("127.0.0.1", 1)]))
        with pytest.raises(hw.StoreError, match="move that directory away"):
            broker.start()


class PlainMember:
    """A member that knows nothing but how to call a broker."""

    def __init__(self, cluster: SharedCluster, group: str) -> None:
        addresses = [broker.address for broker in cluster.brokers]
        self._leaders = Leaders(Connection(addresses, hw.ClientConfig(), Credentials()))
        self._coordinator = self._leaders.coordinator(GROUPS, group)
        joined = self._coordinator.call("JoinGroup", pb.JoinGroupRequest(group=group, topics=["orders"]))
        self._member = {"group": group, "member_id": joined.member_id}

    def poll(self, most: int = 0) -> list[bytes]:
        """Poll, and commit what has come."""
        answer = self._coordinator.call("Poll", pb.PollRequest(**self._member, max_records=most, max_wait_ms=1_000))
        values: list[bytes] = []
        for polled in answer.partitions:
            values += [record.value for record in polled.records]
            advance = pb.Advance(topic=polled.topic, partition=polled.partition, offset=polled.next_offset)
            self._coordinator.call("Commit", pb.CommitRequest(**self._member, positions=[advance]))
        assert not most or len(values) <= most
        return values

    def poll_until(self, count: int, most: int = 0) -> list[bytes]:
        """Poll until so many records have come."""
        values: list[bytes] = []
        patience = Patience(PATIENCE)
        while len(values) < count:
            assert not patience.exhausted()
            values += self.poll(most)
        return values

    def close(self) -> None:
        self._leaders.connection.close()


def test_plain_records_are_polled_from_whoever_coordinates(cluster: SharedCluster, store: Store) -> None:
    with store.producer("orders") as out:
        for number in range(40):
            out.send(b"%d" % number, partition=number % 2)
    member = PlainMember(cluster, "plain")
    values = member.poll_until(15, most=3)
    Keeper(cluster, "plain").fail()  # the next coordinator knows what is committed, and nothing else
    values += member.poll_until(40 - len(values), most=7)
    for partition in range(2):
        assert [value for value in values if int(value) % 2 == partition] == [
            b"%d" % value for value in range(partition, 40, 2)
        ]
        assert position(store, "plain", partition) == 20
    assert member.poll() == []
    for broker in cluster.brokers:
        log = broker._store.partition(broker._store.describe_topic("orders"), 0)
        if log.bounds().end == 20:  # one that is behind follows
            log.delete_before(20)
    with store.producer("orders") as out:
        out.send(b"late", partition=0)
    assert member.poll_until(1) == [b"late"]
    other = PlainMember(cluster, "other")  # which begins where the log does by now
    assert len(other.poll_until(21)) == 21
    member.close()
    other.close()


def test_a_broker_that_has_heard_of_no_cluster_yet_makes_no_topic() -> None:
    nothing: Any = SimpleNamespace(membership=SimpleNamespace(view=SimpleNamespace(topics={}, members={})))
    with pytest.raises(NotLeader):
        asyncio.run(InternalTopics(nothing, 3, None).ensure(GROUPS))


def test_a_broker_that_has_not_joined_its_cluster_yet_answers_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules and its signatures would be its own: what it gave out then, nobody would know again."""
    ended = threading.Event()

    async def start(_: ClusterNode, address: str) -> None:
        while not ended.is_set():
            await asyncio.sleep(0.01)
        raise hw.StoreError(f"{address} joins no cluster today")

    monkeypatch.setattr(ClusterNode, "start", start)
    with DirectoryStore(tmp_path, exclusive=True) as kept, ThreadPoolExecutor(1) as pool:
        broker = Broker(kept, BrokerConfig(broker_id=1), listen=ANY_PORT, etcd=lambda: Etcd([Address("127.0.0.1", 1)]))
        starting = pool.submit(broker.start)
        try:
            wait_until(lambda: broker._address is not None)
            with grpc.insecure_channel(str(broker.address)) as channel:
                for method, request in ((Stub(channel).OpenProducer, pb.OpenProducerRequest()),
                                        (Stub(channel).ListGroups, pb.ListGroupsRequest())):  # fmt: skip
                    with pytest.raises(grpc.RpcError, match="has not joined its cluster yet") as refused:
                        method(request, wait_for_ready=True, timeout=300)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            ended.set()
        with pytest.raises(hw.StoreError, match="joins no cluster today"):
            starting.result(300)
