"""Where Spark runs: several executor processes, with the Java of the package, and Spark Connect.

A process has one Spark: so each of these has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import headwater as hw
from tests.spark.conftest import SMALL

READ = """
import json, os, sys
import headwater as hw

store, scratch = sys.argv[1:]
spark = {session}
spark.sparkContext.setLogLevel("OFF") if {classic} else None
source = dict(store=store, topic="orders")
frame = spark.read.format("headwater").options(**source, minPartitions=4).load()
found = {{"values": sorted(row.value.decode() for row in frame.collect())}}
stream = spark.readStream.format("headwater").options(**source, startingOffsets="earliest")
query = (
    stream.load().writeStream.format("parquet").option("checkpointLocation", scratch + "/state")
    .trigger(availableNow=True).start(scratch + "/rows")
)
assert query.awaitTermination(240)
found["streamed"] = sorted(row.value.decode() for row in spark.read.parquet(scratch + "/rows").collect())
{more}
print(json.dumps(found))
spark.stop()
"""

CONFIG = SMALL | {"spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"]}

EXECUTORS = """
def where(rows):
    yield os.environ["SPARK_EXECUTOR_DIRS"], len(list(rows))

found["executors"] = len(dict(frame.rdd.mapPartitions(where).collect()))
found["java"] = os.environ["JAVA_HOME"]
"""


OF_A_SESSION = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")
"""What the session of the other tests has left in the environment."""


def run(program: str, store: hw.Store, scratch: Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", program, str(store), str(scratch)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=scratch,
        env={name: value for name, value in os.environ.items() if name not in OF_A_SESSION},
    )
    assert result.returncode == 0, result.stderr[-5000:]
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def fill(store: hw.Store) -> list[str]:
    store.create_topic("orders", partitions=2)
    with store.producer("orders", batch_records=10) as out:
        for number in range(200):
            out.send(f"{number:03d}".encode())
    return [f"{number:03d}" for number in range(200)]


def test_two_executors_share_a_topic_with_the_java_of_the_package(store: hw.Store, tmp_path: Path) -> None:
    sent = fill(store)
    without_java = "import headwater.spark.java as java; java._from_path = lambda: None\n"
    session = f'hw.spark.session(master="local-cluster[2,1,1024]", config={CONFIG})'
    found = run(without_java + READ.format(session=session, classic=True, more=EXECUTORS), store, tmp_path)
    assert found["values"] == found["streamed"] == sent
    assert found["executors"] == 2
    assert found["java"].endswith("/java")
    assert not Path(found["java"]).exists()  # nothing is left behind


def test_spark_connect_reads_batches_and_streams(store: hw.Store, tmp_path: Path) -> None:
    sent = fill(store)
    session = f'hw.spark.session(remote="local[2]", config={CONFIG})'
    found = run(READ.format(session=session, classic=False, more=""), store, tmp_path)
    assert found["values"] == found["streamed"] == sent
