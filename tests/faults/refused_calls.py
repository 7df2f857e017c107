"""Row 28: every public call when the system refuses what it needs, each refusal a real one.

The disk is full (a small file system), there is no descriptor left (a limit of the process), everything is forbidden
(another user), or the file system is read-only (a mount over the directory). A call may succeed, or raise an error of
our own. Once the system refuses nothing any more, the same call succeeds, others can go on at once, and what was
acknowledged is there.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from inspect import isdatadescriptor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import headwater as hw
from headwater.core.errors import HeadwaterError
from headwater.core.schema import Schema
from headwater.embedded.directory_group import DirectoryGroup
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition
from headwater.log.files.disk import TEMPORARY
from headwater.log.files.open_files import OPEN_FILES
from headwater.log.format.encode import encode
from headwater.log.recover.report import Damage
from headwater.streams.group import Commit
from headwater.streams.topic import TopicPartition
from tests.faults import Kind, Run, Unavailable, Violation, proof

MOUNT_BYTES: Final = 4 * 1024 * 1024
NOBODY: Final = 65534
TRIES: Final = 3
"""A producer tells of what failed in the background with its next call."""
VALUES: Final = [b"one", b"two", b"three"]
PLACE: Final = TopicPartition("t", 0)
NARROW: Final = pa.schema([pa.field("a", pa.int64())])
WIDE: Final = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])


def coordinator(store: DirectoryStore, name: str) -> DirectoryGroup:
    """The coordinator of a group, opened if need be."""
    found = store._coordinator(name)
    assert isinstance(found, DirectoryGroup)
    return found


class Scene:
    """A store in use: topics with records, a producer, a consumer with records in hand, and a transaction."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stack = ExitStack()
        self.store = DirectoryStore(root / "store")
        for name in ("t", "kept", "doomed", "compacted"):
            self.store.create_topic(name, segment_bytes=4096, compact=name == "compacted")
            with self.store.producer(name) as out:
                for value in VALUES:
                    out.send(value, key=value)
        self.store.create_topic("typed", schema=NARROW)
        self.store.create_topic("unused")
        self.topic = self.store.topic("t")
        self.info = self.topic.info
        self.key = (self.info.uuid, 0)
        self.partition = self.topic.partition(0)
        assert isinstance(self.partition, DirectoryPartition)
        self.log: DirectoryPartition = self.partition
        self.group = self.store.group("g")
        self.coordinator = coordinator(self.store, "g")
        self.out = self.store.producer("t")
        self.inbox = self.store.consumer("t", group="g")
        self.found = self.inbox.poll(timeout=30)
        assert self.inbox._member.id is not None
        self.member: str = self.inbox._member.id
        self.receipt = self.out.send(b"sent")
        self.out.flush()

    @cached_property
    def transaction(self) -> hw.Transaction:
        """One that has begun before the fault."""
        transaction = self.store.transaction()
        transaction.producer("t").send(b"in a transaction")
        return transaction

    @cached_property
    def staging(self) -> hw.Staging:
        """One that has a frame, from before the fault."""
        staging = self.store.stage()
        staging.append(self.info, 0, encode([b"staged"]))
        return staging

    def commits(self, offset: int) -> dict[TopicPartition, Commit]:
        """A position in the topic."""
        return {PLACE: Commit(self.key, offset)}

    def close(self) -> None:
        """End it, whatever has become of it."""
        for part in (self.inbox, self.out, self.store):
            with suppress(HeadwaterError):
                part.close()


def _transact(scene: Scene) -> None:
    with scene.store.transaction() as together:
        together.producer("t").send(b"together")


def _stage(scene: Scene) -> None:
    with scene.store.stage() as staging:
        staging.append(scene.info, 0, encode([b"staged"]))
        staged = staging.seal()
    scene.store.drop([staged])


def _adopt(scene: Scene) -> None:
    with scene.store.stage() as staging, scene.store.transaction() as together:
        staging.append(scene.info, 0, encode([b"staged"]))
        together.adopt(staging.seal())


def _mend(scene: Scene) -> None:
    for closed in scene.log.closed():
        scene.log.mending(closed).close()


def _consume(scene: Scene) -> None:
    with scene.store.consumer("kept", group="another") as inbox:
        for record in inbox.poll():
            inbox.ack(record)


def _process(scene: Scene) -> None:
    stop = threading.Event()
    stop.set()
    scene.inbox.process(lambda _: None, stop=stop)


