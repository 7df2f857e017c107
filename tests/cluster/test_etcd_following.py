"""Following keys of etcd misses nothing, whatever happens to etcd and to the connection, against a real etcd."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random

import pytest

from headwater.cluster.etcd import watch as etcd_watch
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, Put
from headwater.cluster.etcd.watch import Look
from headwater.core.address import Address
from headwater.core.errors import EtcdRefused, EtcdUnavailable
from tests.support.aio import run, until
from tests.support.etcd_server import EtcdServer, needs_etcd, started_together
from tests.support.proxy import Proxy

pytestmark = needs_etcd
PREFIX = "/followed/"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch counts as dead after a second of silence, not after five."""
    monkeypatch.setattr(etcd_watch, "_ASK", 0.2)
    monkeypatch.setattr(etcd_watch, "_SILENCE", 1.0)


class Follower:
    """Follows, and keeps what it has seen."""

    def __init__(self, etcd: Etcd) -> None:
        self.looks: list[Look] = []
        self.state: dict[str, bytes] = {}
        self.task = asyncio.create_task(self._follow(etcd))

    async def _follow(self, etcd: Etcd) -> None:
        async with aclosing(etcd.follow(PREFIX)) as looks:
            async for look in looks:
                self.looks.append(look)
                if look.complete:
                    self.state.clear()
                for key in look.removed:
                    self.state.pop(key, None)
                self.state.update({item.key: item.value for item in look.items})

    @property
    def complete(self) -> int:
        """The number of looks that read everything."""
        return sum(look.complete for look in self.looks)

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def put(etcd: Etcd, key: str, value: bytes) -> None:
    """Write, and go on trying until it is known to be written."""
    while True:
        try:
            await etcd.write([], [Put(PREFIX + key, value)])
            return
        except EtcdUnavailable:
            continue


