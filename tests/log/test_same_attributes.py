"""Users' objects have the same public attributes wherever the store is: in memory, in a directory, behind brokers."""

from __future__ import annotations

from collections.abc import Iterator

from headwater import HeadwaterError, Store
from headwater.embedded.memory_store import MemoryStore
from headwater.log import encode
from tests.support.backends import OpenStore

ON_A_CLUSTER = True
PLACE_DEPENDENT = {"MemoryStore.group_kind", "MemoryStore.reopen_groups", "MemoryPartition.schemas"}
"""The attributes by which stores in memory are built, which are no business of their users."""


def held(store: Store) -> Iterator[tuple[str, object]]:
    """Everything that a user gets from a store, with a name; each in every state in which it can be looked at."""
    topic = store.create_topic("orders")
    yield "store", store
    yield "topic", topic
    yield "partition", topic.partition(0)
    yield "steward", store.steward()
    yield "statistics", store.statistics()
    with store.producer("orders") as out:
        yield "producer", out
        receipt = out.send(b"paid")
        out.flush()
        yield "receipt", receipt
    with store.stage() as staging:
        yield "staging", staging
        staging.append(topic.info, 0, encode([b"staged"]))
        yield "staged", staging.seal()
    with store.consumer("orders", group="billing") as inbox:
        yield "consumer", inbox
        while not (records := inbox.poll(timeout=300)):
            pass
        with store.transaction(inbox) as block:
            yield "transaction", block
            for record in records:
                inbox.ack(record)
            block.producer("orders").send(b"billed")
        yield "committed transaction", block
        yield "group", store.group("billing")
        yield "described group", store.group("billing").describe()


def public(item: object) -> set[str]:
    return {name for name in dir(item) if not name.startswith("_")}


def test_every_attribute_can_be_looked_at(open_store: OpenStore) -> None:
    missing = []
    for name, item in held(open_store()):
        for attribute in sorted(public(item)):
            try:
                getattr(item, attribute)
            except HeadwaterError:
                continue  # a property may say that there is nothing to see yet
            except AttributeError as error:
                missing.append(f"{name}.{attribute}: {error}")
    assert missing == []


def test_what_one_store_has_every_store_has(open_store: OpenStore) -> None:
    missing: list[str] = []
    with MemoryStore() as store:
        for (name, item), (_, expected) in zip(held(open_store()), held(store), strict=True):
            lacking = {f"{type(expected).__name__}.{attribute}" for attribute in public(expected) - public(item)}
            missing += [f"{name}: {attribute}" for attribute in sorted(lacking - PLACE_DEPENDENT)]
    assert missing == []


def test_a_transaction_tells_the_generation_of_its_group(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"paid")
    with store.consumer("orders", group="billing") as inbox:
        while not (records := inbox.poll(timeout=300)):
            pass
        with store.transaction(inbox) as block:
            assert block.generation == 0
            inbox.ack(records[0])
        assert block.generation == store.group("billing").generation() > 0
