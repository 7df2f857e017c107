"""`headwater.open`: one string says where a store is."""

from __future__ import annotations

import os
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.core.address import scheme_of
from headwater.core.config import ClientConfig
from headwater.core.environment import overridden
from headwater.core.errors import InvalidConfiguration
from headwater.core.presets import DEFAULT, Preset
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.memory_store import MemoryStore
from headwater.streams.store import Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MEMORY = "memory:"
BROKER = "hw://"
STORES: Final = "headwater.stores"
"""The group of entry points under which packages offer stores, each by the scheme of its addresses."""


class StoreOpener(Protocol):
    """Opens the stores of a backend outside of this package."""

    def __call__(self, where: str, defaults: Preset, /, **options: Any) -> Store:
        """Open the store at a whole address, with the defaults of what is made through it.

        `options` are those that the caller of `headwater.open` gave beside the preset.
        """


def open_store(
    where: str | os.PathLike[str],
    *,
    preset: Preset = DEFAULT,
    client: ClientConfig | None = None,
    **credentials: Any,
) -> Store:
    """Open a store: a directory, made if need be, `"memory:"` for one that lives in this process only, or a broker.

    An address with another scheme, such as `"sqlite://events.db"`, is opened by the package that offers this scheme,
    which gets the other options. A directory with such a name is opened as a `pathlib.Path`.

    `"hw://host:6174"` is a broker, `"hw://one:6174,two:6174"` whichever of them answers; `client` says how to talk
    to it, and `token`, `tls`, `tls_ca`, `tls_certificate` and `tls_key` who calls.

    The preset configures the topics, producers, consumers and stewards that are made through it; the environment
    (`HEADWATER_PRODUCER_LINGER=20ms`) goes over the preset, and the options of each call go over both.
    """
    defaults = overridden(preset, os.environ)
    if isinstance(where, str) and where.startswith(BROKER):
        return _connect(where, defaults, client, credentials)
    scheme = scheme_of(where) if isinstance(where, str) else None
    if isinstance(where, str) and scheme is not None and client is None:
        return _open_elsewhere(where, scheme, defaults, credentials)
    if client is not None or credentials:
        said = ["client"] if client is not None else list(credentials)
        raise InvalidConfiguration(f"{said[0]} is for brokers, whose addresses begin with {BROKER}, not for {where}")
    if where == MEMORY:
        return MemoryStore(defaults=defaults)
    return DirectoryStore(where, defaults=defaults)


def _open_elsewhere(where: str, scheme: str, defaults: Preset, options: dict[str, Any]) -> Store:
    from importlib.metadata import entry_points

    offers = entry_points(group=STORES)
    if scheme not in offers.names:
        known = ", ".join(f"{name}://" for name in ("hw", *sorted(offers.names)))
        raise InvalidConfiguration(
            f"no store has addresses like {where}: the schemes are {known}. Install the package that offers "
            f"{scheme}://, or open a directory of this name as pathlib.Path({where!r})"
        )
    opener = _opener(offers[scheme])
    try:
        signature(opener).bind(where, defaults, **options)
    except TypeError as error:
        raise InvalidConfiguration(f"{where} cannot be opened with these options: {error}") from None
    store = opener(where, defaults, **options)
    if not isinstance(store, Store):
        raise InvalidConfiguration(
            f"{offers[scheme].value} opened {where} as {type(store).__name__}: it must return a headwater.Store"
        )
    return store


def _opener(offer: EntryPoint) -> StoreOpener:
    try:
        opener: StoreOpener = offer.load()
    except (ImportError, AttributeError) as error:
        raise InvalidConfiguration(
            f"the package of {offer.name}:// addresses cannot be imported ({offer.value}: {error}): install it anew"
        ) from error
    return opener


def _connect(where: str, defaults: Preset, client: ClientConfig | None, said: dict[str, Any]) -> Store:
    try:
        import grpc  # noqa: F401 - only who talks to a broker needs it
    except ImportError as error:
        raise InvalidConfiguration(f"{where} is a broker: run pip install 'headwater[broker]' to talk to it") from error
    from headwater.client.store import connect

    return connect(where, defaults, client, said)
