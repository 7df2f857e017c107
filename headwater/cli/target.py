"""The store that a command works on: `--store`, else `HEADWATER_STORE`, else the context in use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from headwater.cli.contexts import Contexts
from headwater.core.address import SCHEME, scheme_of
from headwater.core.environment import options_said
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.streams import Store

_TIMEOUT: Final = 15.0
"""Seconds for which a command tries to reach a broker, unless HEADWATER_CLIENT_TIMEOUT says otherwise."""
_COMPLETION_TIMEOUT: Final = 1.0
_CONTEXT: Final = "@"
_MARKS: Final = ("store.lock", "__groups", "__transactions")
"""Names that a directory holds if it has been a store."""

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="STORE",
        envvar="HEADWATER_STORE",
        show_envvar=False,
        help="A directory, hw://host:6174, or @name of a context. Otherwise HEADWATER_STORE, or the context in use.",
    ),
]


class Target(NamedTuple):
    """The address of a store, and the credentials of the caller."""

    where: str
    credentials: dict[str, Any]

    @property
    def remote(self) -> bool:
        """True if the store is behind a broker."""
        return self.where.startswith(SCHEME)

    @property
    def in_directory(self) -> bool:
        """True if the store is a directory of this machine."""
        return scheme_of(self.where) is None


def find(said: str | None) -> Target:
    """The store that is meant; raises an error that says how to name one."""
    contexts = Contexts.load(os.environ)
    if said is None and contexts.current is not None:
        said = _CONTEXT + contexts.current
    if not said:
        raise HeadwaterError(
            "no store is given: give --store PATH or hw://host:6174, set HEADWATER_STORE, or run hw context use"
        )
    if not said.startswith(_CONTEXT):
        return Target(said, {})
    context = contexts.get(said.removeprefix(_CONTEXT))
    return Target(context.store, context.credentials())


def connect(said: str | None, *, make: bool = False) -> Store:
    """Open the store of a command. With `make`, a directory that is no store becomes one."""
    target = find(said)
    if target.in_directory and not make:
        check_is_store(Path(target.where))
    return _open(target, _TIMEOUT)


def check_is_store(path: Path) -> None:
    """Raise unless the directory is a store: a mistyped path must not become one."""
    if not path.is_dir():
        raise HeadwaterError(f"store {path} does not exist: hw topic create creates it")
    if not any((path / mark).exists() for mark in _MARKS):
        raise HeadwaterError(f"{path} is not a store: hw topic create turns it into one")


def _open(target: Target, timeout: float) -> Store:
    import headwater
    from headwater.core.config import ClientConfig

    if not target.remote:
        return headwater.open(target.where)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the C core would write lines of its own to standard error
    from headwater.client.credentials import NAMES

    said = options_said("client", ClientConfig, os.environ, besides=NAMES)
    return headwater.open(target.where, client=ClientConfig(**{"timeout": timeout} | said), **target.credentials)


@contextmanager
def opened(said: str | None, *, make: bool = False) -> Iterator[Store]:
    """The store that is meant, for the length of a block."""
    with connect(said, make=make) as store:
        yield store


# Completion in a shell.


def _completing(names: Callable[[Store], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        with suppress(Exception):  # a shell shows nothing, whatever goes wrong
            target = find(ctx.params.get("store"))
            if target.in_directory:
                check_is_store(Path(target.where))
            with _open(target, _COMPLETION_TIMEOUT) as store:
                return [name for name in names(store) if name.startswith(incomplete)]
        return []

    return complete


complete_topic: Final = _completing(lambda store: store.topics())
complete_group: Final = _completing(lambda store: store.group_names())

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The name of a topic.", autocompletion=complete_topic, show_default=False)
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The name of a group.", autocompletion=complete_group, show_default=False)
]
