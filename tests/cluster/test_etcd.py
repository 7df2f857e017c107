"""The client of etcd: what it reads and writes, and what it says when etcd is away, against a real etcd."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.connection import EtcdAccess, EtcdConnection
from headwater.cluster.etcd.item import Delete, EtcdItem, Put, WriteGuard
from headwater.core.address import Address, parse_endpoints
from headwater.core.errors import EtcdRefused, EtcdUnavailable, InvalidConfiguration
from tests.support.aio import run
from tests.support.certificates import Authority, needs_openssl
from tests.support.etcd_server import EtcdServer, needs_etcd, started_together
from tests.support.patience import PACES
from tests.support.ports import free_port
from tests.support.proxy import Proxy

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One for the tests that do it no harm; each has keys of its own."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EtcdServer]:
    """One of a test's own."""
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


# Keys.


def test_a_key_has_a_value_and_revisions(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            assert await etcd.get("/keys/a") is None
            made = await etcd.write([], [Put("/keys/a", b"one")])
            changed = await etcd.write([], [Put("/keys/a", b"two")])
            assert made < changed
            assert await etcd.get("/keys/a") == EtcdItem("/keys/a", b"two", made, changed)
            await etcd.write([], [Delete("/keys/a")])
            assert await etcd.get("/keys/a") is None

    run(main())


def test_all_below_a_prefix_are_read_at_one_revision(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            await etcd.write([], [Put(f"/below/{name}", name.encode()) for name in "abc"] + [Put("/below0", b"")])
            revision = await etcd.write([], [Put("/elsewhere", b"")])
            look = await etcd.read("/below/")
            assert [item.value for item in look.items] == [b"a", b"b", b"c"]
            assert look.revision == revision
            assert look.complete
            await etcd.write([], [Delete("/below/", prefix=True)])
            assert not (await etcd.read("/below/")).items
            assert await etcd.get("/below0") is not None

    run(main())


def test_a_write_is_done_only_while_all_its_guards_hold(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            key = "/guarded"
            created = await etcd.write([WriteGuard(key, created=0)], [Put(key, b"1")])
            assert created
            assert await etcd.write([WriteGuard(key, created=0)], [Put(key, b"no")]) == 0
            changed = await etcd.write(
                [WriteGuard(key, created=created), WriteGuard(key, changed=created)], [Put(key, b"2")]
            )
            assert changed > created
            assert (
                await etcd.write(
                    [WriteGuard(key, created=created), WriteGuard(key, changed=created)], [Put(key, b"no")]
                )
                == 0
            )
            assert await etcd.write([WriteGuard(key, version=1)], [Put(key, b"no")]) == 0
            assert await etcd.write([WriteGuard(key, value=b"2"), WriteGuard(key, version=2)], [Put(key, b"3")])
            both = [Put("/guarded/other", b"no"), Put(key, b"no")]
            assert await etcd.write([WriteGuard(key, version=3), WriteGuard("/not-there", version=1)], both) == 0
            assert await etcd.get("/guarded/other") is None
            item = await etcd.get(key)
            assert item is not None
            assert item.value == b"3"

    run(main())


def test_a_guard_says_by_what(server: EtcdServer) -> None:  # noqa: ARG001 - it needs no server, its neighbours do
    with pytest.raises(InvalidConfiguration, match="must say what it guards by"):
        WriteGuard("/key").packed()


# Leases.


def test_keys_end_with_their_lease(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            lease = await etcd.grant(60)
            await etcd.write([], [Put("/leased/a", b"", lease), Put("/leased/b", b"", lease), Put("/leased/c", b"")])
            item = await etcd.get("/leased/a")
            assert item is not None
            assert item.lease == lease
            assert await etcd.keep_alive(lease)
            await etcd.revoke(lease)
            assert [item.key for item in (await etcd.read("/leased/")).items] == ["/leased/c"]
            assert not await etcd.keep_alive(lease)
            await etcd.revoke(lease)  # it has ended already: that is what was wanted

    run(main())


def test_a_lease_that_nobody_keeps_alive_ends(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            for pace in PACES:  # one that is kept alive too late ends as well
                kept, left = await etcd.grant(2 * pace), await etcd.grant(2 * pace)
                await etcd.write([], [Put("/alive/kept", b"", kept), Put("/alive/left", b"", left)])
                while len((await etcd.read("/alive/")).items) == 2:
                    await etcd.keep_alive(kept)
                    await asyncio.sleep(0.2)
                if [item.key for item in (await etcd.read("/alive/")).items] == ["/alive/kept"]:
                    return
            pytest.fail("it ends although it is kept alive")

    run(main())


def test_a_write_under_a_lease_that_has_ended_is_refused(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            lease = await etcd.grant(60)
            await etcd.revoke(lease)
            with pytest.raises(EtcdRefused, match="lease not found") as refused:
                await etcd.write([], [Put("/late", b"", lease)])
            assert refused.value.code == "NOT_FOUND"
            assert await etcd.get("/late") is None

    run(main())


# When etcd is away.


def test_where_nobody_listens_nothing_has_happened_for_sure() -> None:
    async def main() -> None:
        async with Etcd([Address("127.0.0.1", free_port())], timeout=0.5) as etcd:
            with pytest.raises(EtcdUnavailable) as failed:
                await etcd.write([], [Put("/key", b"")])
            assert not failed.value.unknown
            with pytest.raises(EtcdUnavailable):
                await etcd.get("/key")

    run(main())


def test_a_paused_etcd_is_waited_for_so_long_and_a_write_is_then_unknown(own: EtcdServer) -> None:
    async def main() -> None:
        async with (
            Etcd([own.address], timeout=3.0, attempt_timeout=1.0) as etcd,
            Etcd([own.address], timeout=300.0) as other,
        ):
            await _written(etcd, b"before")
            own.pause()
            with pytest.raises(EtcdUnavailable, match="is not known") as failed:
                await etcd.write([], [Put("/key", b"during")])
            assert failed.value.unknown
            with pytest.raises(EtcdUnavailable) as failed:
                await etcd.write([], [Put("/key", b"not sent")])
            assert not failed.value.unknown, "there is no connection by which it could have left"
            own.go_on()
            item = await other.get("/key")
            assert item is not None
            assert item.value in (b"before", b"during")

    run(main())


def test_a_write_whose_answer_is_lost_is_not_repeated_and_can_be_read_again(own: EtcdServer) -> None:
    async def main() -> None:
        with Proxy(own.address.port, Random(1)) as proxy:
            async with Etcd([Address("127.0.0.1", proxy.port)], timeout=300.0, attempt_timeout=1.0) as etcd:
                await _written(etcd, b"before")
                proxy.stall(answers_only=True)
                with pytest.raises(EtcdUnavailable) as failed:
                    await etcd.write([WriteGuard("/key", version=1)], [Put("/key", b"after")])
                assert failed.value.unknown
                proxy.cut()
                proxy.go_on()
                item = await etcd.get("/key")
                assert item is not None
                assert item.value == b"after"
                assert item.changed - item.created == 1, "it was written once"

    run(main())


def test_reads_and_leases_outlast_a_restart(own: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([own.address], timeout=300.0) as etcd:
            lease = await etcd.grant(60)
            await etcd.write([], [Put("/key", b"1", lease)])
            own.kill()
            reading = asyncio.create_task(etcd.get("/key"))
            keeping = asyncio.create_task(etcd.keep_alive(lease))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own.start)
            assert await reading is not None
            assert await keeping

    run(main())


def test_of_three_members_any_two_are_enough(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await asyncio.to_thread(started_together, tmp_path, 3)
        try:
            async with Etcd([server.address for server in servers], timeout=300.0, attempt_timeout=1.0) as etcd:
                await _written(etcd, b"first")
                for number, server in enumerate(servers):
                    server.pause()
                    await _written(etcd, b"%d" % number)
                    server.go_on()
                    item = await etcd.get("/key")
                    assert item is not None
                    assert item.value == b"%d" % number
                servers[0].kill()
                await _written(etcd, b"dead")
        finally:
            for server in servers:
                server.kill()

    run(main())


async def _written(etcd: Etcd, value: bytes) -> None:
    """Write until it is known to be written: while another member takes the lead, some writes are not answered.

    Each write is guarded. A write that waits in a paused member is carried out when the member goes on, behind what was
    written since.
    """
    while True:
        with suppress(EtcdUnavailable):
            known = await etcd.get("/key")
            if known is not None and known.value == value:
                return
            await etcd.write([WriteGuard("/key", changed=0 if known is None else known.changed)], [Put("/key", value)])


def test_a_call_that_is_cancelled_ends_at_once(own: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([own.address], timeout=300.0, attempt_timeout=300.0) as etcd:
            await etcd.get("/key")
            own.pause()
            calls = [asyncio.create_task(call) for call in (etcd.get("/key"), etcd.write([], [Put("/key", b"")]))]
            await asyncio.sleep(0.1)
            for call in calls:
                call.cancel()
            assert all(
                isinstance(outcome, asyncio.CancelledError)
                for outcome in await asyncio.gather(*calls, return_exceptions=True)
            )

    run(main())


# Users, certificates, endpoints and versions.


def test_a_user_needs_the_right_password_and_rights(own: EtcdServer) -> None:
    own.post("auth/user/add", name="root", password="root")
    own.post("auth/role/add", name="root")
    own.post("auth/user/grant", user="root", role="root")
    own.post("auth/user/add", name="broker", password="secret")
    own.post("auth/role/add", name="headwater")
    permission = {"permType": "READWRITE", "key": "L2hlYWR3YXRlci8=", "range_end": "L2hlYWR3YXRlcjA="}  # /headwater/
    own.post("auth/role/grant", name="headwater", perm=permission)
    own.post("auth/user/grant", user="broker", role="headwater")
    own.post("auth/enable")

    async def main() -> None:
        async with Etcd([own.address]) as nobody:
            with pytest.raises(EtcdRefused):
                await nobody.get("/headwater/a")
        async with Etcd([own.address], EtcdAccess(user="broker", password="wrong")) as wrong:
            with pytest.raises(EtcdRefused, match="authentication failed"):
                await wrong.get("/headwater/a")
        async with Etcd([own.address], EtcdAccess(user="broker", password="secret"), timeout=300.0) as etcd:
            assert await etcd.write([], [Put("/headwater/a", b"1")])
            with pytest.raises(EtcdRefused, match="permission denied"):
                await etcd.get("/elsewhere")
            looks = etcd.follow("/headwater/")
            assert [item.value for item in (await anext(looks)).items] == [b"1"]
            root = own.post("auth/authenticate", name="root", password="root")["token"]
            own.post("auth/user/changepw", token=root, name="broker", password="secret")  # its tokens end with that
            assert await etcd.write([], [Put("/headwater/a", b"1")])
            await asyncio.to_thread(own.stop)
            await asyncio.to_thread(own.start)
            assert await etcd.get("/headwater/a") is not None
            assert await etcd.write([], [Put("/headwater/a", b"2")])
            assert [item.value for item in (await anext(looks)).items][-1] in (b"1", b"2")
            await looks.aclose()

    run(main())


@needs_openssl
def test_members_with_tls_want_the_authority_and_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("etcd", "DNS:localhost", "IP:127.0.0.1")
    mine = authority.sign("broker")
    flags = ["--cert-file", str(pair.certificate), "--key-file", str(pair.key), "--client-cert-auth"]
    flags += ["--trusted-ca-file", str(authority.certificate)]

    async def main(server: EtcdServer) -> None:
        own = EtcdAccess(tls_certificate=str(mine.certificate), tls_key=str(mine.key))
        known = EtcdAccess(tls_ca=str(authority.certificate))
        async with Etcd([server.address], replace(own, tls_ca=known.tls_ca)) as etcd:
            assert await etcd.write([], [Put("/key", b"")])
        for access in (EtcdAccess(), known, own):
            async with Etcd([server.address], access, timeout=1.0) as etcd:
                with pytest.raises(EtcdUnavailable):
                    await etcd.get("/key")

    with EtcdServer(tmp_path / "etcd", *flags, scheme="https") as server:
        run(main(server))


def test_passwords_are_not_sent_in_the_clear_beyond_this_machine() -> None:
    with pytest.raises(InvalidConfiguration, match="only over TLS"):
        Etcd(parse_endpoints("10.0.0.1:2379"), EtcdAccess(user="broker", password="secret"))
    assert "secret" not in repr(EtcdAccess(user="broker", password="secret"))


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ({"user": "broker"}, "belong together"),
        ({"tls_certificate": "broker.pem"}, "belong together"),
    ],
)
def test_half_of_a_pair_is_refused(access: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        EtcdAccess(user=access.get("user"), tls_certificate=access.get("tls_certificate"))


def test_endpoints_are_hosts_with_ports() -> None:
    assert parse_endpoints("a,b:1, [::1]:2") == [Address("a", 2379), Address("b", 1), Address("[::1]", 2)]
    with pytest.raises(InvalidConfiguration, match="host or host:port"):
        parse_endpoints("http://a:2379")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.5", "3.3.27", "2.0.0", ""])
def test_versions_that_can_corrupt_themselves_or_are_too_old_are_refused(version: str) -> None:
    async def main() -> None:
        connection = EtcdConnection([Address("127.0.0.1", 1)], EtcdAccess(), timeout=1, attempt_timeout=1)
        with pytest.raises(EtcdRefused, match=f"version .{{0,1}}{re.escape(version)}"):
            connection.check_version(Address("127.0.0.1", 1), version)

    run(main())


@pytest.mark.parametrize("version", ["3.4.0", "3.4.23", "3.5.6", "3.5.21", "3.6.0", "4.0.0"])
def test_other_versions_are_not(version: str) -> None:
    async def main() -> None:
        connection = EtcdConnection([Address("127.0.0.1", 1)], EtcdAccess(), timeout=1, attempt_timeout=1)
        connection.check_version(Address("127.0.0.1", 1), version)

    run(main())


def test_an_unsafe_version_can_be_allowed_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        access = EtcdAccess(allow_unsafe_version=True)
        connection = EtcdConnection([Address("127.0.0.1", 1)], access, timeout=1, attempt_timeout=1)
        for _ in range(2):
            connection.check_version(Address("127.0.0.1", 1), "3.5.1")

    run(main())
    assert [record.levelname for record in caplog.records if "corrupt" in record.message] == ["WARNING"]