def _commit(scene: Scene) -> None:
    for record in scene.inbox.poll(timeout=0) or scene.found:
        with suppress(hw.StaleMember):  # taken away meanwhile
            scene.inbox.ack(record)
    scene.inbox.commit()


def _close(scene: Scene) -> None:
    with suppress(hw.StoreClosed):
        scene.inbox.ack_range("t", 0, 0, 3)
    scene.inbox.close()


def _join(scene: Scene) -> None:
    member = scene.coordinator.join(["t"], lambda _: [PLACE])
    scene.coordinator.leave(member, lambda _: [])


def _decide(scene: Scene) -> None:
    with coordinator(scene.store, "decided").deciding(None, scene.commits(1), known={scene.key: 0}):
        pass


def _hold(scene: Scene) -> None:
    scene.inbox.hold()
    scene.inbox.let_go(committed=False)


def _send(scene: Scene) -> None:
    scene.out.send(b"more").wait(60)


def _steward(scene: Scene) -> None:
    with scene.store.steward():
        pass


def _open(scene: Scene) -> None:
    hw.open(scene.root / "store").close()


def _lead(scene: Scene) -> None:
    scene.log.lead(1)
    with scene.log.leading(1):
        scene.log.append(encode([b"x" * 3000]))


def _follow(scene: Scene) -> None:
    scene.log.follow(1)
    with scene.log.following(1):
        scene.log.copy([])


def _stewarding(scene: Scene) -> None:
    with scene.store.stewarding():
        pass


