"""The gRPC service: every RPC with its types and the method that serves it.

The table names each method, so the type checker sees one that is missing or takes other messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import grpc

from headwater.broker.core import Core
from headwater.broker.rpc.administration import AdministrationMethods
from headwater.broker.rpc.call import Call, Calls
from headwater.broker.rpc.carrying import CallCarrier, Carrying
from headwater.broker.rpc.groups import GroupMethods
from headwater.broker.rpc.operations import OperationMethods
from headwater.broker.rpc.peers import PeerMethods
from headwater.broker.rpc.producing import ProducingMethods
from headwater.broker.rpc.reading import ReadingMethods
from headwater.broker.rpc.topics import TopicMethods
from headwater.broker.rpc.transactions import TransactionMethods
from headwater.broker.waiting_reader import WaitingReader
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import Framed
from headwater.wire.service import METHODS, handler

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class Rpc(NamedTuple):
    """An RPC, and the method that serves it."""

    name: str
    request_streams: bool
    response_streams: bool
    method: Callable[[Any, Call], Any]


def unary(
    name: str,
    request: type[_Request],  # noqa: ARG001 - for the type checker
    answer: type[_Answer],  # noqa: ARG001
    method: Callable[[_Request, Call], Awaitable[_Answer]],
) -> Rpc:
    """An RPC with one request and one answer."""
    return Rpc(name, False, False, method)


def server_stream(
    name: str,
    request: type[_Request],  # noqa: ARG001
    answer: type[_Answer],  # noqa: ARG001
    method: Callable[[_Request, Call], AsyncGenerator[_Answer]],
) -> Rpc:
    """An RPC with one request and a stream of answers."""
    return Rpc(name, False, True, method)


def client_stream(
    name: str,
    request: type[_Request],  # noqa: ARG001
    answer: type[_Answer],  # noqa: ARG001
    method: Callable[[AsyncIterator[_Request], Call], Awaitable[_Answer]],
) -> Rpc:
    """An RPC with a stream of requests and one answer."""
    return Rpc(name, True, False, method)


def both_streams(
    name: str,
    request: type[_Request],  # noqa: ARG001
    answer: type[_Answer],  # noqa: ARG001
    method: Callable[[AsyncIterator[_Request], Call], AsyncGenerator[_Answer]],
) -> Rpc:
    """An RPC with a stream of requests and a stream of answers."""
    return Rpc(name, True, True, method)


def rpcs(core: Core, peers: PeerMethods, carrier: CallCarrier) -> tuple[Rpc, ...]:
    """All RPCs of the service, in the order of its description."""
    backend = core.backend
    carrying = Carrying(core, carrier)
    topics = TopicMethods(core)
    producing = ProducingMethods(core, carrying)
    here = WaitingReader(core.runtime, backend.logs, backend.groups)
    reading = ReadingMethods(core, here, carrier.reader(here))
    groups = GroupMethods(core, carrying)
    transactions = TransactionMethods(core)
    operations = OperationMethods(core)
    administration = AdministrationMethods(core)

    def carried(
        name: str,
        request: type[_Request],
        answer: type[_Answer],
        method: Callable[[_Request, Call], Awaitable[_Answer]],
    ) -> Rpc:
        """An RPC that another broker may have to answer."""
        return unary(name, request, answer, carrying.method(name, method))

    return (
        unary("GetMetadata", pb.GetMetadataRequest, pb.Metadata, topics.get_metadata),
        unary("CreateTopic", pb.CreateTopicRequest, pb.Topic, topics.create_topic),
        unary("ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse, topics.list_topics),
        unary("DescribeTopic", pb.DescribeTopicRequest, pb.Topic, topics.describe_topic),
        unary("AlterTopic", pb.AlterTopicRequest, pb.Topic, topics.alter_topic),
        unary("EvolveTopic", pb.EvolveTopicRequest, pb.Topic, topics.evolve_topic),
        unary("DeleteTopic", pb.DeleteTopicRequest, pb.DeleteTopicResponse, topics.delete_topic),
        unary("GetSchema", pb.GetSchemaRequest, pb.Schema, topics.get_schema),
        unary("OpenProducer", pb.OpenProducerRequest, pb.OpenProducerResponse, producing.open_producer),
        unary("Produce", Framed[pb.ProduceRequest], pb.ProduceResponse, producing.produce),
        both_streams("ProduceStream", Framed[pb.ProduceRequest], pb.ProduceResponse, producing.produce_stream),
        unary("Sync", pb.SyncRequest, pb.SyncResponse, producing.sync),
        unary("Fetch", pb.FetchRequest, bytes, reading.fetch),
        server_stream("Subscribe", pb.FetchRequest, bytes, reading.subscribe),
        both_streams("FetchStream", pb.FetchRequest, bytes, reading.fetch_stream),
        unary("Consume", pb.ConsumeRequest, pb.ConsumeResponse, reading.consume),
        unary("ListOffsets", pb.ListOffsetsRequest, pb.ListOffsetsResponse, reading.list_offsets),
        carried("ListGroups", pb.ListGroupsRequest, pb.ListGroupsResponse, groups.list_groups),
        carried("DescribeGroup", pb.DescribeGroupRequest, pb.Group, groups.describe_group),
        carried("JoinGroup", pb.JoinGroupRequest, pb.JoinGroupResponse, groups.join_group),
        carried("SettleGroup", pb.SettleGroupRequest, pb.SettleGroupResponse, groups.settle_group),
        carried("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse, groups.heartbeat),
        carried("LeaveGroup", pb.LeaveGroupRequest, pb.LeaveGroupResponse, groups.leave_group),
        carried("Unsubscribe", pb.LeaveGroupRequest, pb.LeaveGroupResponse, groups.leave_group),
        carried("Commit", pb.CommitRequest, pb.CommitResponse, groups.commit),
        unary("CommitAll", pb.CommitAllRequest, pb.CommitAllResponse, groups.commit_all),
        carried("ResetGroup", pb.ResetGroupRequest, pb.ResetGroupResponse, groups.reset_group),
        carried("ExpireGroup", pb.ExpireGroupRequest, pb.ExpireGroupResponse, groups.expire_group),
        carried("Poll", pb.PollRequest, pb.PollResponse, groups.poll),
        client_stream("Stage", Framed[pb.StageRequest], pb.Staged, transactions.stage),
        unary("DropStages", pb.DropStagesRequest, pb.DropStagesResponse, transactions.drop_stages),
        unary(
            "CommitTransaction",
            pb.CommitTransactionRequest,
            pb.CommitTransactionResponse,
            transactions.commit_transaction,
        ),
        unary("RollForward", pb.RollForwardRequest, pb.RollForwardResponse, transactions.roll_forward),
        unary("GetStatistics", pb.GetStatisticsRequest, pb.Statistics, operations.get_statistics),
        unary("ListSegments", pb.ListSegmentsRequest, pb.ListSegmentsResponse, operations.list_segments),
        unary("WorkOnPartition", pb.WorkOnPartitionRequest, pb.WorkOnPartitionResponse, operations.work_on_partition),
        unary("RunSteward", pb.RunStewardRequest, pb.RunStewardResponse, operations.run_steward),
        unary("GetStatus", pb.GetStatusRequest, pb.Status, operations.get_status),
        unary("ElectLeader", pb.ElectLeaderRequest, pb.ElectLeaderResponse, administration.elect_leader),
        unary("PlanMoves", pb.PlanMovesRequest, pb.Moves, administration.plan_moves),
        unary("BeginMoves", pb.BeginMovesRequest, pb.BeginMovesResponse, administration.begin_moves),
        unary("CancelMoves", pb.CancelMovesRequest, pb.CancelMovesResponse, administration.cancel_moves),
        unary("ListMoves", pb.ListMovesRequest, pb.Moves, administration.list_moves),
        unary("GetAccess", pb.GetAccessRequest, pb.AccessRules, administration.get_access),
        unary("SetAccess", pb.SetAccessRequest, pb.SetAccessResponse, administration.set_access),
        both_streams("Replicate", pb.ReplicaFetch, pb.ReplicaFetched, peers.replicate),
        unary("ListReaders", pb.ListReadersRequest, pb.ListReadersResponse, peers.list_readers),
        unary("ListLogEnds", pb.ListLogEndsRequest, pb.ListLogEndsResponse, peers.list_log_ends),
        unary("ReadReplica", pb.ReadReplicaRequest, pb.ReadReplicaResponse, peers.read_replica),
        unary("HoldStages", pb.StagesRequest, pb.HoldStagesResponse, peers.hold_stages),
        unary("ApplyStages", pb.StagesRequest, pb.ApplyStagesResponse, peers.apply_stages),
        unary("ListUndone", pb.ListUndoneRequest, pb.ListUndoneResponse, peers.list_undone),
    )


def service(core: Core, peers: PeerMethods, carrier: CallCarrier) -> grpc.GenericRpcHandler:
    """gRPC's handler for the service."""
    table = rpcs(core, peers, carrier)
    declared = [(method.name, method.request_streams, method.response_streams) for method in METHODS]
    assert [rpc[:3] for rpc in table] == declared, "the table has the RPCs of the description, in their order"
    calls = Calls(core)
    served = {
        rpc.name: (calls.streaming if rpc.response_streams else calls.unary)(rpc.name, rpc.method) for rpc in table
    }
    return handler(SimpleNamespace(**served))
