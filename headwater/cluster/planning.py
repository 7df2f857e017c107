"""Planning: what the controller would write, going by what it sees. It only looks; etcd decides whether it is done.

Each change is guarded by what it is based on: the partition or the topic as it was seen, and every broker that it
counts on, in the incarnation in which it was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headwater.cluster.assignment import first_state
from headwater.cluster.election import Election, LogEnd
from headwater.cluster.item import Delete, Guard, Put
from headwater.cluster.keys import PartitionKey, state_to_json
from headwater.cluster.metadata import Members, PartitionState
from headwater.cluster.view import ClusterView

Ends = Mapping[PartitionKey, Mapping[int, LogEnd]]
"""How far the logs of a partition go, by broker."""


class Change(NamedTuple):
    """A write that the controller wants, what it is for, and what it is based on."""

    what: str
    guards: tuple[Guard, ...]
    write: Put | Delete


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be written, and what must be known first: the ends of the logs that each broker is asked for."""

    changes: tuple[Change, ...]
    asks: Mapping[int, frozenset[PartitionKey]]


def plan(view: ClusterView, ends: Ends, *, balance: bool = False) -> Plan:
    """What is to be done. With `balance`, leadership also goes back to those who were first meant to have it."""
    alive = view.alive
    steady = {broker: since for broker, since in alive.items() if not view.members[broker].draining}
    changes = [*_new_partitions(view, steady), *_deleted_partitions(view)]
    asks: dict[int, set[PartitionKey]] = {}
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
    return Plan(tuple(changes), {broker: frozenset(keys) for broker, keys in asks.items()})


def _led_by(state: PartitionState) -> tuple[int, int]:
    return state.leader, state.leader_incarnation


def _ask(asks: dict[int, set[PartitionKey]], key: PartitionKey, whom: frozenset[int], alive: Members) -> None:
    """All of them must be there; as long as one is not, it is of no use to ask the others."""
    if whom and whom <= alive.keys():
        for broker in whom:
            asks.setdefault(broker, set()).add(key)


def _election(view: ClusterView, key: PartitionKey, revision: int, elected: PartitionState, alive: Members) -> Change:
    name = view.keys.partition(key)
    based_on = [Guard(name, changed=revision)]
    based_on += [
        Guard(view.keys.broker(broker), created=since)
        for broker, since in elected.in_sync.items()
        if alive.get(broker) == since
    ]
    what = f"broker {elected.leader} is elected for {name}, epoch {elected.epoch}"
    return Change(what, tuple(based_on), Put(name, state_to_json(elected)))


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
            based_on = [Guard(view.keys.topic(name), changed=view.topic_revision(name)), Guard(path, created=0)]
            based_on += [Guard(view.keys.broker(broker), created=since) for broker, since in state.in_sync.items()]
            yield Change(f"{path} is made", tuple(based_on), Put(path, state_to_json(state)))


def _deleted_partitions(view: ClusterView) -> Iterator[Change]:
    """Partitions of topics that are gone. A topic's uuid never comes back, so nobody can want them again."""
    uuids = {topic.info.uuid for topic in view.topics.values()}
    for key, (_, revision) in view.partitions.items():
        if key[0] not in uuids:
            path = view.keys.partition(key)
            yield Change(f"{path} is removed", (Guard(path, changed=revision),), Delete(path))
