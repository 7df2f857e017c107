"""The checker names every way in which what was read can differ from what was promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.checker import check
from tests.faults.violation import Kind


def kinds(acknowledged: dict[str, list[str]], read: list[str], sent: dict[str, list[str]] | None = None) -> list[Kind]:
    return [violation.kind for violation in check(acknowledged, read, sent)]


def test_all_acknowledged_records_once_and_in_order_are_no_violation() -> None:
    assert kinds({"a": ["a0", "a1"], "b": ["b0"]}, ["a0", "b0", "a1"]) == []


def test_an_acknowledged_record_that_is_not_there_is_lost() -> None:
    assert kinds({"a": ["a0", "a1"]}, ["a0"]) == [Kind.LOST_WRITE]


def test_an_unacknowledged_record_may_be_there_or_not() -> None:
    sent = {"a": ["a0", "a1"]}
    assert kinds({"a": ["a0"]}, ["a0"], sent) == []
    assert kinds({"a": ["a0"]}, ["a0", "a1"], sent) == []


def test_an_unacknowledged_record_must_still_be_single_and_in_its_place() -> None:
    sent = {"a": ["a0", "a1"]}
    assert kinds({"a": ["a1"]}, ["a0", "a1", "a0"], sent) == [Kind.DUPLICATE]
    assert kinds({"a": ["a1"]}, ["a1", "a0"], sent) == [Kind.REORDERED]


def test_a_record_that_is_there_again_is_a_duplicate_each_time() -> None:
    assert kinds({"a": ["a0"]}, ["a0", "a0", "a0"]) == [Kind.DUPLICATE, Kind.DUPLICATE]


def test_only_the_record_that_came_too_late_is_reordered() -> None:
    violations = list(check({"a": ["a0", "a1", "a2"]}, ["a1", "a0", "a2"]))
    assert [violation.kind for violation in violations] == [Kind.REORDERED]
    assert "'a0'" in violations[0].detail


def test_producers_may_interleave_in_any_way() -> None:
    assert kinds({"a": ["a0", "a1"], "b": ["b0", "b1"]}, ["b0", "b1", "a0", "a1"]) == []


def test_a_record_that_nobody_sent_is_unseen() -> None:
    assert kinds({"a": ["a0"]}, ["ghost", "a0"]) == [Kind.UNSEEN]


def test_an_account_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="did not send"):
        kinds({"a": ["a0"]}, [], {"a": []})
    with pytest.raises(ValueError, match="sent twice"):
        kinds({"a": ["x"], "b": ["x"]}, [])


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_a_faithful_log_is_clean_and_any_single_loss_is_found(owners: list[int], data: st.DataObject) -> None:
    sent: dict[str, list[tuple[int, int]]] = {}
    log: list[tuple[int, int]] = []
    for owner in owners:
        ids = sent.setdefault(str(owner), [])
        ids.append((owner, len(ids)))
        log.append(ids[-1])
    assert list(check(sent, log)) == []
    if log:
        lost = data.draw(st.sampled_from(log))
        found = list(check(sent, [identity for identity in log if identity != lost]))
        assert [violation.kind for violation in found] == [Kind.LOST_WRITE]
