"""Mutants of brokers and clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="streams-outlive-rights",
        promise="a stream ends when its caller loses the right to what it brings",
        file="headwater/broker/rpc/reading.py",
        old="                        _check(read, call)  # rights may have changed since it began\n",
        new="",
        killers=("tests/broker/test_security.py", "tests/broker/test_reading.py", "tests/broker/test_access.py"),
    ),
    Mutant(
        name="tokens-outlive-their-revocation",
        promise="a stream ends when its caller's token is revoked",
        file="headwater/broker/rpc/call.py",
        old=("        self.caller = self._core.access.caller(*self._credentials)\n\n    def check("),
        new=("        pass\n\n    def check("),
        killers=("tests/broker/test_security.py", "tests/broker/test_reading.py"),
    ),
    Mutant(
        name="internal-topics-writable",
        promise="what a cluster keeps for itself is written by nobody else",
        file="headwater/broker/rpc/call.py",
        old='            if right == "write":\n',
        new='            if right == "nothing":\n',
        killers=("tests/cluster/test_permissions.py", "tests/broker/test_security.py"),
    ),
    Mutant(
        name="requests-unbounded",
        promise="a broker's memory for requests stays within its limit",
        file="headwater/broker/rpc/call.py",
        old="        if core.waiting_bytes + size > core.config.max_in_flight_bytes and core.waiting_bytes:\n",
        new="        if core.waiting_bytes < 0:\n",
        killers=("tests/broker/test_budget.py", "tests/broker/test_producing.py", "tests/broker/test_processes.py"),
    ),
    Mutant(
        name="waiting-bytes-leak",
        promise="bytes that wait are given back when their call ends",
        file="headwater/broker/rpc/call.py",
        old=("        finally:\n            core.waiting_bytes -= size\n        return hold"),
        new=("        finally:\n            pass\n        return hold"),
        killers=("tests/broker/test_budget.py", "tests/broker/test_producing.py", "tests/broker/test_processes.py"),
    ),
    Mutant(
        name="retried-transaction-runs-twice",
        promise="a transaction that is asked for again is decided once",
        file="headwater/broker/standalone/transactions.py",
        old="            self._answers[key] = done.result() if error is None else error\n",
        new="            pass\n",
        killers=("tests/broker/test_transactions.py",),
    ),
    Mutant(
        name="child-collects-its-parents-calls",
        promise="a forked child keeps its parent's calls as they are",
        file="headwater/client/fork.py",
        old="    _kept.extend(_watched)\n",
        new="    _kept.clear()\n",
        killers=("tests/client/test_fork.py", "tests/client/test_client.py"),
    ),
    Mutant(
        name="broker-sends-what-does-not-match",
        promise="a broker sends only records that match a filter",
        file="headwater/broker/waiting_reader.py",
        old="        if read.frame_filter is not None:\n            return",
        new="        if read.frame_filter is not None and direct:\n            return",
        killers=("tests/broker/test_where.py -k only_what_matches",),
    ),
    Mutant(
        name="older-brokers-trusted-to-filter",
        promise="a client filters what a broker without filters sends",
        file="headwater/client/fetched_partition.py",
        old="        frame_filter = None if held.filtered else self._filter",
        new="        frame_filter = self._filter if held.filtered else None",
        killers=("tests/broker/test_where.py -k older_broker",),
    ),
    Mutant(
        name="every-write-wakes-filtering-readers",
        promise="records that do not match wake no consumer each time",
        file="headwater/broker/waiting_reader.py",
        old="            if answer.passed_over and now < deadline:\n",
        new="            if answer.passed_over and now > deadline:\n",
        killers=("tests/broker/test_where.py -k wake_nobody",),
    ),
)
