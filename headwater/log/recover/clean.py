"""A clean partition: one that recovery would leave exactly as it is.

That is what most openings meet: whoever wrote last has closed it, or is well and between two appends. Then there is
nothing to write, so nobody has to be kept out either. A reader that opens and closes such a partition changes no byte
of it, waits for nobody and syncs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from headwater.core.errors import Damaged
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, read_mark
from headwater.log.files.segment import Segment
from headwater.log.files.segment_list import SegmentList
from headwater.log.files.state import State, StatePage
from headwater.log.recover.recovery import index_sound


def clean_state(directory: Path, page: StatePage) -> State | None:
    """The published state when recovery has nothing to do; None when it has, or when that cannot be told.

    This looks without the lock, at the state first: whoever changes the files meanwhile makes them differ from it. A
    handle learns later changes as ever, from the state when it reads, and under the lock when it appends.
    """
    state, whole = page.read()
    if state is None or not whole or state.flags or state.durable_end != state.end:
        return None
    try:
        return state if _in_order(directory, state) else None
    except (Damaged, OSError):
        return None


def _in_order(directory: Path, state: State) -> bool:
    """Return whether the files are those that the state speaks of: the marks, the list, and the growing segment.

    This takes as long for many closed segments as for few. Their files are held against the list by those that open
    them, by recovery and by whoever asks for the partition's health.
    """
    if (read_mark(directory, START_FILE) or 0) > state.start or read_mark(directory, TRUNCATE_FILE) is not None:
        return False
    growing = Segment.read(directory / f"{state.segment_base:020d}.log")
    return (
        growing.header.partition == state.partition
        and growing.header.log == state.segment
        and os.stat(growing.path).st_size == state.position
        and index_sound(state, growing)
        and _list_in_order(directory, state)
    )


def _list_in_order(directory: Path, state: State) -> bool:
    """Return whether the list was written last, and reaches from the log's start to the growing segment.

    A list that has more than the state says belongs to a later state, which a loss of power took back.
    """
    nothing_closed = not state.listed and state.list_generation > 0 and state.start >= state.segment_base
    try:
        listed = SegmentList.read(directory, state.partition)
    except FileNotFoundError:
        return nothing_closed
    try:
        if listed.generation != state.list_generation or len(listed) != state.listed:
            return False
        if not state.listed:
            return nothing_closed
        return listed[0].base <= state.start < listed[0].end and listed[len(listed) - 1].end == state.segment_base
    finally:
        listed.close()
