"""A clean partition: one that recovery would leave exactly as it is.

That is what most openings meet: whoever wrote last has closed it, or is well and between two appends. Then there is
nothing to write, so nobody has to be kept out either. A reader that opens and closes such a partition changes no byte
of it, waits for nobody and syncs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from headwater.errors import Damaged
from headwater.log.disk import TEMPORARY
from headwater.log.marks import START_FILE, TRUNCATE_FILE, read_mark
from headwater.log.recovery import index_sound
from headwater.log.segment import list_segments
from headwater.log.state import State, StatePage


def clean_state(directory: Path, page: StatePage) -> State | None:
    """The published state when recovery has nothing to do; None when it has, or when that cannot be told.

    This looks without the lock, at the state first: whoever changes the files meanwhile makes them differ from it.
    What happens afterwards a handle learns as ever, from the state when it reads, and under the lock when it appends.
    """
    state, whole = page.read()
    if state is None or not whole or state.flags or state.durable_end != state.end:
        return None
    try:
        return state if _in_order(directory, state) else None
    except (Damaged, OSError):
        return None


def _in_order(directory: Path, state: State) -> bool:
    """Whether the files are those that the state speaks of, with nothing unfinished beside them."""
    if any(name.endswith(TEMPORARY) for name in os.listdir(directory)):
        return False
    if (read_mark(directory, START_FILE) or 0) > state.start or read_mark(directory, TRUNCATE_FILE) is not None:
        return False
    segments, strangers = list_segments(directory, state.partition)
    if strangers or not segments:
        return False
    missing = segments[0].base > state.start
    doomed = len(segments) > 1 and segments[1].base <= state.start
    growing = segments[-1]
    return (
        not missing
        and not doomed
        and growing.header.log == state.segment
        and os.stat(growing.path).st_size == state.position
        and index_sound(state, growing)
    )
