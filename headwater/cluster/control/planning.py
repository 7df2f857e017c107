"""Planning: what the controller would write, going by what it sees. It only looks; etcd decides whether it is done.

Each change is guarded by what it is based on: the partition or the topic as it was seen, and every broker that it
counts on, in the incarnation in which it was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headwater.cluster.control.assignment import first_state
from headwater.cluster.control.election import Election, LogEnd
from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.control.moving import Moving
from headwater.cluster.control.view import ClusterView
from headwater.cluster.etcd.item import Delete, Put, WriteGuard
from headwater.cluster.etcd.keys import PartitionKey, state_to_json

_AT_ONCE: Final = 16
"""So many partitions get new replicas at a time: the first are done, and their old replicas gone, before the last."""

Ends = Mapping[PartitionKey, Mapping[int, LogEnd]]
"""The ends of the logs of a partition, by broker."""


class Change(NamedTuple):
    """A write that the controller wants, what it is for, and what it is based on."""

    description: str
    guards: tuple[WriteGuard, ...]
    write: Put | Delete


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes to make, and what must be known first: the ends of the logs that each broker is asked for."""

    changes: tuple[Change, ...]
    asks: Mapping[int, frozenset[PartitionKey]]


def plan(view: ClusterView, ends: Ends, *, balance: bool = False) -> Plan:
    """Plan what is to be done. With `balance`, leadership also goes back to the first replicas."""
    alive = view.alive
    steady = {broker: since for broker, since in alive.items() if not view.members[broker].draining}
    staying = {broker: since for broker, since in steady.items() if broker not in view.leaving}
    changes = [*_new_partitions(view, staying), *_deleted_partitions(view)]
    asks: dict[int, set[PartitionKey]] = {}
    moving = Moving()
    room = _AT_ONCE - sum(moving.has_begun(state) for state, _ in view.partitions.values())
    minima = {topic.info.uuid: topic.min_insync for topic in view.topics.values()}
    for key, (state, revision) in view.partitions.items():
        if key[0] not in minima:
            continue
        election = Election(minima[key[0]])
        elected = None
        if not election.is_led(state, alive):
            elected = election.elect(state, steady, {}) or election.elect(state, alive, ends.get(key, {}))
            if elected is None:
                _ask(asks, key, election.asks(state, alive), alive)
        elif balance or state.leader not in steady:
            elected = election.elect(state, steady, {})
        if elected is not None and (elected.leader, elected.leader_incarnation) != _led_by(state):
            changes.append(_election(view, key, revision, elected, alive))
        elif election.is_led(state, alive) and (room > 0 or moving.has_begun(state)):
            moved = moving.step(state, alive, steady)
            if moved is not None:
                room -= not moving.has_begun(state) and moving.has_begun(moved)
                changes.append(_move(view, key, revision, moved, alive))
    return Plan(tuple(changes), {broker: frozenset(keys) for broker, keys in asks.items()})


def _led_by(state: PartitionState) -> tuple[int, int]:
    return state.leader, state.leader_incarnation


def _ask(asks: dict[int, set[PartitionKey]], key: PartitionKey, whom: frozenset[int], alive: Members) -> None:
    """All of them must be there; as long as one is not, it is of no use to ask the others."""
    if whom and whom <= alive.keys():
        for broker in whom:
            asks.setdefault(broker, set()).add(key)


def _move(view: ClusterView, key: PartitionKey, revision: int, moved: PartitionState, alive: Members) -> Change:
    name = view.keys.partition(key)
    listed = ", ".join(map(str, moved.replicas))
    description = f"{name} is at brokers {listed}, led by {moved.leader}, epoch {moved.epoch}"
    return Change(description, _based_on(view, name, revision, moved, alive), Put(name, state_to_json(moved)))


def _election(view: ClusterView, key: PartitionKey, revision: int, elected: PartitionState, alive: Members) -> Change:
    name = view.keys.partition(key)
    description = f"broker {elected.leader} is elected for {name}, epoch {elected.epoch}"
    return Change(description, _based_on(view, name, revision, elected, alive), Put(name, state_to_json(elected)))


def _based_on(
    view: ClusterView, name: str, revision: int, state: PartitionState, alive: Members
) -> tuple[WriteGuard, ...]:
    """The partition as it was seen, and the brokers that are to be in sync, as far as they live."""
    return (
        WriteGuard(name, changed=revision),
        *(
            WriteGuard(view.keys.broker(broker), created=since)
            for broker, since in state.in_sync.items()
            if alive.get(broker) == since
        ),
    )


def _new_partitions(view: ClusterView, alive: Members) -> Iterator[Change]:
    """Partitions that a topic should have and that nobody has made yet."""
    for name, topic in view.topics.items():
        for number in range(topic.info.partitions):
            key = (topic.info.uuid, number)
            if key in view.partitions:
                continue
            state = first_state(topic, number, alive)
            if state is None:
                break  # it waits for brokers
            path = view.keys.partition(key)
            based_on = [
                WriteGuard(view.keys.topic(name), changed=view.topic_revision(name)),
                WriteGuard(path, created=0),
            ]
            based_on += [WriteGuard(view.keys.broker(broker), created=since) for broker, since in state.in_sync.items()]
            yield Change(f"{path} is made", tuple(based_on), Put(path, state_to_json(state)))


def _deleted_partitions(view: ClusterView) -> Iterator[Change]:
    """Partitions of topics that are gone. A topic's uuid never comes back, so nobody can want them again."""
    uuids = {topic.info.uuid for topic in view.topics.values()}
    for key, (_, revision) in view.partitions.items():
        if key[0] not in uuids:
            path = view.keys.partition(key)
            yield Change(f"{path} is removed", (WriteGuard(path, changed=revision),), Delete(path))
