"""The content of a partition after the power went at any step, for every kind of loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from headwater.log import DirectoryPartition
from headwater.testing import Device, Step, write_image
from headwater.testing.device import Mood
from tests.support.disks import HastyDisk

ANY_NAMES: Final[tuple[Mood, Mood]] = ("any", "newest")
LOSSES: Final[tuple[tuple[Mood, Mood], ...]] = (
    ("oldest", "newest"),
    ("oldest", "oldest"),
    ("newest", "oldest"),
    *(ANY_NAMES,) * 8,
)
"""The kinds of loss: what a power loss leaves of names and of data that were not synced."""


def values_after_power_loss(trace: Sequence[Step], began: int, directory: Path) -> Iterator[tuple[int, list[bytes]]]:
    """After how many steps the power goes, and what is there then: no damage, and these values."""
    seen: dict[tuple[object, ...], list[bytes]] = {}
    for number in range(began, len(trace) + 1):
        device = Device().follow(trace[:number])
        for seed, (names, data) in enumerate(LOSSES):
            image = device.image(Random(seed), reordered=names == "any", names=names, data=data)
            key = tuple(sorted(image.items()))
            if key not in seen:
                after = directory / f"after-{len(seen)}"
                write_image(image, after)
                with DirectoryPartition(after / "partition", disk=HastyDisk()) as partition:
                    assert [damage for report in partition.recovery_reports for damage in report.damage] == []
                    seen[key] = [record.value for record in partition.records()]
                shutil.rmtree(after)
            yield number, seen[key]
