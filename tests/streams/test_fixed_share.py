"""Fixed shares: which follow from the names of partitions alone, and are even."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.streams.fixed_share import FixedShare, shares_of
from headwater.streams.topic import TopicPartition

TOPICS = st.dictionaries(st.text("ab.-", min_size=1, max_size=3), st.integers(1, 9), max_size=5)


def partitions(topics: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]


@given(TOPICS, st.integers(1, 7))
def test_each_partition_is_in_one_share_and_those_of_a_topic_are_even(topics: dict[str, int], total: int) -> None:
    shares = [FixedShare((number, total)).of(partitions(topics)) for number in range(total)]
    owners = Counter(partition for share in shares for partition in share)
    assert owners == Counter(partitions(topics))
    for name in topics:
        counts = [sum(partition.topic == name for partition in share) for share in shares]
        assert max(counts) - min(counts) <= 1


@given(TOPICS, TOPICS, st.integers(1, 7))
def test_topics_and_partitions_that_come_move_no_others(
    topics: dict[str, int], more: dict[str, int], total: int
) -> None:
    grown = {name: topics.get(name, 0) + more.get(name, 0) for name in {**topics, **more}}
    for number in range(total):
        share = FixedShare((number, total))
        assert share.of(partitions(topics)) == share.of(partitions(grown)).intersection(partitions(topics))


def test_another_total_moves_half_of_the_partitions_of_large_topics_and_fewer_of_small_ones() -> None:
    def moved(count: int, total: int) -> float:
        names = [f"topic-{number}" for number in range(100)]
        pairs = [zip(shares_of(name, count, total), shares_of(name, count, total + 1), strict=True) for name in names]
        return sum(before != after for pair in pairs for before, after in pair) / (100 * count)

    assert moved(1, 4) < 0.3
    assert 0.4 < moved(64, 4) < 0.6


def test_shares_are_the_same_in_every_process_and_version() -> None:
    assert shares_of("orders", 8, 3) == (1, 2, 0, 2, 1, 0, 1, 2)
