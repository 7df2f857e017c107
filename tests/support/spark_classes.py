"""An archive of the classes that Spark loads, which Java maps (class data sharing): Spark starts in half the time.

`make` has `main` make it, in `build/spark`, before the tests that start Spark.
Java ignores an archive of another Java or of other jars. Without it tests are slower, and otherwise the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "build" / "spark"
ARCHIVE = DIRECTORY / "classes.jsa"
HOME = DIRECTORY / "home"
"""Links to PySpark. Java compares its class path with the archive's, so all sessions need the same one."""
EMPTY = DIRECTORY / "conf"
"""Spark puts its directory of settings on the class path, and Java archives no classes if files are in there."""
SETTINGS = DIRECTORY / "spark.conf"
DEFAULTS = ROOT / "tests" / "spark" / "conf"


def environment() -> dict[str, str]:
    """Return the variables by which every Spark of the tests is set up, with the archive if there is one."""
    if not ARCHIVE.exists():
        return {"SPARK_CONF_DIR": str(DEFAULTS)}
    submit = f'--properties-file "{SETTINGS}" pyspark-shell'
    return {"SPARK_CONF_DIR": str(EMPTY), "SPARK_HOME": str(HOME), "PYSPARK_SUBMIT_ARGS": submit}


def make() -> None:
    """Make the archive from the classes that a session has loaded when it ends."""
    import pyspark

    import headwater as hw

    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for directory in (EMPTY, HOME):
        directory.mkdir(parents=True)
    for entry in Path(str(pyspark.__file__)).parent.iterdir():
        if entry.name != "python":  # a zipped copy of PySpark, from which workers would import slowly
            (HOME / entry.name).symlink_to(entry)
    options = f'-Xlog:disable -XX:SharedArchiveFile="{ARCHIVE}"'  # an archive that does not fit is no warning either
    defaults = (DEFAULTS / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    lines = [f"{line} {options}" if "extraJavaOptions" in line else line for line in defaults]
    SETTINGS.write_text("\n".join(lines) + "\n", encoding="utf-8")

    os.environ |= {"SPARK_CONF_DIR": str(EMPTY), "SPARK_HOME": str(HOME), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    unfinished = ARCHIVE.with_suffix(".new")
    compiling = "-XX:TieredStopAtLevel=1 -Xlog:disable"
    config = {
        "spark.driver.extraJavaOptions": f'{compiling} -XX:ArchiveClassesAtExit="{unfinished}"',
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": False,
    }
    spark = hw.spark.session("classes", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as scratch:
        _use(spark, Path(scratch))
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    java.stdin.close()  # it ends by itself then, and archives
    java.wait()
    unfinished.replace(ARCHIVE)


def _use(spark: SparkSession, scratch: Path) -> None:
    """Read, aggregate and write, in a batch and in a stream, as most tests do."""
    import headwater as hw

    with hw.open(scratch / "store") as store:
        for name in ("orders", "copies"):
            store.create_topic(name, partitions=2)
        with store.producer("orders") as out:
            for number in range(10):
                out.send(b"%d" % number)
    source = {"store": str(scratch / "store"), "topic": "orders", "startingOffsets": "earliest"}
    copies = {"store": source["store"], "topic": "copies"}
    frame = spark.read.format("headwater").options(**source).load()
    frame.selectExpr("cast(value as string) word").groupBy("word").count().collect()
    frame.select("key", "value").write.format("headwater").options(**copies).mode("append").save()
    stream = spark.readStream.format("headwater").options(**source).load().select("key", "value")
    for sink, options in (("headwater", copies), ("parquet", {"path": str(scratch / "rows")})):
        writer = stream.writeStream.format(sink).options(**options, checkpointLocation=str(scratch / f"state-{sink}"))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(str(scratch / "rows")).collect()


def main() -> None:
    """Make the archive, or say why there is none: tests that need Spark fail or skip by themselves."""
    try:
        make()
    except Exception as error:  # noqa: BLE001
        ARCHIVE.unlink(missing_ok=True)
        print(f"Tests of Spark will be slower, its classes cannot be archived: {error}")  # noqa: T201
