"""`hw broker`: serve a store, look at a broker, and manage its tokens."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from headwater.cli.broker import status as broker_status
from headwater.cli.broker import token as broker_token
from headwater.cli.output import Json, console, printable, shown, wants_json, write_json
from headwater.core.config import PATH, BrokerConfig
from headwater.core.options import Option, options_of

_SERVE: Final = "serve"
_SECURITY: Final = ("access", "insecure_no_authentication", "tls_certificate", "tls_key", "tls_client_ca")
_PLAIN: Final = ("listen", "advertise", "metrics", "console", "console_write", "log_level", "log_format", "steward")
_CLUSTER: Final = (
    "broker_id",
    "cluster",
    "replication",
    "replica_timeout",
    "replica_min_brokers",
    "auto_rebalance",
)


class _Group(TyperGroup):
    """Takes `hw broker DIRECTORY` as `hw broker serve DIRECTORY`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [_SERVE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Serve a store over the network: the same streams, at hw://host:6174.",
    epilog="[bold]Examples[/]\n\n"
    "  hw broker events                          serve ./events to this machine\n"
    "  hw broker serve --help                    every flag\n"
    "  hw broker status                          how it is\n"
    "  hw broker token create billing --access access.yaml",
)
app.add_typer(broker_token.app, name="token")


@cache
def _about() -> dict[str, str]:
    """Return the description of each option of a broker, from its configuration."""
    (declared,) = ast.parse(inspect.getsource(BrokerConfig)).body
    assert isinstance(declared, ast.ClassDef)
    return {
        before.target.id: " ".join(str(after.value.value).split())
        for before, after in pairwise(declared.body)
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def _parameter(option: Option) -> inspect.Parameter:
    """The flag of an option. One that is yes or no needs no value."""
    name = option.name.replace("_", "-")
    panel = _panel(option.name)
    about = f"{_about()[option.name].split('. ')[0].split('; ')[0].removesuffix('.')}."
    if option.words == (True, False):
        kind: Any = bool | None
        declared = typer.Option(
            f"--{name}/--no-{name}" if option.default else f"--{name}", help=about, rich_help_panel=panel
        )
    else:
        kind = str | None
        shown_default = None if option.default is None else option.written(option.default)
        declared = typer.Option(
            f"--{name}",
            metavar=_metavar(option),
            help=about,
            show_default=shown_default or False,
            rich_help_panel=panel,
        )
    annotation = Annotated[kind, declared]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(name: str) -> str | None:
    """Under which heading of the help an option stands."""
    if name in _PLAIN:
        return None
    if name in _CLUSTER or name.startswith("etcd"):
        return "Cluster"
    return "Security" if name in _SECURITY else "Limits"


def _metavar(option: Option) -> str:
    if option.text is not None:
        named = {"cluster": "NAME", "etcd_user": "NAME", "etcd": "HOST:PORT,…"}
        return "PATH" if option.text is PATH else named.get(option.name, "HOST:PORT")
    if option.range is not None:
        return {"a whole number of bytes": "SIZE", "a number of seconds": "TIME"}.get(option.range.noun, "NUMBER")
    return "|".join(map(str, option.words))


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of a broker as a flag; it gets them as `flags`, each as text or None."""
    options = [option for option in options_of(BrokerConfig) if option.name != "directory"]
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "flags"
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [*own, *map(_parameter, options)]

    def run(**values: Any) -> None:
        flags = {option.name: values.pop(option.name) for option in options}
        command(flags={name: _text(value) for name, value in flags.items()}, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _text(value: str | bool | None) -> str | None:
    return str(value).lower() if isinstance(value, bool) else value


_Directory = Annotated[
    str | None, typer.Argument(metavar="DIRECTORY", help="The store to serve; created if it does not exist.")
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A file of options in YAML or TOML; flags and environment variables override it.",
    ),
]


@app.command(
    name=_SERVE,
    epilog="[bold]Examples[/]\n\n"
    "  hw broker events                                   to this machine, at hw://127.0.0.1:6174\n"
    "  hw broker events --metrics 127.0.0.1:9174          with metrics for Prometheus\n"
    "  hw broker events --console 127.0.0.1:6175          with a page to look at it in the browser\n"
    "  hw broker events --listen 0.0.0.0:6174 --access access.yaml \\\\\n"
    "    --tls-certificate broker.pem --tls-key broker.key    to others, who need tokens\n"
    "  hw broker --config broker.yaml                     as a file says\n"
    "  HEADWATER_BROKER_LOG_LEVEL=debug hw broker events  an option by the environment",
)
@_with_flags
def serve(directory: _Directory = None, config: _Config = None, *, flags: dict[str, str | None]) -> None:
    """Serve a store until SIGTERM or Ctrl-C; then finish the accepted requests, make them durable, and exit with 0.

    SIGHUP reads the access file again. A second Ctrl-C ends the broker at once: acknowledged records are safe.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the C core would write lines of its own between those of the log
    from headwater.broker.process import run_broker
    from headwater.broker.settings import read_settings

    run_broker(read_settings(flags | {"directory": directory}, os.environ, config).config)


@app.command(
    name="check-config",
    epilog="[bold]Examples[/]\n\n"
    "  hw broker check-config --config broker.yaml\n"
    "  hw broker check-config --config broker.yaml --listen 0.0.0.0:6174 | jq .options.listen",
)
@_with_flags
def check_config(
    directory: _Directory = None,
    config: _Config = None,
    as_json: Json = False,
    *,
    flags: dict[str, str | None],
) -> None:
    """Show the configuration that a broker would have, and the source of each option; refuse what it refuses.

    The access file and the certificates are read too. Nothing is served.
    """
    from headwater.broker.console_process import check_console
    from headwater.broker.process import certificates_of, guard_of
    from headwater.broker.security.exposure import check_exposure
    from headwater.broker.settings import read_settings

    settings = read_settings(flags | {"directory": directory}, os.environ, config)
    check_exposure(settings.config)
    check_console(settings.config)
    certificates_of(settings.config)
    guard_of(settings.config)
    broker_config, sources = settings
    rows = [
        (option.name, option.written(getattr(broker_config, option.name)), sources.get(option.name, "default"))
        for option in options_of(BrokerConfig)
    ]
    if wants_json(as_json):
        write_json({"options": {name: {"value": value, "from": source} for name, value, source in rows}})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("option", "value", "from"):
        table.add_column(heading)
    for name, value, source in rows:
        style = "dim" if source == "default" else ""
        table.add_row(Text(name, style), shown(value, style), shown(source, style))
    console().print(table)
    console().print(Text.assemble(("✓ ", "bold green"), printable("a broker would start with these")))


app.command(
    name="status",
    epilog="[bold]Examples[/]\n\n"
    "  hw broker status                                     the one on this machine\n"
    "  hw broker status hw://broker.example:6174 --tls-ca ca.pem\n"
    "  hw broker status --wait 1min                         until it serves\n"
    "  HEADWATER_CLIENT_TOKEN=$(cat token) hw broker status | jq .state",
)(broker_status.status)
