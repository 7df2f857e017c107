"""Spark in other places: several executor processes with the package's Java, a standalone cluster, Spark Connect.

A process has one Spark: so each of these has a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

import headwater as hw
from headwater.spark.java import find_java
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
scan = hw.spark.scan(spark, **source, minPartitions=4)
found["scanned"] = sorted(row.value.decode() for row in scan.collect())
stream = spark.readStream.format("headwater").options(**source, startingOffsets="earliest")
query = (
    stream.load().writeStream.format("parquet").option("checkpointLocation", scratch + "/state")
    .trigger(availableNow=True).start(scratch + "/rows")
)
assert query.awaitTermination(900)
found["streamed"] = sorted(row.value.decode() for row in spark.read.parquet(scratch + "/rows").collect())
{more}
print(json.dumps(found))
spark.stop()
"""

EXECUTORS = """
def where(rows):
    yield os.environ["SPARK_EXECUTOR_DIRS"], len(list(rows))

found["executors"] = len(dict(frame.rdd.mapPartitions(where).collect()))
found["java"] = os.environ["JAVA_HOME"]
"""


OF_A_SESSION = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")
"""The variables that the session of the other tests leaves in the environment."""


def run(program: str, store: hw.Store, scratch: Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", program, str(store), str(scratch)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
        cwd=scratch,
        env={name: value for name, value in os.environ.items() if name not in OF_A_SESSION},
    )
    assert result.returncode == 0, result.stderr[-5000:]
    printed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return printed


def fill(store: hw.Store) -> list[str]:
    store.create_topic("orders", partitions=2)
    with store.producer("orders", batch_records=10) as out:
        for number in range(200):
            out.send(f"{number:03d}".encode())
    return [f"{number:03d}" for number in range(200)]


def test_two_executors_share_a_topic_with_the_java_of_the_package(store: hw.Store, tmp_path: Path) -> None:
    sent = fill(store)
    without_java = "import headwater.spark.java as java; java._from_path = lambda: None\n"
    session = f'hw.spark.session(master="local-cluster[2,1,1024]", config={SMALL})'
    printed = run(without_java + READ.format(session=session, classic=True, more=EXECUTORS), store, tmp_path)
    assert printed["values"] == printed["scanned"] == printed["streamed"] == sent
    assert printed["executors"] == 2
    assert printed["java"].endswith("/java")
    assert not Path(printed["java"]).exists()  # nothing is left behind


def test_spark_connect_reads_batches_and_streams(store: hw.Store, tmp_path: Path) -> None:
    sent = fill(store)
    session = f'hw.spark.session(remote="local[2]", config={SMALL})'
    printed = run(READ.format(session=session, classic=False, more=""), store, tmp_path)
    assert printed["values"] == printed["scanned"] == printed["streamed"] == sent


WRITE = """
import json, os, sys
from pathlib import Path
import headwater as hw

store, scratch = sys.argv[1:]
spark = {session}
spark.sparkContext.setLogLevel("OFF")
source = dict(store=store, topic="orders")
frame = spark.read.format("headwater").options(**source, minPartitions=4).load()
found = {{"values": sorted(row.value.decode() for row in frame.collect())}}
stream = spark.readStream.format("headwater").options(**source, startingOffsets="earliest", maxOffsetsPerTrigger=120)
for _ in range(2):
    query = (
        stream.load().select("value").writeStream.format("headwater").options(store=store, topic="copies")
        .option("checkpointLocation", scratch + "/state").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(900)
    last = Path(scratch, "state", "commits", "1")
    last.unlink()  # as if Spark had died before it noted that the batch is done
    last.with_name(".1.crc").unlink(missing_ok=True)
{executors}
print(json.dumps(found))
spark.stop()
"""


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and a worker, as processes of PySpark's own classes; the address of the master."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    home = Path(str(pyspark.__file__)).parent
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_SESSION} | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java(directory)),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    room = ["-c", "1", "-m", "1g", "-d", str(directory / "work")]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *room, address]
    with (directory / "cluster.log").open("ab") as log, ExitStack() as processes:
        for name, *options in (master, worker):
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
            process = processes.enter_context(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            processes.callback(process.terminate)  # a worker takes its executors along
        yield address


def test_a_standalone_cluster_reads_and_writes_each_record_once(store: hw.Store, tmp_path: Path) -> None:
    sent = fill(store)
    store.create_topic("copies", partitions=3)
    small = {"spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1"}
    with standalone(tmp_path) as address:
        session = f"hw.spark.session(master={address!r}, config={SMALL | small})"
        printed = run(WRITE.format(session=session, executors=EXECUTORS), store, tmp_path)
    assert printed["values"] == sent
    assert printed["executors"] == 1  # and not in the driver
    copies = [record.value for partition in store.topic("copies").partitions() for record in partition.records()]
    assert sorted(value.decode() for value in copies) == sent
