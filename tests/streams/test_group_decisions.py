"""Decisions of transactions and resets: the later one counts, whatever a power loss has taken of the members."""

from __future__ import annotations

from headwater import TopicPartition
from headwater.embedded.group import EmbeddedGroup
from headwater.streams.group import Commit
from tests.support.backends import OpenStore, inside

PLACE = TopicPartition("orders", 0)


def test_an_older_decision_does_not_undo_a_reset_though_the_generations_began_anew(open_store: OpenStore) -> None:
    store = open_store()
    uuid = store.create_topic("orders").info.uuid
    group = inside(store)._coordinator("g")
    assert isinstance(group, EmbeddedGroup)
    key = (uuid, 0)
    # Positions outlive a power loss, and the members do not: their generation begins at 0 again.
    group.carry_out({PLACE: Commit(key, 5)}, 7)
    assert group.generation() == 0
    store.group("g").reset({PLACE: Commit(key, 2)})
    group.carry_out({PLACE: Commit(key, 9)}, 7)  # decided before the reset, and carried out after it
    position = group.position(key)
    assert position is not None
    assert position.offset == 2
    with group.deciding(None, {PLACE: Commit(key, 3)}, known={key: position.generation}) as generation:
        assert generation >= position.generation > 7
    group.carry_out({PLACE: Commit(key, 3)}, generation)
    assert [position.offset for position in group.committed().values()] == [3]
