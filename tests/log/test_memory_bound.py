"""Reading a large log takes little memory: frames are mapped and decoded one at a time.

`HEADWATER_LOG_MIB` sets how large the log is; by default it is small enough for every run and larger than the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOG_MIB = int(os.environ.get("HEADWATER_LOG_MIB", "256"))
LIMIT_MIB = 200

CHILD = """
import sys
from headwater import PartitionConfig
from headwater.log import DirectoryPartition
from headwater.log import encode

MIB = 1 << 20

def anonymous_mib():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) // 1024

path, codec, size, use = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
config = PartitionConfig(sync="never", segment_bytes=64 * MIB)
partition = DirectoryPartition(path, config)
frame = encode([bytes([number]) * (MIB // 4) for number in range(32)], keys=[b"k"] * 32, compression=codec)
for _ in range(size // 8):
    partition.append(frame)
del frame
records = decoded = most = 0
if use == "scan":
    for batch in partition.scan():
        records += batch.num_rows
        decoded += batch.nbytes
        most = max(most, anonymous_mib())
elif use == "records":
    for record in partition.records():
        records += 1
        decoded += len(record.value)
        if records % 32 == 0:
            most = max(most, anonymous_mib())
else:
    partition.roll()
    removed = partition.compact().removed_records
    records, decoded, most = removed + 1, removed * MIB // 4 + MIB // 4, anonymous_mib()
print(records, decoded // MIB, most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("use", ["scan", "records", "compact"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_log_larger_than_the_limit_is_read_within_it(tmp_path: Path, codec: str, use: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "log"), codec, str(LOG_MIB), use]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records, decoded_mib, most_mib = map(int, answer.split())
    assert records == LOG_MIB * 4
    assert decoded_mib >= LOG_MIB
    assert most_mib < LIMIT_MIB < LOG_MIB
