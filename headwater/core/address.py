"""Addresses: `hw://host:port`, and several of them with commas between, any of which may answer."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final, NamedTuple

from headwater.core.errors import InvalidConfiguration

SCHEME: Final = "hw://"
DEFAULT_PORT: Final = 6174
ETCD_PORT: Final = 2379
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")


def scheme_of(where: str) -> str | None:
    """Return the scheme of an address, such as `hw` of `hw://host`; None for the path of a directory."""
    match = _SCHEME.match(where)
    return match[1] if match else None


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """True if only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host.strip("[]")).is_loopback
        except ValueError:  # a name, which may lead anywhere
            return False


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """`host` or `host:port`; raises InvalidConfiguration."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or default_port) if match is not None else -1
    if match is None or not 0 <= port < 1 << 16:
        raise InvalidConfiguration(f"an address is host or host:port, not {text!r:.100}")
    return Address(match["host"], port)


def parse_endpoints(text: str) -> list[Address]:
    """The members of an etcd in `host:port,host:port`; raises InvalidConfiguration."""
    return [parse_address(part, ETCD_PORT) for part in text.split(",")]


def check_cluster_name(text: str) -> str:
    """The name of a cluster, which is a part of its keys in etcd; raises InvalidConfiguration."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text) is None:
        raise InvalidConfiguration(f"a cluster's name has letters, digits, '.', '_' and '-', not {text!r:.120}")
    return text


def parse_store(text: str) -> list[Address]:
    """The brokers in `hw://host:port,host:port`, in their order; raises InvalidConfiguration."""
    if not text.startswith(SCHEME):
        raise InvalidConfiguration(f"the address of a broker begins with {SCHEME}, not {text!r:.100}")
    return [parse_address(part) for part in text[len(SCHEME) :].rstrip("/").split(",")]
