"""Lending: memory that a producer on this machine puts its frames in, instead of sending them."""

from __future__ import annotations

import fcntl
import os
from typing import Final
from weakref import finalize

from headwater.v1 import broker_pb2 as pb

KEY_BYTES: Final = 16


class LentMemory:
    """Memory without a name, which a producer of the same user can open by the descriptor that this process has.

    It is gone when both have let go of it, however they end. Frames are copied before they are looked at: their
    writer could still change it.
    """

    def __init__(self, size: int) -> None:
        """Raises OSError where the system has no such memory, or no more of it."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no anonymous shared memory (memfd)")
        self.size = size
        self._key = os.urandom(KEY_BYTES)
        self._fd = os.memfd_create("headwater-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        finalize(self, os.close, self._fd)  # whoever still reads it refers to it
        os.ftruncate(self._fd, size)
        os.pwrite(self._fd, self._key, 0)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def described(self) -> pb.LentMemory:
        """The message by which a producer finds it."""
        return pb.LentMemory(file=f"/proc/{os.getpid()}/fd/{self._fd}", key=self._key, size=self.size)

    def read(self, region: pb.Region) -> bytes:
        """The bytes of a region that is known to be within it, as they are now."""
        return os.pread(self._fd, region.length, region.position)
