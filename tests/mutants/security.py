"""Mutants of what keeps callers within their rights and bounds."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CHECKS: Final = (
    (
        "administration-get-access",
        "rpc/administration",
        '-> pb.AccessRules:  # noqa: ARG002\n        call.check("admin", "broker", BROKER)',
        "GetAccess",
    ),
    (
        "administration-set-access",
        "rpc/administration",
        '-> pb.SetAccessResponse:\n        call.check("admin", "broker", BROKER)',
        "SetAccess",
    ),
    (
        "administration-elect-leader",
        "rpc/administration",
        '        call.check("admin", "topic", partition.topic)',
        "ElectLeader",
    ),
    (
        "administration-begin-moves",
        "rpc/administration",
        '-> pb.BeginMovesResponse:\n        call.check("admin", "broker", BROKER)',
        "BeginMoves",
    ),
    (
        "peers-list-readers",
        "rpc/peers",
        "-> pb.ListReadersResponse:  # noqa: ARG002\n        _check_broker(call)",
        "ListReaders",
    ),
    ("peers-hold-stages", "rpc/peers", "-> pb.HoldStagesResponse:\n        _check_broker(call)", "HoldStages"),
    ("peers-apply-stages", "rpc/peers", "-> pb.ApplyStagesResponse:\n        _check_broker(call)", "ApplyStages"),
    ("peers-list-undone", "rpc/peers", "-> pb.ListUndoneResponse:\n        _check_broker(call)", "ListUndone"),
    (
        "groups-describe-group",
        "rpc/groups",
        '-> pb.Group:\n        call.check("read", "group", request.group)',
        "DescribeGroup",
    ),
    (
        "groups-join-group",
        "rpc/groups",
        '-> pb.JoinGroupResponse:\n        call.check("read", "group", request.group)',
        "JoinGroup",
    ),
    ("groups-join-group-2", "rpc/groups", '            call.check("read", "topic", name)', "JoinGroup"),
    (
        "groups-settle-group",
        "rpc/groups",
        '-> pb.SettleGroupResponse:\n        call.check("read", "group", request.group)',
        "SettleGroup",
    ),
    (
        "groups-heartbeat",
        "rpc/groups",
        '-> pb.HeartbeatResponse:\n        call.check("read", "group", request.group)',
        "Heartbeat",
    ),
    (
        "groups-leave-group",
        "rpc/groups",
        '-> pb.LeaveGroupResponse:\n        call.check("read", "group", request.group)',
        "LeaveGroup",
    ),
    (
        "groups-commit",
        "rpc/groups",
        '-> pb.CommitResponse:\n        call.check("read", "group", request.group)',
        "Commit",
    ),
    (
        "groups-commit-2",
        "rpc/groups",
        '        call.check("read", "group", request.group)\n        _check_topics(request.positions, call)',
        "Commit",
    ),
    (
        "groups-reset-group",
        "rpc/groups",
        '        call.check("read" if request.clamp else "write", "group", request.group)',
        "ResetGroup",
    ),
    (
        "groups-reset-group-2",
        "rpc/groups",
        (
            '        call.check("read" if request.clamp else "write", "group", request.group)\n'
            "        _check_topics(request.positions, call)"
        ),
        "ResetGroup",
    ),
    ("groups-expire-group", "rpc/groups", '        call.check("write", "group", request.group)', "ExpireGroup"),
    ("groups-poll", "rpc/groups", '-> pb.PollResponse:\n        call.check("read", "group", request.group)', "Poll"),
    ("groups-poll-2", "rpc/groups", '            call.check("read", "topic", topic)', "Poll"),
    ("groups-poll-3", "groups", "                check(partition.topic)", "Poll"),
    ("operations-get-statistics", "rpc/operations", '            call.check("read", "topic", name)', "GetStatistics"),
    (
        "operations-list-segments",
        "rpc/operations",
        '        call.check("read", "topic", request.partition.topic)',
        "ListSegments",
    ),
    (
        "operations-work-on-partition",
        "rpc/operations",
        '        call.check("admin", "topic", request.partition.topic)',
        "WorkOnPartition",
    ),
    ("operations-run-steward", "rpc/operations", '        call.check("admin", "broker", BROKER)', "RunSteward"),
    ("operations-get-status", "rpc/operations", '        call.check("read", "broker", BROKER)', "GetStatus"),
    ("producing-accept", "rpc/producing", '        call.check("write", "topic", message.topic)', "Produce"),
    ("producing-sync", "rpc/producing", '            call.check("write", "topic", named.topic)', "Sync"),
    ("reading-check", "rpc/reading", '        call.check("read", "topic", position.partition.topic)', "Fetch"),
    ("reading-check-2", "rpc/reading", '        call.check("read", "group", read.group)', "Fetch"),
    (
        "peers-list-log-ends",
        "rpc/peers",
        '-> pb.ListLogEndsResponse:\n        call.check("read", "broker", BROKER)',
        "ListLogEnds",
    ),
    ("reading-list-offsets", "rpc/reading", '            call.check("read", "topic", named.topic)', "ListOffsets"),
    (
        "topics-create-topic",
        "rpc/topics",
        (
            "    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.Topic:\n"
            '        call.check("admin", "topic", request.name)'
        ),
        "CreateTopic",
    ),
    ("topics-describe-topic", "rpc/topics", "        call.check_seen(request.name)", "DescribeTopic"),
    (
        "topics-alter-topic",
        "rpc/topics",
        (
            "    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.Topic:\n"
            '        call.check("admin", "topic", request.name)'
        ),
        "AlterTopic",
    ),
    (
        "topics-delete-topic",
        "rpc/topics",
        '-> pb.DeleteTopicResponse:\n        call.check("admin", "topic", request.name)',
        "DeleteTopic",
    ),
    ("topics-get-schema", "rpc/topics", "        call.check_seen(request.topic)", "GetSchema"),
    (
        "transactions-stage",
        "rpc/transactions",
        '                call.check("write", "topic", message.topic)',
        "Stage",
    ),
    ("transactions-written", "rpc/transactions", '    call.check("write", "topic", topic)', "DropStages"),
    ("transactions-alone-authorise", "standalone/transactions", "            authorise(topic)", "DropStages"),
    ("transactions-cluster-authorise", "clustered/transactions", "                authorise(topic)", "DropStages"),
    (
        "transactions-commit-transaction",
        "rpc/transactions",
        (
            "-> pb.CommitTransactionResponse:\n        if request.group:\n"
            '            call.check("read", "group", request.group)'
        ),
        "CommitTransaction",
    ),
    (
        "transactions-commit-transaction-2",
        "rpc/transactions",
        '                call.check("read", "topic", position.topic)',
        "CommitTransaction",
    ),
    (
        "transactions-commit-transaction-3",
        "rpc/transactions",
        '            call.check("write", "group", request.writer)',
        "CommitTransaction",
    ),
    (
        "transactions-roll-forward",
        "rpc/transactions",
        '-> pb.RollForwardResponse:\n        if request.group:\n            call.check("read", "group", request.group)',
        "RollForward",
    ),
    (
        "transactions-roll-forward-2",
        "rpc/transactions",
        '            call.check("admin", "broker", BROKER)',
        "RollForward",
    ),
)
"""Checks of rights, by name, module, text that ends in the check, and the RPC that is served without it."""


def _unchecked(name: str, module: str, old: str, rpc: str) -> Mutant:
    """The mutant that leaves out a check: the last line of the text."""
    before, line = old[: old.rfind("\n") + 1], old[old.rfind("\n") + 1 :]
    indent = line[: len(line) - len(line.lstrip())]
    without = f"{indent}if False:" if line.endswith(":") else f"{indent}pass"
    return Mutant(
        name=name,
        promise=f"{rpc} is for callers alone that have every right it needs",
        file=f"headwater/broker/{module}.py",
        old=old,
        new=before + without,
        killers=(f"tests/broker/test_rpc_rights.py -k {rpc}",),
    )


MUTANTS: tuple[Mutant, ...] = (
    *(_unchecked(*check) for check in _CHECKS),
    Mutant(
        name="carried-as-a-broker",
        promise="a call that is carried to another broker has the rights of its user there",
        file="headwater/broker/rpc/call.py",
        old="            if not isinstance(user, bytes):\n",
        new="            if True:\n",
        killers=("tests/cluster/test_plain.py -k name_of_its_user",),
    ),
    Mutant(
        name="user-of-a-stranger",
        promise="only another broker can call in the name of a user",
        file="headwater/broker/rpc/call.py",
        old="if isinstance(password, str) and core.backend.is_peer(password):",
        new="if any(key == USER_KEY for key, _ in metadata) or core.backend.is_peer(str(password)):",
        killers=("tests/cluster/test_plain.py -k name_of_its_user",),
    ),
    Mutant(
        name="positions-unfiltered",
        promise="a group shows no positions in topics that the caller does not see",
        file="headwater/broker/rpc/groups.py",
        old="        if not call.sees_everything:\n",
        new="        if False:\n",
        killers=("tests/broker/test_rpc_rights.py -k group_shows",),
    ),
    Mutant(
        name="uuid-of-another-topic",
        promise="a position is set in the topic whose name was checked",
        file="headwater/broker/group_rules.py",
        old="                if names.get(uuid, topic) != topic:\n",
        new="                if False:\n",
        killers=("tests/broker/test_rpc_rights.py -k position_in_one_topic",),
    ),
    Mutant(
        name="groups-unlisted",
        promise="groups are listed for those alone who may know of them",
        file="headwater/broker/rpc/groups.py",
        old='[name for name in names if call.sees(name, "group")]',
        new="list(names)",
        killers=("tests/broker/test_rpc_rights.py -k lists_have",),
    ),
    Mutant(
        name="tokens-blocked-for-all",
        promise="wrong tokens block the address alone that they come from",
        file="headwater/broker/security/guard.py",
        old="self._verifier.user(_token_in(authorization), source_of_peer(peer))",
        new='self._verifier.user(_token_in(authorization), "")',
        killers=("tests/broker/test_access.py -k right_one_out",),
    ),
    Mutant(
        name="tokens-hashed-in-the-loop",
        promise="a token that is being hashed holds up nobody else",
        file="headwater/broker/core.py",
        old="        if not self.access.hashes(credentials.metadata):\n",
        new="        if True:\n",
        killers=("tests/broker/test_security.py -k few_tokens_hashed",),
    ),
    Mutant(
        name="logins-blocked-for-all",
        promise="wrong logins block the address alone that they come from",
        file="headwater/console/server.py",
        old='source_of(request.client.host) if request.client is not None else ""',
        new='""',
        killers=("tests/console/test_abuse.py -k launch_tokens",),
    ),
    Mutant(
        name="connections-unbounded",
        promise="half-open connections keep nobody out of the console",
        file="headwater/serving/connections.py",
        old="            if len(self._sources[source]) > self._most_of_source:\n",
        new="            if False:\n",
        killers=("tests/serving/test_sources.py",),
    ),
    Mutant(
        name="heads-waited-for",
        promise="a request whose head does not come is not waited for",
        file="headwater/console/serving.py",
        old="        if state in (h11.IDLE, h11.SEND_BODY) and not",
        new="        if state in (h11.SEND_BODY,) and not",
        killers=("tests/console/test_abuse.py -k trickle",),
    ),
    Mutant(
        name="sessions-never-idle",
        promise="a session ends when nobody uses it",
        file="headwater/console/sessions.py",
        old="now - session.seen > _IDLE_SECONDS or ",
        new="",
        killers=("tests/console/test_abuse.py -k sessions_end",),
    ),
    Mutant(
        name="sessions-never-old",
        promise="a session ends by its age",
        file="headwater/console/sessions.py",
        old=" or now - session.began > _LONGEST_SECONDS",
        new="",
        killers=("tests/console/test_abuse.py -k sessions_end",),
    ),
    Mutant(
        name="streams-outlive-sessions",
        promise="a stream of the console ends with its session",
        file="headwater/console/server.py",
        old='            raise StoreClosed("the console")\n        self._session(request)\n',
        new='            raise StoreClosed("the console")\n',
        killers=("tests/console/test_abuse.py -k stream_ends",),
    ),
    Mutant(
        name="bytes-of-cancelled-streams",
        promise="a stream that is cancelled while a request is accepted gives its bytes back",
        file="headwater/broker/rpc/producing.py",
        old="                except BaseException:\n                    hold.give_back()\n                    raise\n",
        new="",
        killers=(
            "tests/broker/test_producing.py::test_a_stream_that_is_cancelled_while_a_request_is_accepted_gives_its_bytes_back",
        ),
    ),
)
