"""The book of a coordinator, and what is known of a stage log: rules without a disk or a network."""

from __future__ import annotations

import random

import pytest

from headwater.cluster.transactions.stages import Known
from headwater.cluster.transactions.transaction_log import (
    REQUESTS_KEPT,
    PartitionWrites,
    StageRange,
    TransactionDecision,
    TransactionLog,
    TransactionRequest,
)
from headwater.core.errors import Damaged, WriterTaken

SHARE = PartitionWrites("orders", bytes(16), 0, (StageRange(1, 0, 4),))
PLACE = (bytes(16), 0)


def named(number: int, request: bytes = b"", owner: str | None = None, *, takeover: bool = False) -> TransactionRequest:
    return TransactionRequest(request, (SHARE,), "job", number, owner, takeover)


def test_the_first_decision_under_a_number_counts() -> None:
    transaction_log = TransactionLog(1)
    first = transaction_log.decide(named(3), 0)
    assert first is not None
    assert transaction_log.decide(named(3), 0) is None
    assert transaction_log.decide(named(2), 0) is None, "a lower number is done"
    assert transaction_log.is_repeated(named(3))
    assert not transaction_log.is_repeated(named(4))


def test_of_two_decisions_in_a_log_the_first_one_counts() -> None:
    """Two coordinators cannot both have written; should they, nobody may see it."""
    former, latter = TransactionLog(1), TransactionLog(2)
    first, second = former.decide(named(0, b"a" * 16), 0), latter.decide(named(0, b"b" * 16), 0)
    assert first is not None
    assert second is not None
    transaction_log = TransactionLog(3)
    transaction_log.take([first.pack(), second.pack()])
    assert [ruling.number for ruling in transaction_log.undone()] == [first.number]
    assert transaction_log.ruling_on(b"b" * 16) is None


def test_a_request_is_known_until_it_is_done_and_its_answer_for_a_day_after() -> None:
    transaction_log = TransactionLog(1)
    ruling = transaction_log.decide(TransactionRequest(b"r" * 16, (SHARE,)), 0)
    assert ruling is not None
    assert transaction_log.ruling_on(b"r" * 16) == ruling.number
    transaction_log.finish(ruling.number, {PLACE: 7}, 0)
    assert transaction_log.ruling_on(b"r" * 16) is None
    assert transaction_log.answer_to(b"r" * 16) == {PLACE: 7}
    later = transaction_log.decide(TransactionRequest(b"s" * 16, (SHARE,)), 0)
    assert later is not None
    transaction_log.finish(later.number, {}, int((REQUESTS_KEPT + 1) * 1e9))
    assert transaction_log.answer_to(b"r" * 16) is None


def test_numbers_rise_over_coordinators_and_epochs() -> None:
    numbers: list[int] = []
    log: list[bytes] = []
    for epoch in (1, 1, 2, 5):
        transaction_log = TransactionLog(epoch)
        transaction_log.take(log)
        for _ in range(3):
            ruling = transaction_log.decide(TransactionRequest(b"", (SHARE,)), 0)
            assert ruling is not None
            numbers.append(ruling.number)
            log.append(ruling.pack())
    assert numbers == sorted(set(numbers))
    lost = TransactionLog(6)  # by an operator's election, with all that was in the log
    ruling = lost.decide(TransactionRequest(b"", (SHARE,)), 0)
    assert ruling is not None
    assert ruling.number > numbers[-1]


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_says_all_that_the_log_does(seed: int) -> None:
    chance = random.Random(seed)
    transaction_log, log = TransactionLog(1), list[bytes]()
    for turn in range(40):
        if transaction_log.undone() and chance.random() < 0.4:
            log.append(
                transaction_log.finish(
                    chance.choice(transaction_log.undone()).number, {PLACE: chance.choice([turn, None])}, turn
                )
            )
            continue
        owner = chance.choice(["a", "b"])
        wanted = chance.choice(
            [named(turn, b"%016d" % turn, owner, takeover=True), TransactionRequest(b"%016d" % turn, (SHARE,))]
        )
        ruling = transaction_log.decide(wanted, turn)
        if ruling is not None:
            log.append(ruling.pack())
    cut = chance.randrange(len(log))
    before = TransactionLog(1)
    before.take(log[:cut])
    replayed, restored = TransactionLog(1), TransactionLog(1)
    replayed.take(log)
    restored.take([before.snapshot(), *log[cut:]])
    assert replayed.snapshot() == restored.snapshot() != TransactionLog(1).snapshot()
    assert replayed.undone() == restored.undone()


def test_another_owner_is_refused_and_takes_over_only_when_it_says_so() -> None:
    transaction_log = TransactionLog(1)
    assert transaction_log.decide(named(5, owner="a"), 0) is not None
    with pytest.raises(WriterTaken):
        transaction_log.is_repeated(named(0, owner="b"))
    assert transaction_log.decide(named(0, owner="b", takeover=True), 0) is not None
    assert transaction_log.is_repeated(named(5, owner="a", takeover=True))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": 1}', b'{"done": 1}', b'{"snapshot": {}}'])
def test_what_is_no_record_is_damage(content: bytes) -> None:
    with pytest.raises(Damaged):
        TransactionLog(1).take([content])


def test_a_ruling_comes_back_as_it_was() -> None:
    ruling = TransactionLog(1).decide(named(0, b"r" * 16, "a"), 5)
    assert ruling is not None
    assert TransactionDecision.unpack(ruling.pack()) == ruling


# Stage logs.

MINE, OLDER = StageRange(2, 10, 12), StageRange(1, 3, 5)


def known() -> Known:
    stage_log = Known(2, 10)
    stage_log.staged(MINE)
    return stage_log


@pytest.mark.parametrize("stage", [MINE, OLDER])
def test_what_is_dropped_is_not_decided_over(stage: StageRange) -> None:
    stage_log = known()
    stage_log.drop(stage)
    assert not stage_log.hold(stage)


@pytest.mark.parametrize("stage", [MINE, OLDER])
def test_what_is_being_decided_over_is_not_dropped(stage: StageRange) -> None:
    stage_log = known()
    assert stage_log.hold(stage)
    stage_log.drop(stage)
    assert stage_log.hold(stage)
    assert stage_log.needed_from(10, 12) == 10


def test_what_was_never_staged_here_is_not_decided_over() -> None:
    assert not known().hold(StageRange(2, 12, 14))
    assert not known().hold(StageRange(2, 10, 11))


def test_what_is_written_or_dropped_is_needed_no_more() -> None:
    stage_log = known()
    stage_log.staged(StageRange(2, 12, 13))
    assert stage_log.needed_from(10, 13) == 10
    stage_log.done(MINE)
    assert stage_log.needed_from(10, 13) == 12
    stage_log.drop(StageRange(2, 12, 13))
    assert stage_log.needed_from(10, 13) == 13


def test_what_others_have_staged_is_needed_whatever_is_done() -> None:
    stage_log = known()
    stage_log.done(MINE)
    stage_log.drop(OLDER)
    assert stage_log.needed_from(3, 12) == 3


def test_nothing_is_given_back_while_something_is_being_staged() -> None:
    stage_log = known()
    stage_log.done(MINE)
    stage_log.appending += 1
    assert stage_log.needed_from(10, 14) == 10
    stage_log.appending -= 1
    assert stage_log.needed_from(10, 14) == 14
