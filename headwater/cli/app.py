"""The commands and what they have in common: one line per error, quiet ends, help with examples."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from headwater import HeadwaterError, __version__
from headwater.cli import broker, check, cluster, console, inspect, pipeline, spark, tour, unlock
from headwater.cli.output import end_quietly, printable

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""The root of the errors about the command line itself, which typer does not export."""

app = typer.Typer(
    name="hw",
    no_args_is_help=True,
    add_completion=False,
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


@app.command(
    name="tour",
    epilog="[bold]Examples[/]\n\n"
    "  hw tour                     in a temporary directory, removed at the end\n"
    "  hw tour ~/hw-tour           in a new directory, kept to look around in\n"
    "  hw tour | cat               as plain text",
)
def tour_command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIRECTORY", help="Where to work: a new or empty directory, which is kept.")
    ] = None,
) -> None:
    """Show what Headwater does: many writers, a killed one, recovery, a flipped bit, and speed. About 15 seconds.

    Everything shown is done for real, there and then. The exit code is 1 if a promise is broken.
    """
    raise typer.Exit(tour.run(directory))


@app.command(
    name="check",
    epilog="[bold]Examples[/]\n\n"
    "  hw check events/orders/0              a table for people\n"
    "  hw check --json events/orders/0       the same for programs\n"
    "  hw check backup/orders/0 && echo ok   the exit code is 1 when there is damage",
)
def check_command(
    partition: Annotated[Path, typer.Argument(metavar="PARTITION", help="The directory of a partition.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, as in a pipe.")] = False,
) -> None:
    """Verify every frame of every segment of a partition, and name what is damaged.

    Nothing is changed and no lock is taken: the partition may be in use. The exit code is 1 when there is damage.
    """
    raise typer.Exit(check.run(partition, as_json))


@app.command(
    name="inspect",
    epilog="[bold]Examples[/]\n\n"
    "  hw inspect events/orders/0/00000000000000000000.log\n"
    "  hw inspect --records 5 events/orders/0/00000000000000000000.log\n"
    "  hw inspect events/orders/0/state\n"
    "  hw inspect --json events/orders/0/00000000000000000000.index",
)
def inspect_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A segment, index, state, producers, mark, schema or lock file.")
    ],
    frames: Annotated[int, typer.Option(min=0, metavar="N", help="Show so many frames or entries; 0 is all.")] = 40,
    records: Annotated[int, typer.Option(min=0, metavar="N", help="Show the first N records of a segment.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, as in a pipe.")] = False,
) -> None:
    """Show what is in one of Headwater's files. Nothing is changed."""
    inspect.run(file, frames, records, as_json)


@app.command(
    name="unlock",
    epilog="[bold]Examples[/]\n\n"
    "  hw unlock events/orders/0               who holds it, and since when\n"
    "  hw unlock --kill events/orders/0        end that process, after asking\n"
    "  hw unlock --kill --yes events/orders/0  end it without asking",
)
def unlock_command(
    partition: Annotated[Path, typer.Argument(metavar="PARTITION", help="The directory of a partition.")],
    kill: Annotated[bool, typer.Option("--kill", help="End the process that holds the lock (SIGKILL).")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, as in a pipe.")] = False,
) -> None:
    """Show who holds the lock of a partition and, with --kill, end that process.

    A dead process holds no lock: this is for one that is stopped or hangs. What it had acknowledged is safe, what it
    was in the middle of is recovered by the next one to write.
    """
    unlock.run(partition, kill, yes, as_json)


app.command(
    name="console",
    epilog="[bold]Examples[/]\n\n"
    "  hw console events                    open a page over ./events in the browser\n"
    "  hw console                           over the broker on this machine\n"
    "  hw console events --write            that can change things\n"
    "  hw console hw://broker.example:6174 --tls-ca ca.pem --no-browser",
)(console.run)
app.add_typer(broker.app, name="broker")
app.add_typer(cluster.app, name="cluster")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(spark.app, name="spark")


def main() -> NoReturn:
    """Run the command line and exit."""
    debug = "--debug" in sys.argv[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        code = app(prog_name="hw", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        end_quietly()
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(2)
        command = error.ctx.command_path if error.ctx else "hw"
        _fail(f"{error.format_message()} Try '{command} --help'.", 2)
    except Exception as error:  # even a mistake of its own is told in one line
        if debug:
            raise
        _fail(_told(error), 1)


def _told(error: Exception) -> str:
    """An error without the noise that Python puts around some of them."""
    if isinstance(error, HeadwaterError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
    return f"internal error: {type(error).__name__}: {error}; hw --debug shows where"


def _fail(message: str, code: int) -> NoReturn:
    """One line on standard error, whatever is in it."""
    sys.stderr.write(f"hw: {printable(' '.join(message.split()))}\n")
    sys.exit(code)
