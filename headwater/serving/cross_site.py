"""The check of Host and Origin that every HTTP server of ours makes before it looks at a request.

A server listens where each web site that its user visits can send requests to, through the user's browser. So a request
must name this host, which a site whose name was made to point here does not do (DNS rebinding), and must not come from
a page of another origin (cross-site request forgery).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import NamedTuple


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    status: int
    message: str


def cross_site_refusal(
    headers: Mapping[str, str], names: Collection[str] | None, *, may_be_linked: bool = False
) -> Refusal | None:
    """Return the refusal of a request that a browser was tricked into; None if the request may go on.

    `headers` has its names in lower case. `names` are those that requests may call this host by, besides its addresses
    and `localhost`; None is any name, which is safe only if each request needs a secret that another site lacks.
    `may_be_linked` accepts a request that follows a link on another site.
    """
    host = headers.get("host", "").lower()
    if names is not None and not _is_named(host, names):
        return Refusal(421, "this is not the host that was asked for")
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return Refusal(403, "this is not for other sites' pages")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not may_be_linked:
        return Refusal(403, "this is not for other sites' pages")
    return None


def _is_named(host: str, names: Collection[str]) -> bool:
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost" or any(name == known.lower().strip("[]") for known in names):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
