"""Fakes to test with: a clock that is moved by hand, disks that fail, die, or lose what was not synced.

Headwater proves its own promises with them. They are public so that programs built on it can do the same:

    disk = RecordingDisk(tmp_path)
    with DirectoryPartition(tmp_path / "events", disk=disk) as partition:
        partition.append(encode([b"paid"]))
        disk.mark("acknowledged")
    disk.power_loss(tmp_path / "after", random.Random(1))
"""

from headwater.testing.clock import ManualClock
from headwater.testing.device import Device, write_image
from headwater.testing.disk import RecordingDisk
from headwater.testing.failpoints import FailingDisk, Failpoint
from headwater.testing.seeded import seeded
from headwater.testing.trace import Step

__all__ = ["Device", "FailingDisk", "Failpoint", "ManualClock", "RecordingDisk", "Step", "seeded", "write_image"]
