"""A Spark session that is set up as Headwater works best, on one machine or many, with nothing else to install."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from headwater.core.errors import InvalidConfiguration, SparkUnavailable
from headwater.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow in Java looks up the bounds of its memory, and whether a value is null, at every access: for each value of each
row. Spark has asked for nulls itself by then, and what comes from Python is made by Arrow there. Without these looks
reading takes Java about a quarter less time."""

_LAUNCHED_BY: Final = "python"
_LAUNCHER: Final = """\
#!/bin/sh
set -f
IFS=:
kept=
for one in $PYTHONPATH; do
  case $one in *.jar) ;; *) kept=$kept:$one ;; esac
done
PYTHONPATH=${{kept#:}} exec {python} "$@"
"""


def session(
    name: str = "headwater",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Return the Spark session of this process, started if need be. SparkUnavailable says what to install.

    `master` is where Spark runs: `local[*]` unless given (or what `spark-submit` says), `local-cluster[2,1,1024]` for
    several processes on this machine, or a cluster such as `spark://host:7077`. `remote` connects to Spark Connect
    instead: `sc://host:15002`, or `local[2]` to start one here. `config` overrides whatever is set here. Nothing is
    downloaded.
    """
    if master is not None and remote is not None:
        raise InvalidConfiguration("give master or remote, not both: a session runs in one place")
    package = _pyspark()
    builder = _builder().appName(name)
    target = remote if remote is not None else master
    if target is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has chosen already
        target = "local[*]"
    elsewhere = remote is not None and remote.startswith("sc:")
    if not elsewhere:
        _prepare_environment(package, here=target is not None and target.startswith("local"))
        for key, value in _settings(target).items():
            builder = builder.config(key, value)
    for key, chosen in (config or {}).items():
        builder = builder.config(key, as_text(chosen))
    if remote is not None:
        builder = builder.remote(remote)
    elif target is not None:
        builder = builder.master(target)
    return builder.getOrCreate()


def as_text(value: object) -> str:
    """Return a value as Spark takes it in settings and options."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pyspark() -> Path:
    """Return the directory of PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkUnavailable("PySpark is not installed: run pip install 'headwater[spark]'")
    return Path(spec.origin).parent


def _builder() -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    return SparkSession.Builder()


def _settings(target: str | None) -> dict[str, str]:
    settings = {
        # Between Spark and its Python workers: saves some 45 ms per round trip.
        "spark.python.unix.domain.socket.enabled": "true",
        # toPandas and createDataFrame by Arrow instead of row by row.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Beside whatever options the user has for Java, not in their place.
        "spark.driver.defaultJavaOptions": _UNCHECKED,
        "spark.executor.defaultJavaOptions": _UNCHECKED,
    }
    if target is not None and target.startswith("local"):
        settings |= {
            # The machine's own name may not resolve, or to an address that a firewall closes.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The default of 200 is for clusters: here it makes every micro-batch with an aggregation take seconds.
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
            # Halves the time of a small micro-batch on a local disk. It tells two queries that share a checkpoint by
            # mistake apart a little later than the default does.
            "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
            "checkpointing.FileSystemBasedCheckpointFileManager",
        }
    return settings


def _prepare_environment(package: Path, *, here: bool) -> None:
    """Set the environment variables that Spark needs, unless they are set already."""
    # Else workers run whatever `python3` is on the path, without the packages of this one.
    if os.environ.get("PYSPARK_PYTHON") in (None, sys.executable, str(_scratch() / _LAUNCHED_BY)):
        os.environ["PYSPARK_PYTHON"] = _launcher() if here else sys.executable
    os.environ["JAVA_HOME"] = str(find_java(_scratch()))
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(_spark_home(package))


@cache
def _scratch() -> Path:
    """A directory for as long as this process lives."""
    path = Path(mkdtemp(prefix="headwater-spark-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def _launcher() -> str:
    """Return a script that starts this Python as a worker of Spark, without jars on its path.

    Spark puts its own largest one there, before everything else: a worker would read its list of contents, and look for
    each module in it. A stream plans its batches in a worker of its own, which begins a third sooner this way.
    """
    path = _scratch() / _LAUNCHED_BY
    if os.statvfs(path.parent).f_flag & os.ST_NOEXEC:
        return sys.executable
    path.write_text(_LAUNCHER.format(python=shlex.quote(sys.executable)))
    path.chmod(0o755)
    return str(path)


@cache
def _spark_home(package: Path) -> Path:
    """Links to all of PySpark except its zipped copy of itself.

    Workers would import from there, without compiled code, which takes seconds. And whatever Spark writes into its
    home, such as the logs of a local cluster's processes, does not go to the installed package.
    """
    home = _scratch() / "home"
    home.mkdir()
    for entry in package.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    return home
