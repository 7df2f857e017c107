"""Transactions through leader changes at any point: all or nothing, never twice, and nobody waits for the dead.

Each seed is one history. Each rule is taken away once, and must be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from headwater.cluster.replication.carrier import Carrier
from headwater.cluster.transactions.deciding import Decider, Verdict
from headwater.cluster.transactions.transaction_log import (
    Bases,
    TransactionDecision,
    TransactionLog,
    TransactionRequest,
)
from tests.cluster.model import Violation
from tests.cluster.transactions import History, Rules

HISTORIES = 60
ENOUGH = 300
"""In so many histories a missing rule has shown."""


def test_all_or_nothing_once_and_nobody_waits_for_the_dead() -> None:
    for seed in range(HISTORIES):
        History(seed).run()


class TheLastDecisionCounts(TransactionLog):
    def _is_first(self, ruling: TransactionDecision) -> bool:  # noqa: ARG002
        return True

    def decide(self, wanted: TransactionRequest, now_ns: int) -> TransactionDecision | None:
        decision = super().decide(wanted, now_ns)
        return decision or super().decide(TransactionRequest(wanted.request, wanted.shares), now_ns)

    def is_repeated(self, wanted: TransactionRequest) -> bool:  # noqa: ARG002
        return False


class RequestsAreForgotten(TransactionLog):
    def ruling_on(self, request: bytes) -> int | None:  # noqa: ARG002
        return None

    def answer_to(self, request: bytes) -> Bases | None:  # noqa: ARG002
        return None

    def _is_first(self, ruling: TransactionDecision) -> bool:
        return super()._is_first(TransactionDecision(ruling.number, b"", ruling.shares, 0, ruling.name, ruling.writer))


class NumbersBeginAnew(TransactionLog):
    def __init__(self, epoch: int) -> None:  # noqa: ARG002
        super().__init__(0)

    def take(self, records: Iterable[bytes]) -> None:
        super().take(records)
        self._next = 0


class CarriesOutInAnyOrder(Decider):
    async def _pump(self) -> None:
        async def carry_out(decided: Any) -> None:
            if decided.written is not None:
                await decided.written
            await asyncio.sleep(0.01 * (decided.ruling.number % 3))
            self._do(self._finish(decided, self._carrier.add(decided.ruling)))

        while True:
            while not self._queue:
                self._more.clear()
                await self._more.wait()
            self._do(carry_out(self._queue.popleft()))


class TellsBeforeItIsDone(Decider):
    async def commit(self, wanted: TransactionRequest, also: Any = lambda: None, check: Any = None) -> Verdict:
        deciding = asyncio.ensure_future(super().commit(wanted, also, check))
        while not deciding.done() and self._transaction_log.ruling_on(wanted.request) is None:
            await asyncio.sleep(0.001)
        return deciding.result() if deciding.done() else Verdict({})


class GivesUpWhatFails(Carrier):
    async def _give(self, batch: Sequence[Any]) -> Sequence[int | None]:
        try:
            return await super()._give(batch)
        except Exception:  # noqa: BLE001
            return [None] * len(batch)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(transaction_log=TheLastDecisionCounts),
        Rules(transaction_log=RequestsAreForgotten),
        Rules(transaction_log=NumbersBeginAnew),
        Rules(decider=CarriesOutInAnyOrder),
        Rules(decider=TellsBeforeItIsDone),
        Rules(carrier=GivesUpWhatFails),
        Rules(stages_wait_for_all=False),
        Rules(decisions_wait_for_all=False),
        Rules(groups_are_whole=False),
        Rules(applies_once=False),
        Rules(successors_replay=False),
        Rules(stages_wait_for_all=False, holds_stages=False),
    ],
    ids=lambda rules: rules.missing,
)
def test_without_a_rule_a_transaction_is_lost_halved_or_doubled(rules: Rules) -> None:
    def fails(seed: int) -> bool:
        try:
            History(seed, rules).run()
        except Violation:
            return True
        return False

    assert any(fails(seed) for seed in range(ENOUGH))