Call = Callable[[Scene], object]
_STORE: Final[dict[str, Call]] = {
    "alter_topic": lambda s: s.store.alter_topic("t", retention_segments=2),
    "close": lambda s: s.store.close(),
    "consumer": _consume,
    "create_topic": lambda s: s.store.create_topic("new"),
    "ensure_topic": lambda s: s.store.ensure_topic("newer"),
    "delete_topic": lambda s: s.store.delete_topic("doomed"),
    "describe_topic": lambda s: s.store.describe_topic("t"),
    "drop": lambda s: s.store.drop([]),
    "evolve_topic": lambda s: s.store.evolve_topic("typed", Schema(WIDE)),
    "group": lambda s: s.store.group("fresh").committed(),
    "group_names": lambda s: s.store.group_names(),
    "has_group": lambda s: s.store.has_group("g"),
    "holds_partition": lambda s: s.store.holds_partition(s.info, 0),
    "internal_topic": lambda s: s.store.internal_topic("__own"),
    "look_after": lambda s: s.store.look_after(s.out),
    "open_partitions": lambda s: s.store.open_partitions(),
    "partition": lambda s: s.store.topic("unused").partition(0).bounds(),
    "partition_statistics": lambda s: s.store.partition_statistics(s.info, 0),
    "producer": lambda s: s.store.producer("kept").close(),
    "producer_config": lambda s: s.store.producer_config(None, {}),
    "recall_topic": lambda s: s.store.recall_topic("t"),
    "roll_forward": lambda s: s.store.roll_forward(),
    "schema_by_id": lambda s: s.store.schema_by_id(s.info, s.info.schemas[0]),
    "schema_of": lambda s: s.store.schema_of(s.store.describe_topic("typed")),
    "stage": _stage,
    "statistics": lambda s: s.store.statistics(),
    "steward": lambda s: s.store.steward().run_once(),
    "stewarding": _stewarding,
    "sweep": lambda s: s.store.sweep(),
    "sync": lambda s: s.store.sync(),
    "sweep_stages": lambda s: s.store.sweep_stages(0),
    "topic": lambda s: s.store.topic("t"),
    "topic_names": lambda s: s.store.topic_names(),
    "topic_to_write": lambda s: s.store.topic_to_write(
        "newest", s.store.defaults.producer, create=True, partitions=2, replication=None
    ),
    "topics": lambda s: s.store.topics(),
    "transaction": _transact,
    "transactions": lambda s: s.store.transactions.answered("nothing"),
}
_TOPIC: Final[dict[str, Call]] = {
    "bounds": lambda s: s.topic.bounds(),
    "evolve": lambda s: s.store.topic("typed").evolve(WIDE),
    "info": lambda s: s.topic.info,
    "offset_of": lambda s: s.topic.offset_of("latest", 0),
    "partition": lambda s: s.topic.partition(0),
    "partitions": lambda s: s.topic.partitions(),
    "pinned": lambda s: s.topic.pinned(),
    "recent": lambda s: s.topic.recent(),
    "recent_info": lambda s: s.topic.recent_info,
    "scan": lambda s: s.topic.scan().read_all(),
    "schema": lambda s: s.topic.schema,
    "statistics": lambda s: s.topic.statistics(),
}
_PRODUCER: Final[dict[str, Call]] = {
    "close": lambda s: s.out.close(),
    "discard": lambda s: s.out.discard(),
    "flush": lambda s: s.out.flush(),
    "pending": lambda s: s.out.pending,
    "send": _send,
    "send_batch": lambda s: s.store.producer("typed").send_batch(pa.RecordBatch.from_pydict({"a": [1]}, NARROW)),
    "sync": lambda s: s.out.sync(),
    "write_overdue": lambda s: s.out.write_overdue(),
}
_CONSUMER: Final[dict[str, Call]] = {
    "ack": lambda s: s.inbox.ack(s.found[0]),
    "ack_range": lambda s: s.inbox.ack_range("t", 0, 0, 1),
    "assignment": lambda s: s.inbox.assignment(),
    "begin_anew": lambda s: s.inbox.begin_anew(),
    "claim": lambda s: s.inbox.claim(),
    "close": _close,
    "commit": _commit,
    "decided": lambda s: s.inbox.decided({}, 0),
    "give_back": lambda s: s.inbox.give_back([]),
    "group_name": lambda s: s.inbox.group_name,
    "hold": _hold,
    "lag": lambda s: s.inbox.lag(),
    "let_go": lambda s: s.inbox.let_go(committed=False),
    "patience": lambda s: s.inbox.patience(),
    "pause": lambda s: s.inbox.pause(),
    "poll": lambda s: s.inbox.poll(),
    "poll_batches": lambda s: s.inbox.poll_batches(),
    "process": _process,
    "ready": lambda s: s.inbox.ready(),
    "reset": lambda s: s.inbox.reset("earliest"),
    "resume": lambda s: s.inbox.resume(),
    "seek": lambda s: s.inbox.seek("t", 0, 0),
    "statistics": lambda s: s.inbox.statistics(),
    "store": lambda s: s.inbox.store,
}
_GROUP: Final[dict[str, Call]] = {
    "commit": lambda s: s.store.group("fresh").commit(None, s.commits(1)),
    "committed": lambda s: s.group.committed(),
    "describe": lambda s: s.group.describe(),
    "expire": lambda s: s.group.expire(1 << 62),
    "generation": lambda s: s.group.generation(),
    "position": lambda s: s.group.position(s.key),
    "reset": lambda s: s.group.reset(s.commits(1)),
}
_COORDINATOR: Final[dict[str, Call]] = {
    "acquire": lambda _: None,  # the lock, which all of these take
    "abandon_in_child": lambda _: None,  # for forked children
    "carry_out": lambda s: coordinator(s.store, "fresh").carry_out(s.commits(1), 1),
    "clamp": lambda s: s.coordinator.clamp(s.commits(0)),
    "close": lambda s: coordinator(s.store, "fresh").close(),
    "commit": lambda s: coordinator(s.store, "fresh").commit(None, s.commits(1)),
    "committed": lambda s: s.coordinator.committed(),
    "deciding": _decide,
    "describe": lambda s: s.coordinator.describe(),
    "expire": lambda s: s.coordinator.expire(1 << 62),
    "expire_unused": lambda s: s.coordinator.expire_unused(lambda _: True),
    "generation": lambda s: s.coordinator.generation(),
    "generation_file": lambda s: s.coordinator.generation_file,
    "join": _join,
    "leave": lambda s: s.coordinator.leave(s.member, lambda _: []),
    "position": lambda s: s.coordinator.position(s.key),
    "prune": lambda s: s.coordinator.prune(set(), lambda _: True),
    "release": lambda _: None,
    "reset": lambda s: s.coordinator.reset(s.commits(1)),
    "rest": lambda s: s.coordinator.rest(),
    "rebalance": lambda s: s.coordinator.rebalance(s.member, lambda _: [PLACE], 300),
    "touch": lambda s: s.coordinator.touch(s.member),
}
_TRANSACTION: Final[dict[str, Call]] = {
    "abort": lambda s: s.transaction.abort(),
    "adopt": _adopt,
    "commit": lambda s: s.transaction.commit() if s.transaction.state == "open" else _transact(s),
    "generation": lambda s: s.transaction.generation,
    "look_after": lambda s: s.transaction.look_after(s.store.producer("kept")),
    "producer": lambda s: s.transaction.producer("kept").send(b"more"),
    "appender": lambda s: s.transaction.appender,
}
_STEWARD: Final[dict[str, Call]] = {
    "run_forever": lambda _: None,  # until a signal comes; `start` does the same in a thread
    "run_once": lambda s: s.store.steward().run_once(),
    "start": _steward,
    "stop": lambda s: s.store.steward().stop(),
}
_STAGING: Final[dict[str, Call]] = {
    "append": lambda s: s.staging.append(s.info, 0, encode([b"more"])),
    "discard": lambda s: s.staging.discard(),
    "seal": _stage,
}
_RECEIPT: Final[dict[str, Call]] = {
    "count": lambda s: s.receipt.count(0),
    "done": lambda s: s.receipt.done,
    "index": lambda s: s.receipt.index(s.receipt[0]),
    "number": lambda s: s.receipt.number,
    "offset": lambda s: s.receipt.offset,
    "outcome": lambda s: s.receipt.outcome,
    "partition": lambda s: s.receipt.partition,
    "wait": lambda s: s.receipt.wait(),
}
_PARTITION: Final[dict[str, Call]] = {
    "append": lambda s: s.log.append(encode([b"x" * 3000])),  # the second one rolls
    "append_all": lambda s: [_told(one) for one in s.log.append_all([[encode([b"x" * 3000])]] * 2)],
    "bounds": lambda s: s.log.bounds(),
    "close": lambda s: s.log.close(),
    "closed": lambda s: s.log.closed(),
    "compact": lambda s: s.store.topic("compacted").partition(0).compact(),
    "config": lambda s: s.log.config,
    "configure": lambda s: s.log.configure(s.log.config),
    "copy": lambda s: s.log.copy([]),
    "delete_before": lambda s: s.log.delete_before(1),
    "follow": lambda s: s.log.follow(1),
    "following": _follow,
    "forget_damage": lambda s: s.log.forget_damage(0, 1),
    "frames": lambda s: list(s.log.frames()),
    "guard": lambda s: s.log.guard,
    "lead": lambda s: s.log.lead(1),
    "leading": _lead,
    "learn_producers": lambda s: s.log.learn_producers(s.log.producers_at(s.log.bounds().end)),
    "locate": lambda s: s.log.locate(0, 1, 1000),
    "mending": _mend,
    "missing": lambda s: s.log.missing(),
    "note_damage": lambda s: s.log.note_damage(Damage(s.log.path, 8, 0, 1, "a try")),
    "offset_at": lambda s: s.log.offset_at(0),
    "producers_at": lambda s: s.log.producers_at(0),
    "read": lambda s: s.log.read(0),
    "records": lambda s: list(s.log.records()),
    "recovery_reports": lambda s: s.log.recovery_reports,
    "restart": lambda s: s.log.restart(s.log.bounds().end + 1, s.log.producers_at(s.log.bounds().end)),
    "remove_expired": lambda s: s.log.remove_expired(1),
    "retain": lambda s: s.log.retain(),
    "roll": lambda s: (s.log.append(encode([b"x"])), s.log.roll()),
    "scan": lambda s: s.log.scan().read_all(),
    "schemas": lambda s: s.log.schemas,
    "segments": lambda s: s.log.segments(),
    "statistics": lambda s: s.log.statistics(),
    "sync": lambda s: s.log.sync(),
    "truncate": lambda s: s.log.truncate(1),
    "writer_sequence": lambda s: s.log.writer_sequence(bytes(16)),
}
_TABLES: Final[dict[type, dict[str, Call]]] = {
    hw.Store: _STORE,
    hw.Topic: _TOPIC,
    hw.Producer: _PRODUCER,
    hw.Consumer: _CONSUMER,
    hw.Group: _GROUP,
    DirectoryGroup: _COORDINATOR,
    hw.Transaction: _TRANSACTION,
    hw.Steward: _STEWARD,
    hw.Staging: _STAGING,
    hw.Receipt: _RECEIPT,
    DirectoryPartition: _PARTITION,
}
CALLS: Final[dict[str, Call]] = {"open": _open} | {
    f"{kind.__name__}.{name}": call for kind, table in _TABLES.items() for name, call in table.items()
}


