"""A cluster of real processes, whose brokers are killed: nothing that was acknowledged is lost, doubled or moved."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater.cluster.internal import number_of
from headwater.core.names import GROUPS
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.cluster.cluster import ANSWERED, ClusterProcesses
from tests.cluster.crew import TOPIC, Crew
from tests.faults.violation import Violation
from tests.support.broker import fetch, frame_of, refusal
from tests.support.certificates import Authority, needs_openssl
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.patience import Patience, has_finished, wait_until
from tests.support.processes import hw as command

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """One for all tests here."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWATER_STEWARD_INTERVAL", "0.5s")
        environment.setenv("HEADWATER_STEWARD_SCRUB_INTERVAL", "0s")
        with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as processes:
            yield processes


@pytest.fixture
def cluster(running: ClusterProcesses) -> ClusterProcesses:
    """As good as a new one."""
    running.mend()
    return running


def _send(store: hw.Store, value: bytes) -> None:
    with store.producer("numbers") as out:
        out.send(value)


def _until_readable(store: hw.Store, values: list[bytes]) -> None:
    partition = store.topic("numbers").partition(0)

    def readable() -> list[bytes | None]:
        return [record.value for record in partition.records()]

    wait_until(lambda: readable() == values, readable)


def violations(*parts: Iterator[Violation]) -> list[str]:
    """Return the violations that a crew has found."""
    return [str(violation) for part in parts for violation in part]


def test_a_killed_leader_takes_nothing_with_it(cluster: ClusterProcesses) -> None:
    crew = Crew(cluster)
    assert not violations(crew.go_on())
    for _ in range(3):
        leader = cluster.partition(TOPIC).leader
        cluster.kill(leader)
        assert not violations(crew.go_on())
        cluster.begin(leader)
        cluster.wait(TOPIC, in_sync={0, 1, 2})
    assert not violations(crew.check())


def test_clients_leave_a_stopped_leader_when_there_is_another_one(cluster: ClusterProcesses) -> None:
    """They wait for no answer of it, though they would for ten minutes: other brokers and unanswered pings tell."""
    patient = hw.ClientConfig(attempt_timeout=600, timeout=600)
    with hw.open(cluster.address, client=patient) as store:
        store.create_topic("numbers")
        leader = cluster.wait("numbers", in_sync={0, 1, 2}).leader
        with store.producer("numbers") as out, store.consumer("numbers", group="g", auto_ack=True) as inbox:
            out.send(b"before")
            out.flush()
            assert [record.value for record in inbox.poll(timeout=300)] == [b"before"]

            def go_on() -> None:
                out.send(b"after")
                out.flush()
                while [record.value for record in inbox.poll(timeout=1)] != [b"after"]:
                    pass
                inbox.poll()
                inbox.commit()

            cluster.pause(leader)
            working = threading.Thread(target=go_on)
            working.start()
            try:
                cluster.end_lease(leader)
                assert has_finished(working, 120)
            finally:
                cluster.go_on(leader)
                working.join()
        assert [position.offset for position in store.group("g").committed().values()] == [2]


def test_a_topic_that_is_compacted_is_so_everywhere(cluster: ClusterProcesses) -> None:
    """A broker that was away when much was removed catches up, leads, and knows what was sent before."""
    with hw.open(cluster.address) as store:
        store.create_topic("users", compact=True, segment_bytes=4096, compression="none")
        state = cluster.wait("users", in_sync={0, 1, 2})
        away = next(broker for broker in range(3) if broker != state.leader)
        cluster.kill(away)
        expected: dict[bytes | None, bytes | None] = {}
        with store.producer("users") as out:
            for number in range(300):
                key, value = b"user %d" % (number % 7), None if number % 7 == 3 else b"%d" % number + b"." * 90
                expected[key] = value
                out.send(value, key=key)
                if number % 10 == 9:
                    out.flush()
        topic = store.topic("users")
        wait_until(lambda: len(list(topic.partition(0).records())) <= 100, "nothing is compacted")
        cluster.begin(away)
        cluster.wait("users", in_sync={0, 1, 2})
        for broker in range(3):
            assert _newest(cluster, broker, "users") == expected
        cluster.kill(*({0, 1, 2} - {away}))
        cluster.begin(*({0, 1, 2} - {away}))
        cluster.wait("users", in_sync={0, 1, 2})
        assert {record.key: record.value for record in topic.partition(0).records()} == expected


