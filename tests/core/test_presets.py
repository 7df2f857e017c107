"""Presets are whole, usable and keep the promise of durability; `sized` keeps within its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.presets import COMPRESSION, DEFAULT, MANY_PROCESSES, THROUGHPUT, sized

MIB = 1 << 20
PRESETS = {
    "DEFAULT": DEFAULT,
    "THROUGHPUT": THROUGHPUT,
    "COMPRESSION": COMPRESSION,
    "MANY_PROCESSES": MANY_PROCESSES,
    "sized": sized(partitions=3, memory=MIB),
}


def test_every_preset_is_tested_here() -> None:
    assert {name for name, item in vars(hw.presets).items() if isinstance(item, hw.Preset)} == set(PRESETS) - {"sized"}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_store_works_with_every_preset(name: str, kind: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    with hw.open("memory:" if kind == "memory" else tmp_path / "store", preset=preset) as store:
        store.create_topic("orders", partitions=3)
        assert store.describe_topic("orders").config == preset.topic
        with store.producer("orders") as out:
            assert out.config == preset.producer
            for number in range(10_000):
                out.send(b"a value of %d" % number, key=b"%d" % (number % 100))
        values: set[bytes] = set()
        with store.consumer("orders", group="billing") as inbox:
            assert inbox.config == preset.consumer
            while records := inbox.poll():
                values.update(record.value for record in records)
        assert values == {b"a value of %d" % number for number in range(10_000)}
        with store.steward() as steward:
            assert steward.config == preset.steward


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_gives_up_durability(name: str) -> None:
    assert PRESETS[name].topic.sync == "always"
    assert not PRESETS[name].consumer.auto_ack
    assert PRESETS[name].steward.protect_unread
    assert PRESETS[name].topic.retention_age is PRESETS[name].topic.retention_bytes is None


def test_the_default_preset_is_what_the_configurations_say() -> None:
    assert hw.Preset() == DEFAULT
    assert DEFAULT.topic == hw.TopicConfig()


def test_configurations_of_a_preset_can_be_given_by_themselves(tmp_path: Path) -> None:
    with hw.open(tmp_path) as store:
        store.create_topic("small", config=COMPRESSION.topic, retention_age=60.0)
        config = store.describe_topic("small").config
        assert (config.compression, config.retention_age) == ("zstd", 60.0)
        assert store.create_topic("plain").info.config == hw.TopicConfig()


def test_compression_takes_less_disk(tmp_path: Path) -> None:
    sizes = {}
    for preset in (DEFAULT, COMPRESSION):
        with hw.open(tmp_path / preset.topic.compression, preset=preset) as store:
            store.create_topic("events")
            with store.producer("events") as out:
                for number in range(20_000):
                    out.send(b'{"event": "view", "path": "/products/%d"}' % (number * 7919 % 5000))
            sizes[preset.topic.compression] = store.statistics().bytes
    assert sizes["zstd"] < sizes["none"] / 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("topic", hw.PartitionConfig()), ("producer", None), ("consumer", hw.ProducerConfig()), ("steward", {})],
)
def test_a_preset_of_other_things_is_refused(field: str, value: Any) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=f"^{field} must be a {field.capitalize()}Config"):
        hw.Preset(**{field: value})


@pytest.mark.parametrize("preset", ["THROUGHPUT", None, hw.TopicConfig()])
def test_what_is_no_preset_is_refused(preset: Any) -> None:
    with pytest.raises(hw.InvalidConfiguration, match="preset must be a Preset"):
        hw.open("memory:", preset=preset)


def test_a_configuration_of_another_noun_is_refused() -> None:
    anything: Any = hw.TopicConfig()
    with hw.open("memory:") as store:
        store.create_topic("orders")
        with pytest.raises(hw.InvalidConfiguration, match="config must be a ProducerConfig"):
            store.producer("orders", config=anything)


# By size.


@pytest.mark.parametrize(
    ("partitions", "memory"),
    [(0, MIB), (-1, MIB), (1, 0), (1, 65535), (100, MIB), (1.0, MIB), (1, 1e9), (True, MIB), ("1", MIB), (1, None)],
)
def test_what_cannot_be_sized_is_refused(partitions: Any, memory: Any) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=r"^(partitions|memory) must be a whole number"):
        sized(partitions=partitions, memory=memory)


@pytest.mark.parametrize("partitions", [1, 2, 16, 1000, 10_000])
@pytest.mark.parametrize("memory", [64 << 10, MIB, 64 * MIB, 1 << 30, 1 << 50])
def test_every_size_that_is_accepted_makes_a_preset(partitions: int, memory: int) -> None:
    if memory >= partitions << 16:
        preset = sized(partitions=partitions, memory=memory)
        assert preset.producer.batch_bytes * partitions * 16 <= memory
        assert preset.topic.max_value_bytes <= preset.topic.max_frame_bytes


CHILD = """
import sys
import headwater as hw

