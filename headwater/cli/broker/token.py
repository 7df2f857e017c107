"""`hw broker token`: make, list and revoke the tokens that identify programs."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.output import Json, console, done, printable, shown, wants_json, write_json
from headwater.core.errors import InvalidConfiguration
from headwater.core.options import CENTURY, seconds

app = typer.Typer(
    no_args_is_help=True,
    help="Tokens, which identify programs.",
    epilog="[bold]Examples[/]\n\n"
    "  hw broker token create billing --access access.yaml\n"
    "  hw broker token list --access access.yaml\n"
    "  hw broker token revoke 3f9c0a71b2de --access access.yaml",
)

_Access = Annotated[
    Path,
    typer.Option(
        "--access", metavar="FILE", envvar="HEADWATER_BROKER_ACCESS", help="The access file; tokens are kept beside it."
    ),
]


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw broker token create billing --access access.yaml\n"
    "  hw broker token create billing --access access.yaml --expires 90d\n"
    "  hw broker token create billing --access access.yaml > billing.token     only the token"
)
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="A user of the access file.")],
    access: _Access,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long the token is valid, such as 90d; without it, for ever.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, also in a pipe.")] = False,
) -> None:
    """Create a token for a user. It is shown once: the broker keeps a hash of it, in a file beside the access file."""
    from headwater.broker.security.access import ANONYMOUS
    from headwater.broker.security.access_file import read_access
    from headwater.broker.security.tokens import create_token, tokens_beside
    from headwater.core.section import suggestion

    users = read_access(access)
    if user not in users or user == ANONYMOUS.name:
        known = sorted(set(users) - {ANONYMOUS.name})
        raise InvalidConfiguration(f"{access} has no user {user!r}: {suggestion(user, known)}")
    until = None if expires is None else time.time() + _length(expires)
    token = create_token(tokens_beside(access), user, until)
    if as_json:
        write_json({"id": token.split("_")[1], "user": user, "expires": _moment(until), "token": token})
        return
    if sys.stdout.isatty():
        people = console()
        people.print(Text.assemble(("✓ ", "bold green"), printable(f"a token for {user}; it is shown this once:")))
        people.print(Text(token, "bold"), soft_wrap=True)
        people.print(Text("Programs take it from HEADWATER_CLIENT_TOKEN.", "dim"))
        return
    sys.stdout.write(token + "\n")


def _length(text: str) -> float:
    limits = seconds(1, CENTURY)
    length = limits.parse(text.strip())
    if length is None or length not in limits:
        raise InvalidConfiguration(f"--expires must be {limits}, such as 90d or 12h, not {text!r:.60}")
    return float(length)


@app.command(
    name="list",
    epilog="[bold]Examples[/]\n\n"
    "  hw broker token list --access access.yaml\n"
    "  hw broker token list --access access.yaml | jq -r '.tokens[].id'",
)
def list_tokens(access: _Access, as_json: Json = False) -> None:
    """List tokens: their users, since when and until when. The tokens themselves are stored nowhere."""
    from headwater.broker.security.tokens import read_tokens, tokens_beside

    tokens = sorted(read_tokens(tokens_beside(access)).values(), key=lambda token: (token.user, token.created))
    rows = [(token.id, token.user, _moment(token.created), _moment(token.expires)) for token in tokens]
    if wants_json(as_json):
        names = ("id", "user", "created", "expires")
        write_json({"tokens": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("id", "user", "created", "expires"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*(shown(text or "never") for text in row))
    console().print(table)


def _moment(seconds_since_1970: float | None) -> str | None:
    if seconds_since_1970 is None:
        return None
    return datetime.fromtimestamp(seconds_since_1970, UTC).isoformat(timespec="seconds")


@app.command(epilog="[bold]Examples[/]\n\n  hw broker token revoke 3f9c0a71b2de --access access.yaml")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it; a token works too.")],
    access: _Access,
    as_json: Json = False,
) -> None:
    """Forget a token. A running broker refuses it within a second or two."""
    from headwater.broker.security.tokens import revoke_token, tokens_beside

    identity = token.split("_")[1] if token.startswith("hw_") and token.count("_") > 1 else token
    revoked = revoke_token(tokens_beside(access), identity)
    if wants_json(as_json):
        write_json({"revoked": revoked.id, "user": revoked.user})
    else:
        done(f"token {revoked.id} of {revoked.user} is revoked")
