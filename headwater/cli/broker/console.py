"""`hw console`: a web page over a store."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from headwater.cli.output import console, printable
from headwater.cli.remote import TlsAuthority, TlsCertificate, TlsKey
from headwater.core.address import SCHEME, Address, parse_address
from headwater.core.errors import InvalidConfiguration

if TYPE_CHECKING:
    from headwater.streams import Store

PORT: Final = 6175
_LISTEN: Final = f"127.0.0.1:{PORT}"
_PATIENCE: Final = 10.0
"""A page that waits for longer than this for a broker is told that it does not answer. Seconds."""

app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw console events                    open a page over ./events in the browser\n"
    "  hw console                           over the broker on this machine\n"
    "  hw console events --write            that can change things\n"
    "  hw console hw://broker.example:6174 --tls-ca ca.pem --no-browser",
)
def run(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", envvar="HEADWATER_STORE", help="A directory, or hw://host:6174 for a broker or a cluster."
        ),
    ] = "hw://127.0.0.1:6174",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address that browsers connect to; port 0 takes any free port.")
    ] = _LISTEN,
    write: Annotated[
        bool, typer.Option("--write", help="Let the page change things: topics, records, positions of groups.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    users: Annotated[
        bool, typer.Option("--users", help="Admit users of the broker, each with a token and its rights.")
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Connect to the broker by TLS, with the machine's own authorities.")
    ] = False,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    serve_certificate: Annotated[
        str | None, typer.Option(metavar="PATH", help="The console's own certificate: then it speaks HTTPS.")
    ] = None,
    serve_key: Annotated[str | None, typer.Option(metavar="PATH", help="Its key.")] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Show a store in the browser: topics, messages as they come, groups and their lag, files, pipelines, the cluster.

    It only reads unless --write is given. Without --users, only the link that it prints opens it. To listen beyond this
    machine, it needs --users and a certificate.
    """
    try:
        from headwater.console.server import Console
        from headwater.console.serving import Certificate, Serving
        from headwater.console.sessions import ConsoleSessions
    except ImportError as error:
        raise InvalidConfiguration(f"the console needs {error.name}: run pip install 'headwater[console]'") from error

    address = parse_address(listen, PORT)
    said = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if tls:
        given["tls"] = True
    check_exposure(address, store, users, serve_certificate, serve_key)
    served = (
        Certificate(serve_certificate, serve_key) if serve_certificate is not None and serve_key is not None else None
    )
    sessions = ConsoleSessions(None, _connecting(store, given)) if users else ConsoleSessions(_opened(store, given))
    try:
        serving = Serving(Console(sessions, write=write, names=None if users else (address.host,)), address, served)
    except BaseException:
        sessions.close()
        raise
    link = serving.link if sessions.launch_token is None else f"{serving.link}#launch={sessions.launch_token}"
    if with_parent:
        threading.Thread(target=_end_with_parent, args=(serving.end,), daemon=True).start()
        sys.stdout.write(f"{link}\n")
        sys.stdout.flush()
    else:
        mode = "reads and writes" if write else "reads only"
        console().print(Text.assemble(("console ", "bold"), printable(store), (f"  {mode}, Ctrl-C ends it", "dim")))
        console().print(Text(link), soft_wrap=True)
        if not no_browser:
            webbrowser.open(link)
    serving.run()


def check_exposure(
    address: Address, store: str, users: bool, serve_certificate: str | None, serve_key: str | None
) -> None:
    """Raise InvalidConfiguration for a console that others than this machine could reach, and should not."""
    if (serve_certificate is None) != (serve_key is None):
        raise InvalidConfiguration("--serve-certificate and --serve-key belong together: give both, or neither")
    if users and not store.startswith(SCHEME):
        raise InvalidConfiguration(f"--users needs a broker, whose address begins with {SCHEME}; {store} is not one")
    if address.local:
        return
    if not users:
        raise InvalidConfiguration(
            f"--listen {address} is not only for this machine: admit users of a broker by their tokens (--users, "
            "with --serve-certificate and --serve-key), or listen on 127.0.0.1"
        )
    if serve_certificate is None:
        raise InvalidConfiguration(
            f"--listen {address} is not only for this machine, and tokens would cross the network for anyone to read: "
            "give --serve-certificate and --serve-key, or listen on 127.0.0.1"
        )


def _opened(store: str, given: dict[str, Any]) -> Store:
    """The store that is there; nothing is made."""
    from headwater.core.config import ClientConfig
    from headwater.opening import open_store

    if store.startswith(SCHEME):
        return open_store(store, client=ClientConfig(timeout=_PATIENCE), **given)
    path = Path(store)
    if "://" in store or not path.is_dir():
        raise InvalidConfiguration(
            f"{store} is neither a directory nor the address of a broker, such as hw://host:6174"
        )
    if not any((entry / "topic.json").exists() for entry in path.iterdir()) and not (path / "store.lock").exists():
        raise InvalidConfiguration(f"{store} is a directory, but not a store: it contains no topic")
    return open_store(store, **given)


def _connecting(store: str, given: dict[str, Any]) -> Callable[[str], Store]:
    """Opens the store for the token of a user."""
    from headwater.core.config import ClientConfig
    from headwater.opening import open_store

    def connect(token: str) -> Store:
        return open_store(store, client=ClientConfig(timeout=_PATIENCE), token=token, **given)

    return connect


def _end_with_parent(end: Callable[[], None]) -> None:
    """Wait until the parent process has ended. Its end closes the pipe, however it came about."""
    while os.read(0, 4096):
        pass
    end()