def anonymous():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024

memory, size, partitions = int(sys.argv[1]), int(sys.argv[2]), 16
preset = hw.presets.sized(partitions=partitions, memory=memory)
with hw.open("store", preset=preset) as store:
    store.create_topic("t", partitions=partitions)
    out = store.producer("t", linger=3600.0)  # so that every partition's batch gets full
    inbox = store.consumer("t")
    for number in range(partitions):
        out.send(b"warm", partition=number)
    out.flush()
    while inbox.poll():
        pass
    before = most = anonymous()
    sent = 5 * partitions * preset.producer.batch_bytes // (size + 12)
    for number in range(sent):
        out.send(number.to_bytes(size, "big"), partition=number % partitions)
        most = max(most, anonymous()) if number % 1000 == 0 else most
    out.flush()
    read = 0
    while records := inbox.poll(max_records=10):
        read += len(records)
        most = max(most, anonymous()) if read % 1000 < 10 else most
print(sent, read, most - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("size", [8, 100, 1000])
def test_a_producer_and_a_consumer_keep_within_the_memory(tmp_path: Path, size: int) -> None:
    memory = 32 * MIB
    command = [sys.executable, "-c", CHILD, str(memory), str(size)]
    environment = {"PYTHONPATH": str(Path(hw.__file__).parent.parent)}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    sent, read, most = map(int, answer.split())
    assert sent == read
    assert 0 < most < memory


KEYED = """
import os
import sys
import pyarrow as pa
import headwater as hw

def anonymous():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024

memory, codec, partitions, records = int(sys.argv[1]), sys.argv[2], 4, 30_000
with hw.open("store", preset=hw.presets.sized(partitions=partitions, memory=memory)) as store:
    store.create_topic("t", partitions=partitions, compression=codec, sync="never")
    with store.producer("t") as out:
        out.send(b"warm" * 250)
    with store.consumer("t", start="earliest") as inbox:
        inbox.poll(timeout=60.0)
    before = most = anonymous()
    with store.producer("t") as out:
        for number in range(records):
            out.send(os.urandom(8) * 125, key=b"%d" % number)
            most = max(most, anonymous()) if number % 500 == 0 else most
    read = 0
    with store.consumer("t", start="earliest") as inbox:
        while read <= records:
            read += len(inbox.poll(timeout=60.0))
            most = max(most, anonymous())
print(most - before, pa.default_memory_pool().max_memory())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(("pool", "kept"), [("system", 0), ("mimalloc", 64 * MIB)])
def test_the_process_grows_as_the_preset_says(tmp_path: Path, pool: str, kept: int, codec: str) -> None:
    memory = 32 * MIB
    command = [sys.executable, "-c", KEYED, str(memory), codec]
    environment = {"PYTHONPATH": str(Path(hw.__file__).parent.parent), "ARROW_DEFAULT_MEMORY_POOL": pool}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    most, in_arrow = map(int, answer.split())
    assert 0 < most < memory + kept
    assert in_arrow < memory // 4, "what Arrow has in use is far less than what its allocator keeps"
