"""Segments: the files of a partition, and the map of one of them, frame by frame, with the damage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from headwater.console.page_request import NotFound, PageRequest
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.format.frame import CODEC_MASK
from headwater.log.maintain.segment_view import SegmentItem, read_segment
from headwater.log.recover.report import Damage

_CELLS: Final = 600
"""The map has so many cells; each is as bad as the worst stretch in it."""
_FRAMES: Final = 200
_RANK: Final = {"damaged": 4, "behind": 3, "compressed": 2, "plain": 1}
_PATIENCE: Final = 5.0


def listed(request: PageRequest) -> dict[str, Any]:
    """The segments of a partition, the oldest first."""
    topic, number = request.store.topic(request.path["topic"]), request.path["partition"]
    partition = topic.partition(number)
    start, end, _ = partition.bounds()
    segments = partition.segments()
    ends = [segment.base for segment in segments[1:]] + [end]
    return {
        "start": start,
        "end": end,
        "segments": [
            {
                "base": segment.base,
                "end": last,
                "bytes": segment.size,
                "begun": segment.begun_ns / 1e6,
                "closed": None if segment.closed_ns is None else segment.closed_ns / 1e6,
            }
            for segment, last in zip(segments, ends, strict=True)
        ],
    }


def mapped(request: PageRequest) -> dict[str, Any]:
    """The map of one segment: every stretch of its file, and the frames of a page of it."""
    topic, number, base = request.store.topic(request.path["topic"]), request.path["partition"], request.path["base"]
    partition = topic.partition(number)
    bases = [segment.base for segment in partition.segments()]
    if base not in bases:
        raise NotFound(f"{topic.name}/{number} has no segment {base}")
    if isinstance(request.store, DirectoryStore):
        file = Path(str(request.store)) / topic.name / str(number) / f"{base:020d}.log"
        view = read_segment(file)
        return _document(request, file.name, view.size, view.items, view.problem)
    after = bases[bases.index(base) + 1] if base != bases[-1] else partition.bounds().end
    start = partition.bounds().start
    items: list[SegmentItem] = []
    position = 0
    deadline = time.monotonic() + _PATIENCE

    def damaged(damage: Damage) -> None:
        items.append(SegmentItem("damaged", damage.position, 1, None, damage.reason))

    for frame in partition.frames(max(base, start), after, on_damage=damaged):
        header = frame.header
        items.append(
            SegmentItem("compressed" if header.attributes & CODEC_MASK else "plain", position, header.length, header)
        )
        position += header.length
        if time.monotonic() > deadline:
            break
    whole = time.monotonic() <= deadline
    return _document(request, f"{base:020d}.log", position, items, "") | {"whole": whole, "served": True}


def _document(request: PageRequest, name: str, size: int, items: list[SegmentItem], problem: str) -> dict[str, Any]:
    first = request.number("first", 0, 0, 1 << 40)
    good = [item for item in items if item.kind in ("plain", "compressed")]
    bad = [item for item in items if item.kind == "damaged"]
    return {
        "file": name,
        "size": size,
        "problem": problem or None,
        "frames": len(good),
        "records": sum(item.header.record_count for item in good if item.header is not None),
        "bytes": {kind: sum(item.length for item in items if item.kind == kind) for kind in _RANK},
        "cells": _cells(items, size),
        "damage": [{"position": item.position, "length": item.length, "reason": item.reason} for item in bad[:_FRAMES]],
        "damaged": len(bad),
        "first": first,
        "count": len(items),
        "page": [_frame(item) for item in items[first : first + _FRAMES]],
    }


def _cells(items: list[SegmentItem], size: int) -> str:
    """Return a letter for each cell: that of the worst frame in it."""
    cells = ["header"] + [""] * (_CELLS - 1)
    for item in items:
        first = item.position * _CELLS // max(size, 1)
        last = (item.position + item.length - 1) * _CELLS // max(size, 1)
        for cell in range(max(first, 0), min(last, _CELLS - 1) + 1):
            if _RANK.get(cells[cell], 0) < _RANK[item.kind]:
                cells[cell] = item.kind
    return "".join(kind[:1] or " " for kind in cells)


def _frame(item: SegmentItem) -> dict[str, Any]:
    header = item.header
    document: dict[str, Any] = {
        "kind": item.kind,
        "position": item.position,
        "length": item.length,
        "reason": item.reason or None,
    }
    if header is not None:
        document |= {
            "offset": header.base_offset,
            "records": header.record_count,
            "first": header.min_timestamp / 1e6,
            "last": header.max_timestamp / 1e6,
            "codec": item.codec,
            "features": item.features,
        }
    return document
