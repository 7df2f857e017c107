"""`hw lag`: the records that groups have yet to read, once or live."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.live import Live
from rich.text import Text

from headwater.cli.groups.group import check_is_group, document_of, known_groups
from headwater.cli.groups.positions import Lag, lags
from headwater.cli.output import Json, console, shown, table, wants_json, write_json, write_line
from headwater.cli.target import StoreOption, complete_group, opened

if TYPE_CHECKING:
    from headwater.streams import Store

app = typer.Typer(add_completion=False)

_BARS: Final = "▁▂▃▄▅▆▇█"
_KEPT: Final = 40
"""So many looks are in a sparkline."""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw lag                          every group\n"
    "  hw lag billing --watch          live, with the lag of earlier looks\n"
    "  hw lag --max 1000 || alert      the exit code is 1 when a group has more to read\n"
    "  hw lag | jq '.groups.billing'",
)
def lag(
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP…]", help="Only these groups; without any, all.", autocompletion=complete_group),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 1.0,
    most: Annotated[
        int | None, typer.Option("--max", min=0, metavar="N", help="Exit with 1 if the lag of a group is more than N.")
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="Show each partition, not only topics.")
    ] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show how many records groups have yet to read, by topic: a live table with --watch, lines of JSON in a pipe."""
    with opened(store) as opened_store:
        for name in groups or ():
            check_is_group(opened_store, name)
        history = History(opened_store, groups, partitions)
        if watch:
            _watch(history, every, as_json)
        group_lags = history.look()
    if wants_json(as_json):
        write_json(_document(group_lags))
    else:
        console().print(history.table())
    totals: dict[str, int] = {}
    for partition_lag in group_lags:
        totals[partition_lag.group] = totals.get(partition_lag.group, 0) + partition_lag.records
    if most is not None and any(total > most for total in totals.values()):
        raise typer.Exit(1)


def _watch(history: History, every: float, as_json: bool) -> None:
    if wants_json(as_json):
        while True:
            write_line(_document(history.look()))
            time.sleep(every)
    history.look()
    with Live(history.table(), console=console(), auto_refresh=False, transient=False) as live:
        while True:
            live.update(history.table(), refresh=True)
            time.sleep(every)
            history.look()


def _document(group_lags: list[Lag]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    for partition_lag in group_lags:
        group = groups.setdefault(partition_lag.group, {"lag": 0, "partitions": []})
        group["lag"] += partition_lag.records
        group["partitions"].append(document_of(partition_lag))
    return {"at_ns": time.time_ns(), "groups": groups}


class History:
    """The lag of groups over the last looks."""

    def __init__(self, store: Store, groups: list[str] | None, partitions: bool) -> None:
        self._store = store
        self._groups = groups
        self._partitions = partitions
        self._rows: dict[tuple[str, str], deque[tuple[float, int, int]]] = {}
        """By group and topic or partition: when it was looked at, the lag, and the ends of the logs."""

    def look(self) -> list[Lag]:
        """Look once more."""
        group_lags = lags(self._store, self._groups or known_groups(self._store))
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for partition_lag in group_lags:
            key = (partition_lag.group, str(partition_lag.tp) if self._partitions else partition_lag.tp.topic)
            records, end = sums.get(key, (0, 0))
            sums[key] = (records + partition_lag.records, end + partition_lag.end)
        now = time.monotonic()
        for key, (records, end) in sums.items():
            self._rows.setdefault(key, deque(maxlen=_KEPT)).append((now, records, end))
        for key in self._rows.keys() - sums.keys():
            del self._rows[key]
        return group_lags

    def table(self) -> Any:
        """The lag for people, with the lag of earlier looks."""
        listed = table("group", "topic", ">lag", ">in /s", ">out /s", "")
        for (group, name), looks in sorted(self._rows.items()):
            comes, goes = _rates(looks)
            latest = looks[-1][1]
            listed.add_row(
                shown(group, "bold"),
                shown(name),
                Text(f"{latest:,}", "yellow" if latest else "green"),
                comes,
                goes,
                Text(sparkline([records for _, records, _ in looks]) if len(looks) > 1 else "", "cyan"),
            )
        return listed if self._rows else Text("no group has read anything yet", "dim")


def _rates(looks: deque[tuple[float, int, int]]) -> tuple[str, str]:
    """Return the records that come and are done in a second, over the looks that are kept."""
    (began, lag_then, end_then), (now, lag_now, end_now) = looks[0], looks[-1]
    if now <= began:
        return "", ""
    came = end_now - end_then
    return f"{came / (now - began):,.0f}", f"{max(came - (lag_now - lag_then), 0) / (now - began):,.0f}"


def sparkline(values: list[int]) -> str:
    """The values as bars, the greatest of them full."""
    most = max(values, default=0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(value * (len(_BARS) - 1) // most + (value > 0), len(_BARS) - 1)] for value in values)
