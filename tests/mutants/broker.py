"""Mutants of brokers and clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="commit-without-the-group",
        promise="a caller commits positions of a group only with the right to read it",
        file="headwater/broker/groups.py",
        old=(
            "    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:\n"
            '        call.check("read", "group", request.group)\n'
        ),
        new="    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="heartbeat-without-the-group",
        promise="a caller sends heartbeats to a group only with the right to read it",
        file="headwater/broker/groups.py",
        old=(
            "    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) ->"
            " pb.HeartbeatResponse:\n"
            '        call.check("read", "group", request.group)\n'
        ),
        new=("    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:\n"),
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="leave-without-the-group",
        promise="a caller takes members out of a group only with the right to read it",
        file="headwater/broker/groups.py",
        old=(
            "    async def leave_group(self, request: pb.LeaveGroupRequest, call: Call) ->"
            " pb.LeaveGroupResponse:\n"
            '        call.check("read", "group", request.group)\n'
        ),
        new=("    async def leave_group(self, request: pb.LeaveGroupRequest, call: Call) -> pb.LeaveGroupResponse:\n"),
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="transaction-without-the-group",
        promise="a transaction moves a group's positions only with the right to read the group",
        file="headwater/broker/transactions.py",
        old=('            call.check("read", "group", request.group)\n            for one in request.inputs:\n'),
        new="            for one in request.inputs:\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="transaction-without-the-inputs",
        promise="a transaction moves positions only in topics that the caller may read",
        file="headwater/broker/transactions.py",
        old=('            for one in request.inputs:\n                call.check("read", "topic", one.topic)\n'),
        new="            pass\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="transaction-under-anothers-name",
        promise="a transaction uses a writer's name only with the right to it",
        file="headwater/broker/transactions.py",
        old='            call.check("write", "group", request.writer)\n',
        new="            pass\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="staging-without-the-topic",
        promise="a caller stages records only for topics that it may write",
        file="headwater/broker/transactions.py",
        old='                call.check("write", "topic", request.message.topic)\n',
        new="                pass\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="producing-without-the-topic",
        promise="a caller produces only to topics that it may write",
        file="headwater/broker/producing.py",
        old='        call.check("write", "topic", message.topic)\n',
        new="",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="fetching-without-the-topic",
        promise="a caller fetches only from topics that it may read",
        file="headwater/broker/reading.py",
        old='            call.check("read", "topic", position.partition.topic)\n',
        new="            pass\n",
        killers=("tests/test_rpc_rights.py", "tests/test_broker_access.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="streams-outlive-rights",
        promise="a stream ends when its caller loses the right to what it brings",
        file="headwater/broker/reading.py",
        old="                        self._check(request, call)  # rights may have changed since it began\n",
        new="",
        killers=("tests/test_broker_security.py", "tests/test_broker_reading.py", "tests/test_broker_access.py"),
    ),
    Mutant(
        name="tokens-outlive-their-revocation",
        promise="a stream ends when its caller's token is revoked",
        file="headwater/broker/call.py",
        old=("        self.caller = self._core.access.caller(*self._said)\n\n    def check("),
        new=("        pass\n\n    def check("),
        killers=("tests/test_broker_security.py", "tests/test_broker_reading.py"),
    ),
    Mutant(
        name="internal-topics-writable",
        promise="what a cluster keeps for itself is written by nobody else",
        file="headwater/broker/call.py",
        old='            if right == "write":\n',
        new='            if right == "nothing":\n',
        killers=("tests/cluster/test_permissions.py", "tests/test_broker_security.py"),
    ),
    Mutant(
        name="requests-unbounded",
        promise="a broker's memory for requests stays within its limit",
        file="headwater/broker/call.py",
        old="        if core.waiting_bytes + size > core.config.max_in_flight_bytes and core.waiting_bytes:\n",
        new="        if core.waiting_bytes < 0:\n",
        killers=("tests/test_broker_budget.py", "tests/test_broker_producing.py", "tests/test_broker_processes.py"),
    ),
    Mutant(
        name="waiting-bytes-leak",
        promise="bytes that wait are given back when their call ends",
        file="headwater/broker/call.py",
        old=("        finally:\n            core.waiting_bytes -= size\n        return hold"),
        new=("        finally:\n            pass\n        return hold"),
        killers=("tests/test_broker_budget.py", "tests/test_broker_producing.py", "tests/test_broker_processes.py"),
    ),
    Mutant(
        name="retried-transaction-runs-twice",
        promise="a transaction that is asked for again is decided once",
        file="headwater/broker/transactions.py",
        old="            self._answers[key] = done.result() if error is None else error\n",
        new="            pass\n",
        killers=("tests/test_broker_transactions.py",),
    ),
    Mutant(
        name="child-cancels-its-parents-streams",
        promise="a forked child does not end what its parent receives",
        file="headwater/client/feed.py",
        old=("        if not self._forked:\n            self.call.cancel()\n            self._requests.put(None)\n"),
        new=("        self.call.cancel()\n        self._requests.put(None)\n"),
        killers=("tests/test_client_fork.py",),
    ),
    Mutant(
        name="child-collects-its-parents-calls",
        promise="a forked child keeps its parent's calls as they are",
        file="headwater/client/fork.py",
        old="    _kept.extend(_watched)\n",
        new="    _kept.clear()\n",
        killers=("tests/test_client_fork.py", "tests/test_client.py"),
    ),
    Mutant(
        name="unrepeatable-calls-repeated",
        promise="a call that may have been carried out and must not be repeated is not",
        file="headwater/client/connection.py",
        old="            if not repeatable and error is None:\n",
        new="            if not repeatable and error is None and not why:\n",
        killers=("tests/test_client.py", "tests/test_client_leaders.py", "tests/test_client_streams.py"),
    ),
)
