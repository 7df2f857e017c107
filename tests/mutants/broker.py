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
)
