"""Acknowledgements in any order, against the simplest model: a set of offsets that are done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.streams.acks import AckTracker

OFFSETS = st.integers(0, 60)


@given(start=OFFSETS, ranges=st.lists(st.tuples(OFFSETS, OFFSETS), max_size=40))
def test_the_position_is_the_end_of_what_is_done_without_a_gap(start: int, ranges: list[tuple[int, int]]) -> None:
    tracker = AckTracker(start)
    done = set(range(start))
    for first, end in ranges:
        before = tracker.position
        tracker.ack(first, end)
        done.update(range(first, end))
        position = next(offset for offset in range(200) if offset not in done)
        assert tracker.position == position >= before
        assert tracker.pending == sum(offset > position for offset in done)


def test_a_range_that_ends_before_it_begins_is_nothing() -> None:
    tracker = AckTracker(10)
    tracker.ack(50, 20)
    tracker.ack(10, 50)
    assert (tracker.position, tracker.pending) == (50, 0)
