"""Random bytes, for identities and names: from the operating system, unless `headwater.testing.seeded` gives others."""

from __future__ import annotations

import os
from collections.abc import Callable

source: Callable[[int], bytes] = os.urandom


def random_bytes(count: int) -> bytes:
    """So many bytes that nobody else has drawn."""
    return source(count)
