"""The commands and what they have in common: one line per error, quiet ends, help with examples.

A command is a module with an `app`, imported when it is called: so `hw --help` waits for none of them.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from headwater.cli.arguments import Mistake
from headwater.cli.output import end_quietly, printable
from headwater.core.errors import FrameDamaged, HeadwaterError, InvalidFile, TopicExists, UnknownTopic
from headwater.core.version import __version__

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""The root of the errors about the command line itself, which typer does not export."""

STREAMS: Final = "Streams"
CARE: Final = "Looking after a store"
SERVING: Final = "Serving and pipelines"
HERE: Final = "Getting to know it"


class Command(NamedTuple):
    """A command as `hw --help` shows it, and the module in this package that does it."""

    name: str
    about: str
    panel: str
    module: str


COMMANDS: Final = {
    command.name: command
    for command in (
        Command("topic", "Create, show, change, copy and delete topics.", STREAMS, "topics.topic"),
        Command("produce", "Write lines, JSON, CSV, Parquet or Arrow to a topic.", STREAMS, "records.produce"),
        Command("consume", "Read a topic: as text, JSON, CSV, Parquet or Arrow.", STREAMS, "records.consume"),
        Command("tail", "Watch topics live; the space bar pauses.", STREAMS, "records.tail"),
        Command("sql", "Query topics in SQL, by DuckDB.", STREAMS, "records.sql"),
        Command("group", "Show the positions of groups, and reset them.", STREAMS, "groups.group"),
        Command("lag", "Show how many records groups have yet to read, once or live.", STREAMS, "groups.lag"),
        Command("check", "Verify every frame of a partition.", CARE, "storage.check"),
        Command("inspect", "Show the content of one of Headwater's files.", CARE, "storage.inspect"),
        Command("backup", "Back up a store, verified; only new records after the first time.", CARE, "storage.backup"),
        Command("restore", "Restore a store from a backup.", CARE, "storage.restore"),
        Command(
            "steward", "Clean a store: retention, compaction, leftovers (the log cleaner).", CARE, "storage.steward"
        ),
        Command("unlock", "Show the process that holds a partition's lock, and end it.", CARE, "storage.unlock"),
        Command("broker", "Serve a store over the network.", SERVING, "broker.serve"),
        Command("cluster", "Show and change a cluster, or try one on this machine.", SERVING, "cluster.commands"),
        Command("console", "See the streams in a browser.", SERVING, "broker.console"),
        Command(
            "pipeline",
            "Run pipelines from topics and files through SQL to topics and tables.",
            SERVING,
            "spark.pipeline",
        ),
        Command("spark", "Archive, compact and replay topics with Spark.", SERVING, "spark.jobs"),
        Command("tour", "See Headwater work, in a temporary directory.", HERE, "tour.command"),
        Command("cheat", "Every command on one page.", HERE, "cheat"),
        Command("context", "Give stores names, and choose one.", HERE, "context"),
        Command("doctor", "Check this machine, with advice.", HERE, "storage.doctor"),
    )
}


class _Commands(TyperGroup):
    """The commands of `COMMANDS`. Listing them imports none: it takes their names and a line about each."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        command = COMMANDS.get(cmd_name)
        if command is None:
            return None
        if self._listing:
            return TyperCommand(command.name, help=command.about, rich_help_panel=command.panel)
        if cmd_name not in self.commands:
            module = importlib.import_module(f"headwater.cli.{command.module}")
            single = len(module.app.registered_commands) == 1 and not module.app.registered_groups
            build = typer.main.get_command if single else typer.main.get_group
            self.commands[cmd_name] = build(module.app)
            self.commands[cmd_name].name = cmd_name
        return self.commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._only_listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._only_listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _only_listing(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


app = typer.Typer(
    name="hw",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="[bold]Examples[/]\n\n"
    "  hw tour                     see it work, in a temporary directory\n"
    "  hw check events/orders/0    verify every frame of a partition\n"
    "  hw check --help             what a command does, with examples",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def hw(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Headwater, the commit log for Python."""


def main() -> NoReturn:
    """Run the command line and exit."""
    debug = "--debug" in sys.argv[1:]
    _fill_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        code = app(prog_name="hw", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # what shows help deals with a closed pipe in its own way
            end_quietly()
        raise
    except BrokenPipeError:
        end_quietly()
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)
        command = error.ctx.command_path if error.ctx else "hw"
        _fail(f"{error.format_message().rstrip('.')}. Try '{command} --help'.", code=2)
    except Exception as error:  # even a mistake of its own is told in one line
        if debug:
            raise
        problems = map(str, error.problems) if isinstance(error, InvalidFile) else [_told(error)]
        _fail(*problems, code=2 if isinstance(error, Mistake) else 1)


def _fill_streams() -> None:
    """Replace standard streams that the caller has closed, as by `>&-`, by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def _told(error: Exception) -> str:
    """Return an error without the noise that Python puts around some of them, with advice for the command line."""
    if isinstance(error, UnknownTopic):
        return str(error).replace("create it first", "hw topic list shows the topics")
    if isinstance(error, TopicExists):
        return str(error).replace("pass exist_ok=True", "give --exist-ok")
    if isinstance(error, FrameDamaged):
        return f"{error}; hw check lists all damage"
    if isinstance(error, HeadwaterError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror or str(error)
    return f"internal error: {type(error).__name__}: {error}; hw --debug shows where"


def _fail(*messages: str, code: int) -> NoReturn:
    """Write each message as one line on standard error, and exit."""
    for message in messages:
        sys.stderr.write(f"hw: {printable(' '.join(message.split()))}\n")
    sys.exit(code)
