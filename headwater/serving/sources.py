"""Sources: the addresses that callers come from, so that bounds hold for each of them.

A bound for all callers together lets one of them use it up and keep the others out.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

_NETWORK_BYTES: Final = 8
"""Of an IPv6 address: whoever has one address has all that begin like it."""


def source_of(host: str) -> str:
    """The source that an address belongs to: an IPv4 address, or the network of 64 bits of an IPv6 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:_NETWORK_BYTES].hex()


def source_of_peer(peer: str) -> str:
    """The source of a peer as gRPC writes it: `ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711` or `unix:`.

    A peer by HTTP is written without its port: `http:10.0.0.7`.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind == "http":
        return source_of(address)
    return source_of(address.rpartition(":")[0].strip("[]")) if kind in ("ipv4", "ipv6") else peer
