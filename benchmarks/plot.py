"""The picture of a report: one bar per row, its length the ratio, a mark where the goal is."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report import Report, figure

_MET, _MISSED, _MARK = "#2a9d5c", "#d1495b", "#222222"


def write_plot(report: Report, file: Path) -> None:
    """Draw `report` into `file`, in the format that its extension names (.svg, .png, .pdf)."""
    rows = list(reversed(report.rows))  # the axis counts upwards, readers read downwards
    logarithmic = spans_decades([row.ratio for row in rows if row.ratio is not None])
    # A logarithmic axis has no zero: there a bar starts at parity and shows which side is ahead.
    origin = 1 if logarithmic else 0
    drawing = Figure(figsize=(9, 1.8 + 0.5 * len(rows)), layout="constrained")
    axes = drawing.subplots()

    for height, row in enumerate(rows):
        if row.ratio is None:
            axes.annotate(" not compared", (1, height), va="center", color="grey")
            continue
        color = _MET if row.met else _MISSED
        axes.barh(height, row.ratio - origin, left=origin, height=0.6, color=color)
        axes.plot([row.goal.ratio] * 2, [height - 0.4, height + 0.4], color=_MARK, linewidth=2)
        furthest = max(row.ratio, row.goal.ratio, origin)
        axes.annotate(
            f"{figure(row.ratio)}×  (goal {row.goal})",
            (furthest, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )

    if logarithmic:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}×")
    axes.axvline(1, color="grey", linewidth=1, linestyle=":")
    axes.margins(x=0.3)
    axes.set_yticks(range(len(rows)), [f"{row.work}\nbeside {row.peer_label}" for row in rows], fontsize=9)
    axes.set_xlabel("ours ÷ peer (bold mark: the goal; dotted line: parity)")
    axes.spines[["top", "right"]].set_visible(False)
    drawing.suptitle(report.benchmark + (" (quick)" if report.quick else ""))
    source = f"{report.machine}\n{report.commit or 'no commit'}"
    drawing.text(0, -0.01, source, fontsize=7, va="top", color="grey")

    file.parent.mkdir(parents=True, exist_ok=True)
    # The same report must give the same bytes, or a picture under version control changes for nothing.
    with mpl.rc_context({"svg.hashsalt": report.benchmark}):
        metadata = {"Date": None} if file.suffix == ".svg" else None
        drawing.savefig(file, metadata=metadata, bbox_inches="tight", dpi=150)


def spans_decades(ratios: list[float]) -> bool:
    """Return whether the ratios are so far apart that a linear axis would hide the smaller ones."""
    return bool(ratios) and max(ratios) / min(ratios) >= 10