def missing() -> list[str]:
    """Public names of the classes that the table has no call for."""
    return [
        f"{kind.__name__}.{name}"
        for kind, table in _TABLES.items()
        for name in dir(kind)
        if not name.startswith("_")
        and name not in table
        and (callable(getattr(kind, name)) or isdatadescriptor(getattr(kind, name)))
    ]


def _told(outcome: object) -> object:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


# The calls that the system refuses.


@contextmanager
def _full(root: Path) -> Iterator[None]:
    ballast = root / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def _without_descriptors(_: Path) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _forbidden(root: Path) -> Iterator[None]:
    root.chmod(0o700)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def _read_only(root: Path) -> Iterator[None]:
    aside = root.with_name("aside")  # made read-only before it is put in place: then nobody has opened anything of it
    aside.mkdir()
    with ExitStack() as stack:
        _mount("--bind", root, aside)
        stack.callback(_unmount, aside)
        _mount("-o", "remount,bind,ro", aside)
        _mount("--bind", aside, root)
        stack.callback(_unmount, root)
        yield


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


FAULTS: Final[dict[str, Callable[[Path], Any]]] = {
    "a full disk": _full,
    "no descriptors": _without_descriptors,
    "no permission": _forbidden,
    "a read-only file system": _read_only,
}
CASES: Final = [(call, fault) for call in CALLS for fault in FAULTS]


