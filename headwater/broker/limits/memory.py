"""Memory that a broker keeps: large messages come and go all the time, and new pages for each cost more than they do.

The C library gives large pieces of memory back to the kernel at once, and gets them anew, page by page and zeroed, for
the next message. On a broker that is most of what a message of a megabyte costs. So some of it is kept, within bounds.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

from headwater.core.options import MIB

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 32 * MIB
"""The most that glibc allows; larger pieces go back at once, as before."""
_KEPT: Final = 128 * MIB
_AT_ONCE: Final = 16 * MIB


def keep_memory() -> None:
    """Have the C library keep some of the memory that was used. For a whole process; where it is not glibc, nothing."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in (
            (_M_MMAP_THRESHOLD, _LARGEST),
            (_M_TRIM_THRESHOLD, _KEPT),
            (_M_TOP_PAD, _AT_ONCE),
        ):
            mallopt(option, value)


def settle_garbage() -> None:
    """Take what a broker has when it begins to serve out of the sight of the garbage collector: it is there to stay.

    Going through it again and again took a busy broker one twentieth of its time.
    """
    gc.collect()
    gc.freeze()
