"""A broker: serves a store over gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headwater.broker.arrivals import GROUP, Key
from headwater.broker.backend import Backend
from headwater.broker.clustered.backend import ClusteredBackend
from headwater.broker.clustered.groups import check_without_groups
from headwater.broker.core import Core
from headwater.broker.metrics import broker_metrics
from headwater.broker.rpc.carrying import CallCarrier, ClusterCarrier, NoCarrier
from headwater.broker.rpc.health import Health
from headwater.broker.rpc.peers import ClusterPeerMethods, NoPeerMethods, PeerMethods
from headwater.broker.rpc.service import service
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import OPEN, Access
from headwater.broker.security.secrets import Secrets, secrets_of
from headwater.broker.sessions import sessions_in
from headwater.broker.standalone.backend import StandaloneBackend
from headwater.cluster.control.numbering import numbered_identity
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.node import ClusterNode
from headwater.core.address import DEFAULT_PORT, Address, parse_address
from headwater.core.config import BrokerConfig
from headwater.core.errors import HeadwaterError, StoreError
from headwater.embedded.directory_store import DirectoryStore
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition
from headwater.wire.service import SERVICE

_log = logging.getLogger(__name__)
LOOPBACK: Final = Address("127.0.0.1", DEFAULT_PORT)
_LOOK: Final = 0.01
_STARTING: Final = 30.0
_HANDSHAKE_MS: Final = 10_000
"""A connection on which nobody says hello for so long is closed."""
_IDLE_MS: Final = 600_000
"""So is one without calls; a client that is still there connects again with its next one."""


class Broker:
    """Serves a store, which stays its owner's: close it after the broker has stopped.

    `start` serves in a thread of this program; `serve` serves in the event loop that calls it, until `drain`.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig | None = None,
        access: Access = OPEN,
        *,
        listen: Address = LOOPBACK,
        credentials: grpc.ServerCredentials | None = None,
        etcd: Callable[[], Etcd] | None = None,
        peer_credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """A port of 0 is any that is free; `address` tells which one. Without credentials there is no encryption.

        `etcd` makes a client of the etcd of a cluster, which the broker joins; without it, it is in none. With
        `peer_credentials` it calls the other brokers over TLS.
        """
        self._store = store
        self.config = config or BrokerConfig()
        self._access = access
        self._listen = listen
        self._credentials = credentials
        self._etcd = etcd
        self._peer_credentials = peer_credentials
        self._address: Address | None = None
        self._core: Core | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._drained = asyncio.Event()

    @property
    def address(self) -> Address:
        """The address at which it listens."""
        if self._address is None:
            raise StoreError("the broker does not serve: start it first")
        return self._address

    @property
    def serving(self) -> bool:
        """True if it takes calls: it listens, and is not about to stop."""
        return self._ready.is_set() and self._core is not None and not self._core.runtime.draining.is_set()

    @property
    def number(self) -> int:
        """Its number among the brokers of its cluster."""
        if self._core is None:
            raise StoreError("the broker does not serve: start it first")
        return self._core.backend.catalog.broker_id

    def metrics(self) -> str:
        """The broker in numbers, as Prometheus reads them. It looks at files: not for the thread of the event loop."""
        if self._core is None:
            raise StoreError("the broker does not serve: start it first")
        return broker_metrics(self._core)

    # In a thread.

    def start(self) -> Self:
        """Serve in a thread of this program, until `stop`. Raises what keeps it from serving."""
        self._thread = threading.Thread(target=self._run, name="headwater-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(_STARTING):
            raise StoreError(f"the broker did not begin to serve within {_STARTING:g} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self.serve())
        except BaseException as error:  # noqa: BLE001 - raised by `start`, or logged
            if self._ready.is_set():
                _log.exception("the broker has failed")
            self._failure = error
        finally:
            self._ready.set()

    def stop(self) -> None:
        """Drain, and end the thread. Stopping twice does no harm."""
        if self._loop is not None and self._thread is not None:
            with suppress(RuntimeError):  # the loop is closed: it has stopped by itself
                self._loop.call_soon_threadsafe(self.drain)
            self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # In an event loop.

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `drain`; `ready` is called when it listens."""
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        secrets = await asyncio.to_thread(secrets_of, self._store)
        async with AsyncExitStack() as stack:
            runtime = Runtime(self.config.threads)
            stack.callback(runtime.close)
            stack.enter_context(sessions_in(self._store, self.config.session_timeout))
            server = self._bound()
            backend, peers_of, carrier = await self._backend(runtime, secrets)
            core = self._core = Core(runtime, backend, self.config, self._access, str(self._store))
            stack.callback(core.close)
            checks = await self._listen_with(server, service(core, peers_of(core), carrier))
            stack.push_async_callback(server.stop, None)  # also when what follows fails
            stack.push_async_callback(backend.stop)
            await backend.start(self._reached_at())
            looking = asyncio.create_task(runtime.arrivals.look(partial(_state_of, backend)))
            looking.add_done_callback(_tell_end)
            stack.callback(looking.cancel)
            _log.debug("serving %s at %s", self._store, self.address)
            self._ready.set()
            ready()
            await self._drained.wait()
            await self._leave(core, server, checks)
        _log.debug("the broker has stopped")

    async def _backend(
        self, runtime: Runtime, secrets: Secrets
    ) -> tuple[Backend, Callable[[Core], PeerMethods], CallCarrier]:
        """The backend, the methods by which other brokers call this one, and the way to them.

        Nothing else knows which backend it is.
        """
        if self._etcd is None:
            alone = StandaloneBackend(runtime, self._store, self.config, self._access, secrets, self._reached_at())
            return alone, lambda _: NoPeerMethods(), NoCarrier()
        if not isinstance(self._store, DirectoryStore):
            raise StoreError("a broker of a cluster must serve a directory")
        check_without_groups(self._store)

        def tell(partition: TopicPartition) -> None:
            runtime.arrivals.tell([partition])

        etcd, config = self._etcd(), self.config
        try:
            identity = await numbered_identity(etcd, runtime, self._store.path, config.cluster, config.broker_id)
        except BaseException:
            await etcd.close()
            raise
        node = ClusterNode(self._store, runtime, etcd, identity, config, tell, self._peer_credentials)
        clustered = ClusteredBackend(runtime, node, self.config, self._access)
        return clustered, lambda core: ClusterPeerMethods(core, clustered), ClusterCarrier(clustered)

    def _reached_at(self) -> Address:
        """The address at which clients and other brokers reach it."""
        return self.address if self.config.advertise is None else parse_address(self.config.advertise)

    def _bound(self) -> grpc.aio.Server:
        """A server with its port."""
        server = grpc.aio.server(options=_options(self.config))
        where = str(self._listen)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise StoreError(f"the broker cannot listen at {where}: {error}") from error
        self._address = Address(self._listen.host, port)
        return server

    async def _listen_with(self, server: grpc.aio.Server, methods: grpc.GenericRpcHandler) -> Health:
        """Begin to answer calls."""
        server.add_generic_rpc_handlers((methods,))
        checks = Health()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        for name in (SERVICE.full_name, ""):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        return checks

    def drain(self) -> None:
        """Stop accepting, finish what was accepted, make it durable, and leave. For the thread of the event loop."""
        self._drained.set()

    async def _leave(self, core: Core, server: grpc.aio.Server, checks: Health) -> None:
        await core.backend.drain()
        core.runtime.draining.set()
        core.runtime.arrivals.tell_all()
        await checks.enter_graceful_shutdown()
        stopping = asyncio.create_task(server.stop(self.config.drain_timeout))
        while core.connections and not stopping.done():
            await asyncio.sleep(_LOOK)
        # Not by a second stop: gRPC does not survive two at once.
        checks.end_watches()
        await stopping
        await core.runtime.write(self._sync)

    def _sync(self) -> None:
        for partition in self._store.open_partitions():
            try:
                partition.sync()
            except HeadwaterError as error:
                _log.error("%s could not be made durable: %s", partition, error)


def _state_of(backend: Backend, keys: list[Key]) -> dict[Key, int]:
    """The end of each partition, or the generation of each group, that someone waits for; -1 where it is gone."""
    states: dict[Key, int] = {}
    for name, number in keys:
        try:
            is_group = number == GROUP
            state = backend.groups.generation(name) if is_group else backend.logs.end(TopicPartition(name, number))
            states[name, number] = state
        except (HeadwaterError, OSError):
            states[name, number] = -1
    return states


def _tell_end(task: asyncio.Task[None]) -> None:
    """Log the end of background work, which should never end by itself."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("a background task of the broker has failed and is not running any more", exc_info=task.exception())


def _options(config: BrokerConfig) -> list[tuple[str, Any]]:
    """gRPC's own settings."""
    return [
        ("grpc.so_reuseport", 0),  # two brokers at one port would each get a part of the calls
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # a frame that was taken is given back, whatever the limit is by then
        ("grpc.max_concurrent_streams", config.max_calls),
        ("grpc.keepalive_time_ms", 30_000),  # finds out who is gone without having said so
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    ]
