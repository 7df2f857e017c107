"""This machine: how two programs find out that they run on the same one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final
from uuid import UUID

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def machine() -> bytes:
    """Return the random identifier of the machine since its start; nothing if the system does not tell.

    Only who is there knows it. Machines that were copied while they ran may have the same: so it is a reason to look
    for something here, not to believe that it is what was meant.
    """
    try:
        return UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return b""
