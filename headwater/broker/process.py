"""A broker as a process: from its configuration to its end, which SIGTERM or Ctrl-C asks for.

Errors that keep it from serving are raised before anything is served, so that the command can tell them in one line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from headwater.broker.broker import Broker
from headwater.broker.console_process import ConsoleProcess, check_console
from headwater.broker.limits.memory import keep_memory, settle_garbage
from headwater.broker.logs import Logs
from headwater.broker.security.access import BROKER, OPEN, TooManyAttempts
from headwater.broker.security.exposure import check_exposure
from headwater.broker.security.guard import Guard
from headwater.broker.security.tls import Certificates
from headwater.cluster.etcd.client import etcd_of
from headwater.core.address import Address, parse_address
from headwater.core.config import BrokerConfig
from headwater.core.environment import overridden
from headwater.core.errors import HeadwaterError, InvalidConfiguration, StoreError, Unauthenticated
from headwater.core.presets import DEFAULT
from headwater.core.version import __version__
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.files.open_files import raise_limit
from headwater.monitoring.exposition import CONTENT_TYPE
from headwater.monitoring.pages import Page, PageServer, Request

_LOG: Final = logging.getLogger("headwater.broker")
_INTERRUPTED: Final = 130


def certificates_of(config: BrokerConfig) -> Certificates | None:
    """The certificates that a configuration names; raises InvalidConfiguration."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    authority = Path(config.tls_client_ca) if config.tls_client_ca is not None else None
    return Certificates(Path(config.tls_certificate), Path(config.tls_key), authority)


def guard_of(config: BrokerConfig) -> Guard | None:
    """The guard that goes by a configuration's access file; raises InvalidConfiguration."""
    try:
        return Guard(Path(config.access)) if config.access is not None else None
    except OSError as error:
        raise InvalidConfiguration(f"{error.filename}: {error.strerror}") from error


def run_broker(config: BrokerConfig) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was accepted. A second one ends it at once."""
    check_exposure(config)
    check_console(config)
    keep_memory()
    open_files = raise_limit()
    if config.directory is None:
        raise InvalidConfiguration("say which directory to serve: hw broker DIRECTORY, or the option directory")
    certificates, guard = certificates_of(config), guard_of(config)
    listen = parse_address(config.listen)
    _check_free(listen)
    with ExitStack() as stack:
        # The logs are the last to be closed, and the store is closed after all that uses it.
        stack.callback(Logs(config.log_level, config.log_format).close)
        store = DirectoryStore(config.directory, exclusive=True, defaults=overridden(DEFAULT, os.environ))
        stack.callback(store.close)
        if guard is not None:
            stack.callback(guard.close)
            guard.watch()
        credentials = certificates.credentials() if certificates is not None else None
        etcd = partial(etcd_of, config) if config.etcd is not None else None
        peers = certificates.peer_credentials() if certificates is not None else None
        broker = Broker(
            store, config, guard or OPEN, listen=listen, credentials=credentials, etcd=etcd, peer_credentials=peers
        )
        pages = _serve_pages(config, broker, guard, certificates)
        if pages is not None:
            stack.callback(pages.close)
        asyncio.run(_serve(broker, guard, lambda: _begun(stack, broker, guard, pages, open_files)))
        _LOG.info("stopped: everything that was acknowledged is on disk")


def _begun(stack: ExitStack, broker: Broker, guard: Guard | None, pages: PageServer | None, open_files: int) -> None:
    """The broker serves: tell so, and start what is a client of it."""
    settle_garbage()
    _tell(broker, guard, pages, open_files)
    if broker.config.console is not None:
        stack.callback(ConsoleProcess(broker.config, broker.address).close)


async def _serve(broker: Broker, guard: Guard | None, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            os._exit(_INTERRUPTED)
        asked = True
        _LOG.info("draining", extra={"facts": {"most_seconds": broker.config.drain_timeout}})
        broker.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # Without an access file there is nothing to read again, and a lost terminal is no reason to stop.
    loop.add_signal_handler(signal.SIGHUP, guard.wake if guard is not None else lambda: None)
    await broker.serve(ready)


def _tell(broker: Broker, guard: Guard | None, pages: PageServer | None, open_files: int) -> None:
    config = broker.config
    facts = {
        "address": f"hw://{broker.address}",
        "directory": config.directory,
        "version": __version__,
        "pid": os.getpid(),
        "tls": "mutual" if config.tls_client_ca else "yes" if config.tls_certificate else "no",
        "authentication": "yes" if guard is not None else "no",
        "open_files": open_files,
    }
    if config.etcd is not None:
        facts["broker"] = broker.number
    if pages is not None:
        facts["metrics"] = f"{pages.host}:{pages.port}"
    _LOG.info("serving", extra={"facts": facts})
    if guard is None and config.insecure_no_authentication and not broker.address.local:
        _LOG.warning("anyone who reaches this broker can read, write and delete everything")


def _check_free(address: Address) -> None:
    """Raise StoreError, with the system's reason, if nothing can listen there: gRPC does not tell why it cannot."""
    host = address.host.strip("[]")
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(socket_address)
            probe.listen()
    except OSError as error:
        raise StoreError(
            f"nothing can listen at {address}: {error.strerror}; is a broker running there? --listen takes another one"
        ) from error


def _serve_pages(
    config: BrokerConfig, broker: Broker, guard: Guard | None, certificates: Certificates | None
) -> PageServer | None:
    """Metrics and health by HTTP, in threads of their own, if they are wanted."""
    if config.metrics is None:
        return None

    def metrics(request: Request) -> Page:
        if guard is not None:
            try:
                caller = guard.caller(tuple(request.headers.items()), f"http:{request.host}", ())
                guard.check(caller, "read", "broker", BROKER)
            except TooManyAttempts as error:
                return Page(429, f"{error}\n", headers={"Retry-After": "1"})
            except Unauthenticated as error:
                return Page(401, f"{error}\n", headers={"WWW-Authenticate": "Bearer"})
            except HeadwaterError as error:
                return Page(403, f"{error}\n")
        try:
            return Page(200, broker.metrics(), CONTENT_TYPE)
        except StoreError as error:
            return Page(503, f"{error}\n")

    def alive(request: Request) -> Page:  # noqa: ARG001 - a page is given it
        return Page(200, "alive\n")

    def ready(request: Request) -> Page:  # noqa: ARG001
        return Page(200, "serving\n") if broker.serving else Page(503, "not serving\n")

    where = parse_address(config.metrics)
    hosts = [parse_address(text).host for text in (config.metrics, config.listen, config.advertise) if text is not None]
    # TLS only where tokens would leave the machine: on it, a scraper need not know the broker's authority.
    tls = certificates.context if certificates is not None and not where.local else None
    pages = {"/metrics": metrics, "/healthz": alive, "/readyz": ready}
    try:
        return PageServer(pages, where.port, where.host, names=None if guard is not None else hosts, tls=tls)
    except OSError as error:
        raise StoreError(f"nothing can listen at {where}: {error.strerror}; --metrics takes another one") from error
