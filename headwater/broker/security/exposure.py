"""Exposure: what a broker must have before others than this machine can reach it."""

from __future__ import annotations

from headwater.core.address import parse_address
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration

_FLAG = "--insecure-no-authentication"


def check_exposure(config: BrokerConfig) -> None:
    """Raise InvalidConfiguration for a broker that anyone could use, or whose tokens anyone could overhear."""
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise InvalidConfiguration("tls_certificate and tls_key belong together: give both, or neither")
    if config.tls_client_ca is not None and config.tls_certificate is None:
        raise InvalidConfiguration(
            "tls_client_ca asks for clients' certificates, which needs tls_certificate and tls_key"
        )
    if config.tls_client_ca is not None and config.access is None:
        raise InvalidConfiguration(
            "tls_client_ca identifies callers, but nothing says what they may do: name an access file with access"
        )
    if config.console is not None and config.access is None and not parse_address(config.console).local:
        raise InvalidConfiguration(
            f"console {config.console} is not only for this machine: name users in an access file (--access), or serve "
            "it on 127.0.0.1"
        )
    for option, address in (("listen", config.listen), ("metrics", config.metrics), ("console", config.console)):
        if address is not None and not parse_address(address).local:
            _check_public(option, address, config)


def _check_public(option: str, address: str, config: BrokerConfig) -> None:
    where = f"{option} {address} is not only for this machine"
    if config.access is None and not config.insecure_no_authentication:
        raise InvalidConfiguration(
            f"{where}, and anyone who reaches it could do everything: name users in an access file (--access, with "
            f"--tls-certificate and --tls-key), listen on 127.0.0.1, or say {_FLAG}"
        )
    if config.access is not None and config.tls_certificate is None:
        raise InvalidConfiguration(
            f"{where}, and tokens would cross the network for anyone to read: give --tls-certificate and --tls-key, or "
            "listen on 127.0.0.1"
        )
