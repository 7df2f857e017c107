"""`hw context`: give stores names, and choose the one that commands work on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headwater.cli.contexts import Context, Contexts
from headwater.cli.output import Json, done, say, shown, table, wants_json, write_json
from headwater.core.address import SCHEME, parse_store

app = typer.Typer(
    no_args_is_help=True,
    help="Give stores names, and choose the one that commands work on.",
    epilog="[bold]Examples[/]\n\n"
    "  hw context add dev ~/events                   a directory\n"
    "  hw context add prod hw://broker.example:6174 --tls-ca ca.pem --token-file token\n"
    "  hw context use prod                           from now on, where no --store is given\n"
    "  hw topic list --store @dev                    another one, once",
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in Contexts.load(os.environ).known if name.startswith(incomplete)]


_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a context.", autocompletion=_complete, show_default=False)
]


def _path(given: Path | None) -> str | None:
    return None if given is None else str(given.absolute())


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw context add dev ~/events\n"
    "  hw context add prod hw://broker.example:6174 --tls-ca ca.pem --token-file token --use",
)
def add(
    name: _Name,
    store: Annotated[str, typer.Argument(metavar="STORE", help="A directory, or hw://host:6174.", show_default=False)],
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with the token; it is read with each command.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS with the machine's own authorities.")] = False,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority of the broker's certificate.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="A certificate of your own.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    as_json: Json = False,
) -> None:
    """Give a store a name, or give a known name to another store. The first context is used from then on."""
    contexts = Contexts.load(os.environ)
    if store.startswith(SCHEME):
        parse_store(store)
    else:
        store = str(Path(store).expanduser().absolute())
    paths = [_path(file) for file in (tls_ca, tls_certificate, tls_key)]
    contexts.add(name, Context(store, _path(token_file), tls, *paths))
    if use or len(contexts.known) == 1:
        contexts.current = name
    contexts.save()
    _told(contexts, f"{name} is {store}" + (", and is used from now on" if contexts.current == name else ""), as_json)


@app.command(epilog="[bold]Examples[/]\n\n  hw context use prod")
def use(name: _Name, as_json: Json = False) -> None:
    """Use this store in commands that name no other."""
    contexts = Contexts.load(os.environ)
    contexts.get(name)
    contexts.current = name
    contexts.save()
    _told(contexts, f"{name} is used from now on", as_json)


@app.command(epilog="[bold]Examples[/]\n\n  hw context remove dev")
def remove(name: _Name, as_json: Json = False) -> None:
    """Forget a name. The store stays as it is."""
    contexts = Contexts.load(os.environ)
    contexts.get(name)
    del contexts.known[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    _told(contexts, f"{name} is forgotten", as_json)


@app.command(name="list", epilog="[bold]Examples[/]\n\n  hw context list\n  hw context list | jq -r .current")
def list_contexts(as_json: Json = False) -> None:
    """Show every context, and which one is used."""
    contexts = Contexts.load(os.environ)
    if wants_json(as_json):
        write_json(_document(contexts))
        return
    listed = table("", "name", "store", "credentials")
    for name, context in sorted(contexts.known.items()):
        credentials = [
            label
            for label, configured in (
                ("token", context.token_file),
                ("TLS", context.tls or context.tls_ca),
                ("certificate", context.tls_certificate),
            )
            if configured
        ]
        mark = Text("▶", "bold green") if name == contexts.current else Text()
        listed.add_row(mark, shown(name, "bold"), shown(context.store), Text(", ".join(credentials), "dim"))
    say(listed if contexts.known else Text("none yet: hw context add NAME STORE", "dim"))


def _told(contexts: Contexts, text: str, as_json: bool) -> None:
    if wants_json(as_json):
        write_json(_document(contexts))
    else:
        done(text)


def _document(contexts: Contexts) -> dict[str, object]:
    return {
        "file": str(contexts.file),
        "current": contexts.current,
        "contexts": {name: {"store": context.store} for name, context in sorted(contexts.known.items())},
    }
