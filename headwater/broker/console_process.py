"""The console of a broker: a process beside it, which is a client like any other and has no rights of its own.

With an access file people come with their tokens, and the broker decides about each call. Without one, everyone who
has the link that is logged gets in. It ends with the broker, however that ends: then its standard input is closed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Final

from headwater.core.address import SCHEME, Address, parse_address
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration

_LOG: Final = logging.getLogger("headwater.broker.console_process")
_PATIENCE: Final = 10.0
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class ConsoleProcess:
    """A console at the address that a broker's configuration names."""

    def __init__(self, config: BrokerConfig, broker: Address) -> None:
        """Start it, for a broker that listens at this address."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli", "console", *_arguments(config, broker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_CLIENT_")},
            start_new_session=True,  # Ctrl-C is for the broker, which takes the console with it
        )
        self._ending = False
        self._thread = threading.Thread(target=self._listen, name="headwater-broker-console", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _LOG.info("console", extra={"facts": {"link": line.strip()}})
        code = self._process.wait()
        if not self._ending:
            _LOG.error("the console has ended, the broker goes on without it", extra={"facts": {"code": code}})

    def close(self) -> None:
        """End it."""
        self._ending = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(_PATIENCE)


def check_console(config: BrokerConfig) -> None:
    """Raise InvalidConfiguration for a console that could not reach its broker."""
    if config.console is None:
        return
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InvalidConfiguration(f"console needs {' and '.join(missing)}: run pip install 'headwater[console]'")
    if config.tls_certificate is not None and config.advertise is None and _host(config) in _ANYWHERE.values():
        raise InvalidConfiguration(
            "the console connects to the broker by a name in the broker's certificate: set advertise to that name"
        )


def _host(config: BrokerConfig) -> str:
    """The host at which the console finds the broker: the name that clients use, else where it listens."""
    address = parse_address(config.listen if config.advertise is None else config.advertise)
    return _ANYWHERE.get(address.host, address.host)


def _arguments(config: BrokerConfig, broker: Address) -> list[str]:
    assert config.console is not None
    port = broker.port if config.advertise is None else parse_address(config.advertise).port
    arguments = [f"{SCHEME}{_host(config)}:{port}", "--listen", config.console, "--no-browser", "--with-parent"]
    if config.access is not None:
        arguments.append("--users")
    if config.console_write:
        arguments.append("--write")
    if config.tls_certificate is not None and config.tls_key is not None:
        # No matter who has signed it: the console talks to one broker, and this is its certificate.
        arguments += ["--tls-ca", config.tls_certificate]
        if config.tls_client_ca is not None:
            arguments += ["--tls-certificate", config.tls_certificate, "--tls-key", config.tls_key]
        if not parse_address(config.console).local:
            arguments += ["--serve-certificate", config.tls_certificate, "--serve-key", config.tls_key]
    return arguments