def test_first_everything_is_seen_then_every_change(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            await put(etcd, "a", b"1")
            await etcd.write([], [Put("/elsewhere", b"")])
            follower = Follower(etcd)
            await until(lambda: follower.complete == 1)
            await etcd.write([], [Put(f"{PREFIX}b", b"1"), Delete(f"{PREFIX}a")])
            await put(etcd, "b", b"2")
            await until(lambda: follower.state == {f"{PREFIX}b": b"2"})
            first, *changes = follower.looks
            assert [item.key for item in first.items] == [f"{PREFIX}a"]
            assert first.revision < changes[0].revision
            # The follower sees the changes of one write together, and perhaps the next write with them.
            assert list(changes[0].removed) == [f"{PREFIX}a"]
            assert first.revision < changes[0].removed[f"{PREFIX}a"] <= changes[0].revision
            assert [item.key for item in changes[0].items] == [f"{PREFIX}b"]
            await follower.end()

    run(main())


def test_a_restart_of_etcd_is_outlasted(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd, Etcd([server.address]) as writer:
            await put(writer, "a", b"0")
            follower = Follower(etcd)
            await until(lambda: follower.complete == 1)
            for number in range(1, 4):
                server.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(server.start)
                await put(writer, "a", b"%d" % number)
                await until(lambda: follower.state[f"{PREFIX}a"] == b"%d" % number)  # noqa: B023 - at once
            assert follower.complete == 1, "it goes on where it was, without reading everything again"
            revisions = [look.revision for look in follower.looks]
            assert revisions == sorted(set(revisions)), "nothing is seen twice"
            await follower.end()

    run(main())


def test_changes_that_were_compacted_meanwhile_make_it_read_everything_again(server: EtcdServer) -> None:
    async def main() -> None:
        with Proxy(server.address.port, Random(1)) as proxy:
            async with Etcd([Address("127.0.0.1", proxy.port)]) as etcd, Etcd([server.address]) as writer:
                for name in "abc":
                    await put(writer, name, b"1")
                follower = Follower(etcd)
                await until(lambda: follower.complete == 1)
                proxy.cut(refuse=True)
                await put(writer, "a", b"2")
                await writer.write([], [Delete(f"{PREFIX}b")])
                await put(writer, "d", b"1")
                for number in range(10):
                    await put(writer, "e", b"%d" % number)
                await asyncio.to_thread(server.compact, (await writer.read(PREFIX)).revision)
                proxy.go_on()
                await until(lambda: follower.complete == 2)
                expected = {PREFIX + name: value for name, value in zip("acde", (b"2", b"1", b"1", b"9"), strict=True)}
                assert follower.state == expected, "what was removed meanwhile is gone too"
                await put(writer, "f", b"1")
                await until(lambda: f"{PREFIX}f" in follower.state)
                assert follower.complete == 2
                await follower.end()

    run(main())


@pytest.mark.usefixtures("impatient")
def test_a_paused_etcd_is_waited_for(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address], timeout=1.0, attempt_timeout=0.5) as etcd:
            await put(etcd, "a", b"1")
            follower = Follower(etcd)
            await until(lambda: follower.complete == 1)
            server.pause()
            await asyncio.sleep(2)  # for longer than the watch is silent before it is taken for dead
            server.go_on()
            await put(etcd, "a", b"2")
            await until(lambda: follower.state[f"{PREFIX}a"] == b"2")
            assert follower.complete == 1
            await follower.end()

    run(main())


@pytest.mark.usefixtures("impatient")
def test_a_member_that_is_paused_is_left_for_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await asyncio.to_thread(started_together, tmp_path, 3)
        try:
            async with Etcd([server.address for server in servers]) as writer:
                etcds = [Etcd([server.address for server in servers]) for _ in range(6)]  # each begins somewhere else
                followers = [Follower(etcd) for etcd in etcds]
                await until(lambda: all(follower.complete == 1 for follower in followers))
                servers[0].pause()
                await put(writer, "a", b"1")
                await until(lambda: all(follower.state.get(f"{PREFIX}a") == b"1" for follower in followers))
                servers[0].go_on()
                for follower, etcd in zip(followers, etcds, strict=True):
                    await follower.end()
                    await etcd.close()
        finally:
            for server in servers:
                server.kill()

    run(main())


@pytest.mark.usefixtures("impatient")
def test_a_network_that_says_nothing_any_more_is_noticed(server: EtcdServer) -> None:
    async def main() -> None:
        with Proxy(server.address.port, Random(1)) as proxy:
            first, second = Address("127.0.0.1", proxy.port), server.address
            async with Etcd([first], attempt_timeout=0.5) as etcd, Etcd([second]) as writer:
                follower = Follower(etcd)
                await until(lambda: follower.complete == 1)
                proxy.stall()
                await put(writer, "a", b"1")
                before = proxy.accepted
                await until(lambda: proxy.accepted > before)  # it tries a new connection
                proxy.cut()
                proxy.go_on()
                await until(lambda: f"{PREFIX}a" in follower.state)
                await follower.end()

    run(main())


def test_connections_that_break_all_the_time_lose_nothing(server: EtcdServer) -> None:
    async def main() -> None:
        with Proxy(server.address.port, Random(7), resets=1.0) as proxy:
            async with Etcd([Address("127.0.0.1", proxy.port)]) as etcd, Etcd([server.address]) as writer:
                follower = Follower(etcd)
                for number in range(300):
                    await put(writer, f"{number % 7}", b"%d" % number + bytes(500))
                    if number % 50 == 0:
                        await asyncio.sleep(0.3)
                want = {item.key: item.value for item in (await writer.read(PREFIX)).items}
                await until(lambda: follower.state == want)
                for before, look in itertools.pairwise(follower.looks):
                    assert all(before.revision < item.changed <= look.revision for item in look.items), "none twice"
                await follower.end()

    run(main())


def test_who_may_not_read_is_told_so(server: EtcdServer) -> None:
    server.post("auth/user/add", name="root", password="root")
    server.post("auth/role/add", name="root")
    server.post("auth/user/grant", user="root", role="root")
    server.post("auth/enable")

    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            with pytest.raises(EtcdRefused):
                await anext(etcd.follow(PREFIX))

    run(main())
