"""Hostile requests: mutated messages and random bytes at the port of a broker, which goes on serving.

The broker is a process of its own. Each request is a good one with things wrong in it: fields that a message of its
kind cannot sensibly have, frames that are well checksummed and bad, bytes that are no message at all. Whatever comes is
answered or refused; an answer that says INTERNAL is a finding, and so is a broker that grows, hangs or ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headwater.core.schema import Schema
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import METHODS, Method
from tests.faults import Kind, Run, Violation, proof
from tests.faults.mutation import mutate, seeds
from tests.support.broker import BrokerProcess, fetch, frame_of
from tests.support.patience import Stopwatch

BATCH: Final = 1000
PATIENCE: Final = 30.0
"""The deadline of a call. On a busy machine one that is over says nothing."""
LONG: Final = 600.0
HEADROOM: Final = 256 << 20
FRAMES: Final = seeds()
WITNESS: Final = "witness"
_NUMBERS: Final = (0, 1, 2, 3, 7, 255, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1)
_TEXTS: Final = ("", "t", "typed", "g", "nowhere", "__groups", "../../etc", "t/0", "x" * 300, "*", "[", "\0", "é", "%s")
_OPTIONS: Final = ("sync", "retention_age", "compact", "max_frame_bytes", "interval", "unknown")
_VALUES: Final = ("", "0", "never", "true", "1GiB", "-1", "1e999", "NaN", "x" * 1000)


def _good(member_id: str, token: bytes) -> dict[str, Message]:
    """A good request for each method."""
    place = pb.TopicPartition(topic="t", partition=0)
    advance = pb.Advance(topic="t", offset=0)
    typed = Schema(FRAMES[5].schema.payload).serialize()
    staged = pb.Staged(token=token, records=1)
    member: dict[str, Any] = {"group": "g", "member_id": member_id}
    record = pb.Record(key=b"k", value=b"v", headers={"h": b"1"}, timestamp_ns=1)
    where = pb.FetchRequest(
        positions=[pb.FetchPosition(partition=place, offset=0), pb.FetchPosition(partition=place, timestamp_ns=5)],
        max_bytes=1000,
        as_records=True,
    )
    portion = pb.StagedPortion(number=1, ranges=[pb.StageRange(epoch=1, start=0, end=1)])
    stages = pb.StagesRequest(partition=place, writer=bytes(16), portions=[portion])
    return {
        "GetMetadata": pb.GetMetadataRequest(topics=["t"]),
        "CreateTopic": pb.CreateTopicRequest(name="new", partitions=1, schema=typed, options={"sync": "never"}),
        "ListTopics": pb.ListTopicsRequest(internal=True),
        "DescribeTopic": pb.DescribeTopicRequest(name="t"),
        "AlterTopic": pb.AlterTopicRequest(name="typed", partitions=1, options={"sync": "never"}),
        "EvolveTopic": pb.EvolveTopicRequest(name="typed", schema=typed),
        "DeleteTopic": pb.DeleteTopicRequest(name="new"),
        "GetSchema": pb.GetSchemaRequest(topic="typed"),
        "OpenProducer": pb.OpenProducerRequest(producer_id=bytes(16), secret=bytes(16)),
        "Produce": pb.ProduceRequest(topic="t", partition=0, records=[record], frames=[frame_of(b"x")]),
        "ProduceStream": pb.ProduceRequest(topic="t", partition=0, frames=[frame_of(b"x")]),
        "Sync": pb.SyncRequest(partitions=[place]),
        "Fetch": where,
        "Subscribe": where,
        "FetchStream": where,
        "Consume": pb.ConsumeRequest(partition=place, max_records=2, max_bytes=1000),
        "ListOffsets": pb.ListOffsetsRequest(partitions=[place], timestamp_ns=1),
        "ListGroups": pb.ListGroupsRequest(),
        "DescribeGroup": pb.DescribeGroupRequest(group="g"),
        "JoinGroup": pb.JoinGroupRequest(group="g", topics=["t*", "typed"], session_timeout_ms=100),
        "SettleGroup": pb.SettleGroupRequest(**member, max_poll_interval_ms=1000, holding=[place]),
        "Heartbeat": pb.HeartbeatRequest(**member),
        "LeaveGroup": pb.LeaveGroupRequest(**member),
        "Unsubscribe": pb.LeaveGroupRequest(**member),
        "Commit": pb.CommitRequest(**member, positions=[advance]),
        "CommitAll": pb.CommitAllRequest(commits=[pb.CommitRequest(**member, positions=[advance])]),
        "ResetGroup": pb.ResetGroupRequest(group="g", positions=[advance]),
        "ExpireGroup": pb.ExpireGroupRequest(group="g", before_ns=1 << 62),
        "Poll": pb.PollRequest(**member, max_records=2),
        "Stage": pb.StageRequest(topic="t", partition=0, frames=[frame_of(b"x")]),
        "DropStages": pb.DropStagesRequest(staged=[staged]),
        "CommitTransaction": pb.CommitTransactionRequest(staged=[staged], writer="w", sequence=1, request_id=bytes(16)),
        "RollForward": pb.RollForwardRequest(dry_run=True),
        "GetStatistics": pb.GetStatisticsRequest(topics=["t"]),
        "ListSegments": pb.ListSegmentsRequest(partition=place),
        "WorkOnPartition": pb.WorkOnPartitionRequest(partition=place, work=pb.PARTITION_WORK_RETAIN, offset=0),
        "RunSteward": pb.RunStewardRequest(dry_run=True, options={"interval": "1s"}),
        "GetStatus": pb.GetStatusRequest(),
        "ElectLeader": pb.ElectLeaderRequest(partition=place, broker=1, dry_run=True),
        "PlanMoves": pb.PlanMovesRequest(remove=[1]),
        "BeginMoves": pb.BeginMovesRequest(moves=[pb.Move(topic="t", replicas=[1], to=[2], revision=1)], remove=[1]),
        "CancelMoves": pb.CancelMovesRequest(remove=[1]),
        "ListMoves": pb.ListMovesRequest(),
        "GetAccess": pb.GetAccessRequest(),
        "SetAccess": pb.SetAccessRequest(users=[pb.AccessUser(name="u", rights='{"broker": ["read"]}')]),
        "Replicate": pb.ReplicaFetch(topic_uuid=bytes(16), replica=1, incarnation=1, epoch=1, max_bytes=1000),
        "ReadReplica": pb.ReadReplicaRequest(topic_uuid=bytes(16), end=1 << 40, max_bytes=1000),
        "ListLogEnds": pb.ListLogEndsRequest(partitions=[place]),
        "ListReaders": pb.ListReadersRequest(),
        "HoldStages": stages,
        "ApplyStages": stages,
        "ListUndone": pb.ListUndoneRequest(partition=place),
    }


@proof(
    row=22,
    title="hostile requests: mutated messages and random bytes at a broker's port",
    runs=1000,
    quick=1,
    timeout=300,
)
def hostile_requests(run: Run) -> Iterator[Violation]:
    """Send a batch of bad requests to a new broker, then look whether it is as it was."""
    flags = ("--no-steward", "--max-wait", "100ms")  # many ask to wait for records for as long as a number can say
    with BrokerProcess(run.directory / "store", *flags, log=run.directory / "broker.log") as broker:
        with broker.connected() as stub:
            for name in (WITNESS, "t"):
                stub.CreateTopic(pb.CreateTopicRequest(name=name))
            stub.CreateTopic(pb.CreateTopicRequest(name="typed", schema=FRAMES[5].schema.serialize()))
            stub.Produce(pb.ProduceRequest(topic=WITNESS, records=[pb.Record(value=b"before")]))
            member_id = stub.JoinGroup(pb.JoinGroupRequest(group="g", topics=["t"])).member_id
            staged = stub.Stage(iter([pb.StageRequest(topic="t", frames=[frame_of(b"x")])]))
        good = _good(member_id, staged.token)
        before = broker.resident_bytes()
        with grpc.insecure_channel(broker.address) as channel:
            for number in range(BATCH):
                yield from _send(channel, good, Random(f"{run.random.getrandbits(64)}/{number}"))
                if broker.process.poll() is not None:
                    break
        _noise(broker.address, run.random)
        yield from _looked_at(broker, before)
    yield from _logged(run.directory / "broker.log")


def _send(channel: grpc.Channel, good: dict[str, Message], random: Random) -> Iterator[Violation]:
    method = random.choice(METHODS)
    content = _mutated(good[method.name], random)
    kind: Callable[..., Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.request_streams, method.response_streams]
    request = iter([content] * random.choice((1, 2))) if method.request_streams else content
    stopwatch = Stopwatch()
    try:
        answer = kind(method.path)(request, timeout=_patience(method))
        if method.response_streams:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as failure:
        waited = stopwatch.seconds()
        if failure.code() is grpc.StatusCode.INTERNAL and "broker has failed" in str(failure.details()):
            yield Violation(Kind.CRASH, f"{method.name} of {content[:500].hex()}: {failure.details()}")
        elif failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED and waited >= PATIENCE / 2:
            yield Violation(Kind.HANG, f"{method.name} of {content[:500].hex()} was not answered in {waited:.0f} s")


def _patience(method: Method) -> float:
    """A subscription waits for records for as long as its caller likes."""
    return 0.2 if method.response_streams else PATIENCE


def _mutated(message: Message, random: Random) -> bytes:
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(random.choice((1, 1, 2, 3))):
        _change(changed, random)
    content: bytes = changed.SerializeToString()
    return content if random.random() < 0.7 else _damaged(content, random)


def _change(message: Message, random: Random) -> None:
    """One field, of the message or of one in it, becomes something else."""
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = random.choice(fields)
    held = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        held.clear()
        for _ in range(random.randrange(4)):
            with suppress(TypeError):  # a map of bytes takes no text
                held[random.choice(_OPTIONS)] = random.choice(_VALUES)
    elif field.is_repeated:
        _change_repeated(held, field, random)
    elif field.message_type is not None:
        _change(held, random)
    elif random.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, random))


def _change_repeated(held: Any, field: FieldDescriptor, random: Random) -> None:
    match random.randrange(4):
        case 0:
            del held[:]
        case 1 if len(held):
            held.extend([held[0]] * random.choice((1, 10, 300)))
        case 2 if field.message_type is not None and len(held):
            _change(held[random.randrange(len(held))], random)
        case _ if field.message_type is None:
            held.append(_value(field, random))


def _value(field: FieldDescriptor, random: Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_STRING:
            return random.choice(_TEXTS)
        if field.name == "frames" and random.random() < 0.9:
            return mutate(FRAMES, random).frame
        return random.choice((b"", bytes(16), random.randbytes(16), random.randbytes(random.randrange(400))))
    if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM):
        number = random.choice(_NUMBERS) * random.choice((1, 1, -1))
        return number if kind == FieldDescriptor.CPPTYPE_INT64 else number % 100
    bits = 64 if kind == FieldDescriptor.CPPTYPE_UINT64 else 32
    return random.choice(_NUMBERS) % (1 << bits)


def _damaged(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.randint(1, 3)):
        position = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0 if position < len(changed):
                changed[position] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
            case 1:
                changed[position:position] = random.randbytes(random.choice((1, 4, 100)))
            case 2:
                del changed[position : position + random.choice((1, 4, 100))]
            case _:
                changed += random.randbytes(random.choice((1, 1000, 20_000)))
    return bytes(changed)


def _noise(address: str, random: Random) -> None:
    """Bytes that are no HTTP/2, or only begin like it, on connections that are left alone or broken off."""
    host, port = address.split(":")
    for number in range(30):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as one:
            start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
            one.sendall(start + random.randbytes(random.choice((0, 9, 100, 5000))))


def _looked_at(broker: BrokerProcess, before: int) -> Iterator[Violation]:
    """Check that the broker is still there, serves what it has, and is no larger than it may be."""
    if broker.process.poll() is not None:
        yield Violation(Kind.CRASH, f"the broker has ended with {broker.process.returncode}")
        return
    grown = broker.resident_bytes() - before
    if grown > HEADROOM:
        yield Violation(Kind.CRASH, f"the broker has grown by {grown >> 20} MiB")
    with broker.connected() as stub:
        try:
            stub.Produce(pb.ProduceRequest(topic=WITNESS, records=[pb.Record(value=b"after")]), timeout=LONG)
            answer = stub.Fetch(fetch(WITNESS, as_records=True), timeout=LONG)
        except grpc.RpcError as failure:
            yield Violation(Kind.BLOCKED, f"the broker serves no more: {failure}")
            return
    found = [record.value for record in answer.partitions[0].records]
    if found != [b"before", b"after"]:
        yield Violation(Kind.LOST_WRITE, f"what others have is {found}")


def _logged(log: Path) -> Iterator[Violation]:
    text = log.read_text()
    if "Traceback" in text:
        yield Violation(Kind.CRASH, "the broker's log has a traceback", text)
