"""Brokers without a number take one that is free, and keep it whenever they die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwater.broker import Broker
from headwater.cluster.control.identity import IDENTITY_FILE, directory_identity, identity_of
from headwater.cluster.control.metadata import Move, PartitionState
from headwater.cluster.control.numbering import numbered_identity, take_number
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Put
from headwater.cluster.etcd.keys import Keys, state_to_json
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration
from headwater.embedded.directory_store import DirectoryStore
from tests.support.aio import run
from tests.support.broker import ANY_PORT
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import FaultyEtcd


class InPlace:
    """Works on files at once, where a broker has threads for it."""

    async def read(self, work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    write = read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("numbering") / "etcd") as started:
        yield started


def uuid(number: int) -> bytes:
    return bytes([number]) * 16


@needs_etcd
def test_of_brokers_that_begin_at_once_each_has_a_number_of_its_own(server: EtcdServer) -> None:
    async def main() -> None:
        async with FaultyEtcd([server.address]) as etcd:
            etcd.faults = ["answer lost", "late", "request lost"]
            numbers = await asyncio.gather(*(take_number(etcd, Keys("at-once"), uuid(one)) for one in range(8)))
            assert sorted(numbers) == list(range(1, 9))
            again = await asyncio.gather(*(take_number(etcd, Keys("at-once"), uuid(one)) for one in range(8)))
            assert again == numbers

    run(main())


@needs_etcd
def test_a_number_that_a_broker_has_ever_had_is_not_taken(server: EtcdServer) -> None:
    async def main() -> None:
        keys = Keys("known")
        moving = PartitionState((3, 4), {3: 1}, move=Move((3, 5), (3, 4)))
        async with Etcd([server.address]) as etcd:
            await etcd.write([], [Put(keys.broker(1), b"{}"), Put(keys.store(2), uuid(9).hex().encode())])
            await etcd.write([], [Put(keys.partition((uuid(1), 0)), state_to_json(moving))])
            await etcd.write([], [Put(keys.leaving(6), b"{}"), Put(f"{keys.prefix}stores/odd", b"?")])
            assert await take_number(etcd, keys, uuid(8)) == 7
            assert await take_number(etcd, keys, uuid(9)) == 2, "the one that it has had"

    run(main())


@needs_etcd
def test_a_broker_that_dies_before_its_directory_has_the_number_takes_the_same_one_again(
    server: EtcdServer, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            assert await take_number(etcd, Keys("dying"), uuid(1)) == 1
            pending = directory_identity(tmp_path, "dying")
            assert (pending.broker, directory_identity(tmp_path, "dying")) == (None, pending)
            assert await take_number(etcd, Keys("dying"), pending.store) == 2  # here it dies
            for _ in range(2):
                identity = await numbered_identity(etcd, InPlace(), tmp_path, "dying", None)
                assert (identity.broker, identity.store) == (2, pending.store)
            with pytest.raises(InvalidConfiguration, match="belongs to broker 2 of the cluster 'dying'"):
                await numbered_identity(etcd, InPlace(), tmp_path, "other", None)
            with pytest.raises(InvalidConfiguration, match="belongs to broker 2 of the cluster 'dying'"):
                await numbered_identity(etcd, InPlace(), tmp_path, "dying", 3)

    run(main())


def test_a_directory_without_a_number_takes_the_one_that_it_is_given(tmp_path: Path) -> None:
    pending = directory_identity(tmp_path, "main")
    with pytest.raises(InvalidConfiguration, match="belongs to a broker of the cluster 'main', not of 'other'"):
        directory_identity(tmp_path, "other")
    identity = identity_of(tmp_path, "main", 7)
    assert (identity.broker, identity.store) == (7, pending.store)
    assert directory_identity(tmp_path, "main").broker == 7


@needs_etcd
def test_brokers_number_themselves_and_keep_their_numbers(server: EtcdServer, tmp_path: Path) -> None:
    config = BrokerConfig(cluster="served")

    def begin(name: str, stack: ExitStack) -> Broker:
        store = stack.enter_context(DirectoryStore(tmp_path / name, exclusive=True))
        broker = Broker(store, config, listen=ANY_PORT, etcd=lambda: Etcd([server.address])).start()
        stack.callback(broker.stop)
        return broker

    with ExitStack() as stack:
        assert [begin(name, stack).number for name in ("a", "b")] == [1, 2]
    with ExitStack() as stack:
        assert [begin(name, stack).number for name in ("c", "b", "a")] == [3, 2, 1]
    assert (tmp_path / "b" / IDENTITY_FILE).exists()


def test_a_broker_on_its_own_needs_no_number(tmp_path: Path) -> None:
    with DirectoryStore(tmp_path, exclusive=True) as store, Broker(store, listen=ANY_PORT) as broker:
        assert broker.number == 0
        assert 'id="0"' in broker.metrics()