@proof(
    row=28,
    title="every public call on a full disk, without descriptors, without permission, on a read-only file system",
    runs=None,
    cases=lambda _: len(CASES),
    quick=24,
    timeout=300.0,
)
def refused_calls(run: Run) -> Iterator[Violation]:
    """Make a call under a fault, and again without it; then look whether everybody can go on."""
    if os.geteuid() != 0:
        raise Unavailable("root is needed to mount file systems and to become somebody else")
    for name in missing():
        yield Violation(Kind.CRASH, f"{name} is public, and nothing is known of it under faults")
    name, fault = CASES[run.number]
    with _mounted(run.directory / "small") as root:
        warm = Scene(root / "warm")
        with suppress(HeadwaterError):
            CALLS[name](warm)  # what is imported when it is first needed is needed here
        warm.close()
        yield from _refuse(Scene(root / "scene"), name, fault, run)


def _refuse(scene: Scene, name: str, fault: str, run: Run) -> Iterator[Violation]:
    call, told = CALLS[name], f"{name} under {fault}"
    _ = scene.transaction, scene.staging
    if run.random.random() < 0.5:
        OPEN_FILES.relieve()
    refused = False
    with FAULTS[fault](scene.root):
        try:
            call(scene)
        except HeadwaterError:
            refused = True
        except Exception as error:  # noqa: BLE001 - that is what it is about
            yield Violation(Kind.CRASH, f"{told} raises {error!r}", _traceback(error))
            refused = True
    if refused:
        yield from _again(scene, call, told)
    yield from _go_on(scene, told)


def _again(scene: Scene, call: Call, told: str) -> Iterator[Violation]:
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            call(scene)
            return
        except Exception as error:  # noqa: BLE001 - told below
            failure = error
    assert failure is not None
    yield Violation(Kind.BLOCKED, f"after {told} it still raises {failure!r}", _traceback(failure))


def _go_on(scene: Scene, told: str) -> Iterator[Violation]:
    """Others find everything, send, and read in the name of the same group, though nobody has closed anything."""
    with DirectoryStore(scene.root / "store") as store:
        if [record.value for record in store.topic("kept").recent(3)][:1] != VALUES[:1]:
            yield Violation(Kind.LOST_WRITE, f"after {told} records of another topic are gone")
        with suppress(HeadwaterError):
            scene.inbox.close()
        with store.producer("t") as out:
            out.send(b"last")
        with store.consumer("t", group="g") as inbox:
            while b"last" not in [record.value for record in inbox.poll(timeout=1)]:
                continue
        scene.close()
        store.steward().run_once()
    for leftover in scene.root.rglob(f"*{TEMPORARY}"):
        yield Violation(Kind.CRASH, f"after {told} {leftover.relative_to(scene.root)} is left")


def _traceback(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


@contextmanager
def _mounted(path: Path) -> Iterator[Path]:
    path.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "headwater", path)
    try:
        for name in ("warm", "scene"):
            (path / name).mkdir()
        yield path
    finally:
        _unmount(path)
