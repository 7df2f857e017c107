"""A broker's view of its cluster: it goes forward only, whatever order it is told things in. Without an etcd."""

from __future__ import annotations

import pytest

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import EtcdItem
from headwater.cluster.etcd.keys import BrokerMember, Keys, state_to_json
from headwater.cluster.etcd.watch import Look
from headwater.core.address import Address
from tests.support.aio import run
from tests.support.members import topic_of

KEYS = Keys("main")
KEY = (b"t" * 16, 0)


class Told:
    """A view that a test tells what is seen, and what it has said of that."""

    def __init__(self) -> None:
        self.view = ClusterView(Etcd([Address("127.0.0.1", 1)]), KEYS)
        self.changes: list[Changes] = []
        self.view.on_change(self.changes.append)

    def look(self, revision: int, *items: EtcdItem, removed: tuple[str, ...] = (), complete: bool = False) -> None:
        self.view._take(Look(revision, items, dict.fromkeys(removed, revision), complete))

    @property
    def epoch(self) -> int:
        return self.view.partitions[KEY][0].epoch


def member(broker: int, created: int, changed: int | None = None) -> EtcdItem:
    content = BrokerMember(broker, 0, "127.0.0.1:1", b"s" * 16).to_json()
    return EtcdItem(KEYS.broker(broker), content, created, changed or created)


def partition(epoch: int, changed: int, created: int = 1) -> EtcdItem:
    return EtcdItem(KEYS.partition(KEY), state_to_json(PartitionState((1,), {1: 1}, 1, 1, epoch)), created, changed)


def test_what_has_changed_is_told_once_and_what_has_not_is_not() -> None:
    async def main() -> None:
        told = Told()
        told.look(5, member(1, 3), partition(1, 4), complete=True)
        told.look(6, partition(2, 6))
        told.look(8, partition(2, 6), member(1, 3), complete=True)
        told.look(9, removed=(KEYS.broker(1),))
        told.look(10, removed=(KEYS.broker(7),))
        assert told.changes == [
            Changes(members=frozenset({1}), partitions=frozenset({KEY})),
            Changes(partitions=frozenset({KEY})),
            Changes(members=frozenset({1})),
        ]
        assert told.view.alive == {}
        assert told.view.partitions[KEY][1] == 6

    run(main())


def test_a_look_at_everything_shows_what_is_gone() -> None:
    async def main() -> None:
        told = Told()
        told.look(5, member(1, 3), member(2, 4), partition(1, 5), complete=True)
        told.look(9, member(2, 8), complete=True)
        assert told.view.alive == {2: 8}
        assert not told.view.partitions
        assert told.changes[-1] == Changes(members=frozenset({1, 2}), partitions=frozenset({KEY}))

    run(main())


def test_what_is_told_late_does_not_take_it_back() -> None:
    async def main() -> None:
        told = Told()
        told.look(5, partition(1, 5), member(1, 4), complete=True)
        told.look(9, partition(3, 9), complete=True)  # a look of its own, ahead of the watch: broker 1 is gone
        told.look(7, partition(2, 7))
        told.look(6, member(1, 4), partition(1, 5), complete=True)
        told.look(8, removed=(KEYS.broker(1), KEYS.partition(KEY)))
        assert told.epoch == 3
        assert not told.view.members
        # The watch comes with changes from before and behind that look, all at once.
        late = Look(11, [partition(2, 7), member(1, 10)], {KEYS.topic("gone"): 11})
        told.view._take(late)
        assert told.epoch == 3
        assert told.view.alive == {1: 10}
        assert told.view.revision == 11

    run(main())


def test_a_broker_that_registers_anew_is_another_one_although_nobody_saw_it_go() -> None:
    async def main() -> None:
        told = Told()
        told.look(5, member(1, 4), complete=True)
        told.look(9, member(1, 8))
        told.look(10, member(1, 8, changed=10))
        assert told.view.alive == {1: 8}

    run(main())


def test_a_mistake_of_one_who_is_told_does_not_blind_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        told = Told()
        told.view._callbacks.insert(0, lambda _: 1 / 0)  # type: ignore[arg-type]
        told.look(5, member(1, 4), complete=True)
        told.look(6, removed=(KEYS.broker(1),))
        assert len(told.changes) == 2

    run(main())
    assert "division by zero" in caplog.text


def test_topics_are_found_by_their_uuids_too() -> None:
    async def main() -> None:
        told = Told()
        old, new = topic_of("orders", uuid=b"o" * 16), topic_of("orders", uuid=b"n" * 16)
        told.look(5, EtcdItem(KEYS.topic("orders"), old.to_json(), 5, 5), complete=True)
        assert (told.view.topic_of(b"o" * 16), told.view.topic_of(b"n" * 16)) == (old, None)
        assert told.view.topic_revision("orders") == 5
        told.look(7, EtcdItem(KEYS.topic("orders"), new.to_json(), 7, 7))
        assert (told.view.topic_of(b"o" * 16), told.view.topic_of(b"n" * 16)) == (None, new)
        told.look(8, removed=(KEYS.topic("orders"),))
        assert told.view.topic_of(b"n" * 16) is None
        assert told.view.topic_revision("orders") == 0

    run(main())


def test_who_waits_for_a_revision_waits_until_it_is_seen() -> None:
    async def main() -> None:
        told = Told()
        told.view.on_change(lambda _: told.look(7, member(2, 7)) if told.view.revision < 7 else None)
        told.look(5, member(1, 4), complete=True)
        await told.view.seen()
        await told.view.reach(7)
        assert told.view.alive == {1: 4, 2: 7}

    run(main())