def test_delete_markers_go_and_nothing_that_they_deleted_comes_back(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """Not with a replica that was away, not with one whose disk is as it was long ago, and not into a backup."""

    def send(*pairs: tuple[bytes, bytes | None]) -> None:
        with store.producer("carts") as out:
            for key, value in (*pairs, *((b"filler", b"." * 900) for _ in range(9))):
                out.send(value, key=key)
                out.flush()

    def until(broker: int, expected: dict[bytes | None, bytes | None]) -> None:
        wait_until(
            lambda: _newest(cluster, broker, "carts") == expected, lambda: (broker, _newest(cluster, broker, "carts"))
        )

    def backed_up() -> dict[bytes | None, bytes | None]:
        assert command("backup", tmp_path / "backup", "--store", cluster.address).returncode == 0
        with hw.open(tmp_path / "backup" / "store") as copy:
            return {record.key: record.value for record in copy.topic("carts").partition(0).records()}

    with hw.open(cluster.address) as store:
        store.create_topic("carts", compact=True, segment_bytes=4096, compression="none", delete_grace=0)
        state = cluster.wait("carts", in_sync={0, 1, 2})
        old, away = (broker for broker in range(3) if broker != state.leader)
        send((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
        filler: dict[bytes | None, bytes | None] = {b"filler": b"." * 900}
        assert backed_up() == {b"a": b"1", b"b": b"1", b"c": b"1", **filler}
        assert cluster.brokers.pop(old).terminate() == 0
        shutil.copytree(cluster.files(old, "carts"), tmp_path / "old")
        cluster.begin(old)
        cluster.wait("carts", in_sync={0, 1, 2})
        send((b"a", None))
        for broker in range(3):
            until(broker, {b"b": b"1", b"c": b"1", **filler})

        cluster.kill(away)
        send((b"b", None))
        cluster.wait("carts", in_sync={state.leader, old})
        time.sleep(2)
        until(state.leader, {b"b": None, b"c": b"1", **filler})  # one replica has not heard of it
        cluster.begin(away)
        cluster.wait("carts", in_sync={0, 1, 2})
        send()
        for broker in range(3):
            until(broker, {b"c": b"1", **filler})
        assert backed_up() == {b"c": b"1", **filler}

        cluster.kill(old)
        shutil.rmtree(cluster.files(old, "carts"))
        shutil.copytree(tmp_path / "old", cluster.files(old, "carts"))
        cluster.begin(old)
        cluster.wait("carts", in_sync={0, 1, 2})
        until(old, {b"c": b"1", **filler})
        assert "is copied anew: delete markers that it lacks are gone" in cluster.log(old)


def _newest(cluster: ClusterProcesses, broker: int, topic: str) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in cluster.stored(broker, topic)}


def test_a_leader_that_is_told_to_stop_lets_others_lead_first(cluster: ClusterProcesses) -> None:
    crew = Crew(cluster)
    assert not violations(crew.go_on())
    for _ in range(2):
        leader = cluster.wait(TOPIC, in_sync={0, 1, 2}).leader
        assert cluster.brokers.pop(leader).terminate() == 0
        assert not violations(crew.go_on())
        cluster.begin(leader)
    assert not violations(crew.check())


def test_all_brokers_killed_at_once_lose_nothing(cluster: ClusterProcesses) -> None:
    crew = Crew(cluster)
    assert not violations(crew.go_on())
    cluster.kill(0, 1, 2)
    cluster.begin(2, 0, 1)
    assert not violations(crew.go_on(), crew.check())


def test_a_paused_leader_is_replaced_and_does_no_harm_when_it_wakes(cluster: ClusterProcesses) -> None:
    crew = Crew(cluster, partitions=1, writers=1)
    assert not violations(crew.go_on())
    leader = cluster.wait(TOPIC, in_sync={0, 1, 2}).leader
    other = (leader + 1) % 3
    with cluster.brokers[leader].connected() as stub:
        cluster.pause(leader)
        request = pb.ProduceRequest(topic=TOPIC, partition=0, frames=[frame_of(b"late 0")])
        late = stub.Produce.future(request, timeout=ANSWERED)
        cluster.end_lease(leader)
        cluster.wait(TOPIC, in_sync={0, 1, 2} - {leader}, at=other)
        assert not violations(crew.go_on())
        cluster.go_on(leader)
        assert late.exception(timeout=ANSWERED) is not None, "who was replaced acknowledges nothing"
    cluster.wait(TOPIC, in_sync={0, 1, 2}, at=other)
    assert not violations(crew.go_on(), crew.check())


def test_readers_see_what_is_acknowledged_and_no_more(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers")
        _send(store, b"one")
    state = cluster.partition("numbers")
    others = [broker for broker in range(3) if broker != state.leader]
    with cluster.brokers[state.leader].connected() as stub:
        for broker in others:
            cluster.pause(broker)
        request = pb.ProduceRequest(topic="numbers", partition=0, frames=[frame_of(b"two")], acks=pb.ACKS_LEADER)
        assert stub.Produce(request, timeout=ANSWERED).base_offset == 1
        answer = stub.Fetch(fetch("numbers", as_records=True)).partitions[0]
        assert [record.value for record in answer.records] == [b"one"]
        assert answer.log_end == 1
        for broker in others:
            cluster.go_on(broker)
        answer = stub.Fetch(fetch("numbers", offset=1, as_records=True, max_wait_ms=30_000)).partitions[0]
        assert [record.value for record in answer.records] == [b"two"]


def test_who_asks_for_no_acknowledgement_waits_for_no_replica_and_goes_on_with_another_leader(
    cluster: ClusterProcesses,
) -> None:
    with hw.open(cluster.address, client=hw.ClientConfig(acks="none")) as store:
        store.create_topic("numbers")
        out = store.producer("numbers", batch_records=1)
        out.send(b"one")
        out.flush()
        leader = cluster.wait("numbers", in_sync={0, 1, 2}).leader
        others = [broker for broker in range(3) if broker != leader]
        for broker in others:
            cluster.pause(broker)
        receipt = out.send(b"two")
        out.flush()  # the leader alone answers
        assert receipt.done
        with pytest.raises(hw.StoreError, match="acks"):
            _ = receipt.offset
        for broker in others:
            cluster.go_on(broker)
        _until_readable(store, [b"one", b"two"])  # so all have it by now: otherwise it may go with the leader
        cluster.kill(leader)
        out.send(b"three")
        out.close()
        _until_readable(store, [b"one", b"two", b"three"])


def test_plain_records_go_to_their_leaders_by_way_of_any_broker(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", partitions=3)
        _send(store, b"first")
        records = [pb.Record(key=b"%d" % number, value=b"%d" % number) for number in range(30)]
        for broker in range(3):
            with cluster.brokers[broker].connected() as stub:
                positions = stub.Produce(pb.ProduceRequest(topic="numbers", records=records), timeout=ANSWERED).places
            assert {position.partition for position in positions} == {0, 1, 2}
            info = store.describe_topic("numbers")
            for record, position in zip(records, positions, strict=True):
                partition = store.partition(info, position.partition)
                (stored,) = partition.records(position.offset, position.offset + 1)
                assert (stored.key, stored.value) == (record.key, record.value)


def test_a_plain_member_reads_on_at_one_broker_while_its_coordinator_dies(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", partitions=3)
        with store.producer("numbers") as out:
            for number in range(30):
                out.send(b"%d" % number, partition=number % 3)
        store.group("plain").describe()  # now there are partitions for groups
    with cluster.brokers[0].connected() as stub:
        (groups,) = stub.GetMetadata(pb.GetMetadataRequest(topics=[GROUPS]), timeout=ANSWERED).topics
    coordinator = cluster.partition(GROUPS, number_of("plain", len(groups.partitions))).leader
    received: list[int] = []
    with cluster.brokers[(coordinator + 1) % 3].connected() as stub:
        joined = stub.JoinGroup(pb.JoinGroupRequest(group="plain", topics=["numbers"]), timeout=ANSWERED)
        member = {"group": "plain", "member_id": joined.member_id}
        patience = Patience(ANSWERED)
        while len(received) < 30:
            assert not patience.exhausted(), received
            polled = stub.Poll(pb.PollRequest(**member, max_records=4, max_wait_ms=1000), timeout=ANSWERED)
            for partition in polled.partitions:
                received += [int(record.value) for record in partition.records]
                done = pb.Advance(topic="numbers", partition=partition.partition, offset=partition.next_offset)
                refused = stub.Commit(pb.CommitRequest(**member, positions=[done]), timeout=ANSWERED).refused
                assert not refused
            if len(received) >= 8 and coordinator in cluster.brokers:
                cluster.kill(coordinator)
        stub.Unsubscribe(pb.LeaveGroupRequest(**member), timeout=ANSWERED)
    assert sorted(received) == list(range(30)), "each once, for everything was committed before the next poll"


def test_a_topic_made_at_one_broker_is_there_at_all_and_so_is_its_end(cluster: ClusterProcesses) -> None:
    with hw.open(f"hw://{cluster.brokers[0].address}") as store:
        store.create_topic("numbers", partitions=2)
        with pytest.raises(hw.TopicExists):
            store.create_topic("numbers")
    for broker in (1, 2):
        with hw.open(f"hw://{cluster.brokers[broker].address}") as store:
            assert store.describe_topic("numbers").partitions == 2
    with hw.open(f"hw://{cluster.brokers[1].address}") as store:
        store.delete_topic("numbers")
        with pytest.raises(hw.UnknownTopic):
            store.describe_topic("numbers")
    paths = [cluster.directory / f"broker{broker}" / "numbers" for broker in range(3)]
    wait_until(lambda: not any(path.exists() for path in paths), "the records of a deleted topic stay")


def test_a_follower_that_was_away_for_longer_than_records_are_kept_catches_up(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", segment_bytes=4096, retention_bytes=8192)
        _send(store, b"first")
        away = next(broker for broker in range(3) if broker != cluster.partition("numbers").leader)
        cluster.kill(away)
        with store.producer("numbers") as out:
            for number in range(60):
                out.send(b"%d" % number * 200)
                out.flush()
        partition = store.partition(store.describe_topic("numbers"), 0)
        wait_until(lambda: partition.bounds().start > 0, "nothing is deleted")
        cluster.begin(away)
        cluster.wait("numbers", in_sync={0, 1, 2})
        _send(store, b"last")
        end = partition.bounds().end
        expected = [(record.offset, record.value) for record in partition.records()]
    assert expected[-1] == (end - 1, b"last")
    for copy in cluster.wait_for_copies("numbers").values():  # which begin at the same offset, too
        assert copy == expected[-len(copy) :]


def test_a_damaged_leader_is_repaired_by_the_others_and_no_reader_sees_it(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers")
        with store.producer("numbers") as out:
            for number in range(50):
                out.send(b"%d" % number)
                out.flush()
    damaged = cluster.wait("numbers", in_sync={0, 1, 2}).leader
    (log,) = cluster.files(damaged, "numbers").glob("*.log")
    flip(log)
    with hw.open(cluster.address) as store:
        partition = store.partition(store.describe_topic("numbers"), 0)
        assert [record.value for record in partition.records()] == [b"%d" % number for number in range(50)]
        _send(store, b"after")
    assert cluster.wait("numbers", in_sync={0, 1, 2}).leader == damaged  # it need not stop to lead for that
    for copy in cluster.wait_for_copies("numbers").values():
        assert [value for _, value in copy] == [*(b"%d" % number for number in range(50)), b"after"]


def test_damage_that_nobody_reads_is_found_and_repaired(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", segment_bytes=4096)
        with store.producer("numbers") as out:
            for number in range(60):
                out.send(b"%d" % number * 200)
                out.flush()
    follower = (cluster.wait("numbers", in_sync={0, 1, 2}).leader + 1) % 3
    (expected,) = {tuple(copy) for copy in cluster.wait_for_copies("numbers").values()}
    log = min(cluster.files(follower, "numbers").glob("*.log"))
    flip(log)
    with pytest.raises(hw.FrameDamaged):
        cluster.records(follower, "numbers")
    wait_until(
        lambda: "is damaged here, and is fetched from another broker" in cluster.log(follower),
        "nobody has looked there",
    )
    cluster.wait("numbers", in_sync={0, 1, 2})
    for copy in cluster.wait_for_copies("numbers").values():
        assert tuple(copy) == expected


def flip(log: Path) -> None:
    """Change a bit in the middle of a file."""
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@needs_openssl
def test_brokers_and_etcd_trust_each_other_and_nobody_else(tmp_path: Path) -> None:
    """All of it over TLS, with certificates on both sides, also to etcd; following is for brokers alone."""
    authority = Authority(tmp_path)
    pair = authority.sign("broker", "IP:127.0.0.1")
    client = authority.sign("billing")
    (tmp_path / "access.yaml").write_text(
        'users:\n  billing:\n    topics: {"*": [read, write, admin]}\n    broker: read\n'
    )
    own = str(pair.certificate), str(pair.key), str(authority.certificate)
    flags = ["--access", str(tmp_path / "access.yaml")]
    for name, file in zip(("certificate", "key"), own, strict=False):
        flags += [f"--tls-{name}", file, f"--etcd-tls-{name}", file]
    flags += ["--tls-client-ca", own[2], "--etcd-tls-ca", own[2]]
    etcd_flags = ["--cert-file", own[0], "--key-file", own[1], "--trusted-ca-file", own[2], "--client-cert-auth"]
    etcd = EtcdServer(tmp_path / "etcd", *etcd_flags, scheme="https")
    secure: dict[str, Any] = {
        "tls_ca": str(authority.certificate),
        "tls_certificate": str(client.certificate),
        "tls_key": str(client.key),
    }
    with ClusterProcesses(tmp_path / "cluster", 3, *flags, etcd=etcd) as cluster:
        with hw.open(cluster.address, **secure) as store:
            store.create_topic("numbers")
            _send(store, b"one")
            partition = store.partition(store.describe_topic("numbers"), 0)
            assert [record.value for record in partition.records()] == [b"one"]
            held = [cluster.directory / f"broker{broker}" / "numbers" / "0" for broker in range(3)]
            assert all(path.is_dir() for path in held), (
                "every broker has a copy, which it can have from the leader alone"
            )
            cluster.kill(0)  # somebody else leads what it led, by what etcd says
            _send(store, b"two")
            assert [record.value for record in partition.records()] == [b"one", b"two"]
        credentials = grpc.ssl_channel_credentials(
            authority.certificate.read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
        )
        with grpc.secure_channel(cluster.brokers[1].address, credentials) as channel:
            code, error = refusal(lambda request: list(Stub(channel).Replicate(iter([request]))), pb.ReplicaFetch())
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert isinstance(error, hw.PermissionDenied)
        stranger = Authority(tmp_path, "another authority").sign("stranger")
        with pytest.raises(hw.BrokerUnavailable):
            hw.open(
                cluster.address,
                client=hw.ClientConfig(timeout=2.0),
                **secure | {"tls_certificate": str(stranger.certificate), "tls_key": str(stranger.key)},
            ).topics()
        with grpc.insecure_channel(str(etcd.address)) as plain, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(plain).result(timeout=1)
