"""`hw group`: how far groups are, and setting them elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from headwater.cli.groups.positions import Lag, lags
from headwater.cli.output import (
    Json,
    Yes,
    ago,
    confirm,
    console,
    done,
    facts,
    say,
    shown,
    table,
    wants_json,
    write_json,
)
from headwater.cli.records.span import GRAMMAR, parse_position
from headwater.cli.target import GroupName, StoreOption, complete_topic, opened
from headwater.core.errors import HeadwaterError
from headwater.streams.group import Commit
from headwater.streams.start import resolve
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams import GroupInfo, Store

_WHENEVER: Final = (1 << 63) - 1
"""Before this was every commit."""

app = typer.Typer(
    no_args_is_help=True,
    help="Show the positions and lag of groups, and reset them.",
    epilog="[bold]Examples[/]\n\n"
    "  hw group list\n"
    "  hw group describe billing\n"
    "  hw group reset billing --to @-1h --dry-run    what would change\n"
    "  hw group delete billing",
)


def known_groups(store: Store) -> dict[str, GroupInfo]:
    """The groups that have members or positions. Of those that were forgotten, only the names are left."""
    infos = {name: store.group(name).describe() for name in store.group_names()}
    return {name: info for name, info in infos.items() if info.members or info.positions}


def check_is_group(store: Store, name: str) -> None:
    """Raise unless there is such a group: looking at one would make it."""
    if not store.has_group(name):
        others = ", ".join(known_groups(store)) or "none"
        raise HeadwaterError(f"group {name!r} does not exist in {store}; the groups are {others}")


def _described(store: Store, name: str) -> GroupInfo:
    check_is_group(store, name)
    return store.group(name).describe()


@app.command(
    name="list", epilog="[bold]Examples[/]\n\n  hw group list\n  hw group list | jq '.groups[] | select(.lag > 0)'"
)
def list_groups(store: StoreOption = None, as_json: Json = False) -> None:
    """Show every group: its members, its topics, and its lag."""
    with opened(store) as opened_store:
        groups = known_groups(opened_store)
        group_lags = lags(opened_store, groups)
    documents: list[dict[str, Any]] = []
    for name, info in groups.items():
        own = [lag for lag in group_lags if lag.group == name]
        documents.append(
            {
                "name": name,
                "members": len(info.members),
                "topics": sorted({lag.tp.topic for lag in own}),
                "lag": sum(lag.records for lag in own),
                "committed_ns": max((lag.committed_ns for lag in own), default=None),
            }
        )
    if wants_json(as_json):
        write_json({"store": str(opened_store), "groups": documents})
        return
    listed = table("group", ">members", ">lag", "topics", "last commit")
    for document in documents:
        when = "never" if document["committed_ns"] is None else ago(document["committed_ns"])
        lag = Text(f"{document['lag']:,}", "yellow" if document["lag"] else "green")
        listed.add_row(
            shown(document["name"], "bold"),
            str(document["members"]),
            lag,
            shown(", ".join(document["topics"])),
            Text(when, "dim"),
        )
    say(listed if documents else Text(f"{opened_store} has no groups yet", "dim"))


@app.command(epilog="[bold]Examples[/]\n\n  hw group describe billing\n  hw group describe billing | jq .lag")
def describe(name: GroupName, store: StoreOption = None, as_json: Json = False) -> None:
    """Show one group: its members, and its position and lag in each partition."""
    with opened(store) as opened_store:
        info = _described(opened_store, name)
        group_lags = lags(opened_store, [name])
    if wants_json(as_json):
        write_json(
            {
                "name": name,
                "generation": info.generation,
                "members": [
                    {"id": member_id, "topics": member.topics, "joined_ns": member.joined_ns, "client": member.client}
                    for member_id, member in info.members.items()
                ],
                "lag": sum(lag.records for lag in group_lags),
                "partitions": [document_of(lag) for lag in group_lags],
            }
        )
        return
    people = console()
    total = sum(lag.records for lag in group_lags)
    people.print(facts([("group", shown(name, "bold")), ("members", len(info.members)), ("lag", f"{total:,}")]))
    if info.members:
        people.print()
        listed = table("member", "client", "topics", "joined")
        for member_id, member in info.members.items():
            listed.add_row(
                shown(member_id[:12]),
                shown(member.client),
                shown(", ".join(member.topics)),
                Text(ago(member.joined_ns), "dim"),
            )
        people.print(listed)
    people.print()
    people.print(lag_table(group_lags))


def document_of(lag: Lag) -> dict[str, Any]:
    """A lag for programs."""
    return {
        "topic": lag.tp.topic,
        "partition": lag.tp.partition,
        "position": lag.position,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.records,
        "lost": lag.lost,
        "member": lag.owner or None,
        "committed_ns": lag.committed_ns,
        "commits": lag.commits,
    }


def lag_table(group_lags: list[Lag]) -> Any:
    """Lags for people."""
    listed = table("partition", ">position", ">end", ">lag", "read by", "last commit", ">commits", "")
    for lag in group_lags:
        lost = Text(f"{lag.lost:,} were removed unread", "bold red") if lag.lost else Text()
        listed.add_row(
            shown(str(lag.tp)),
            f"{lag.position:,}",
            f"{lag.end:,}",
            Text(f"{lag.records:,}", "yellow" if lag.records else "green"),
            shown(lag.owner, "dim"),
            Text(ago(lag.committed_ns), "dim"),
            f"{lag.commits:,}",
            lost,
        )
    return listed


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw group reset billing --to start --dry-run       what would change\n"
    "  hw group reset billing --to @2026-01-31T12:00 --topic orders\n"
    "  hw group reset billing --to -100 --topic orders --partition 3 --yes",
)
def reset(
    name: GroupName,
    to: Annotated[str, typer.Option("--to", metavar="POSITION", help=f"{GRAMMAR}.", show_default=False)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; without it, all that the group reads.",
            autocompletion=complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Only this one; more than once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: Yes = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Set a group's positions, forwards or backwards, after showing the difference. Running members go on from there.

    Work that members have not committed is done again or skipped, depending on the new position.
    """
    position = parse_position(to)
    with opened(store) as opened_store:
        known = {lag.tp: lag.position for lag in lags(opened_store, [name])} if opened_store.has_group(name) else {}
        topics = topic or sorted({tp.topic for tp in known})
        if not topics:
            raise HeadwaterError(f"group {name!r} has no positions in {opened_store}: name a --topic")
        changes: dict[TopicPartition, tuple[int | None, Commit]] = {}
        for topic_name in topics:
            info = opened_store.describe_topic(topic_name)
            for number in partition or range(info.partitions):
                offset = resolve(opened_store.partition(info, number), position)
                tp = TopicPartition(topic_name, number)
                changes[tp] = (known.get(tp), Commit((info.uuid, number), offset))
        document = {
            "group": name,
            "dry_run": dry_run,
            "changes": [
                {"topic": tp.topic, "partition": tp.partition, "from": before, "to": commit.offset}
                for tp, (before, commit) in sorted(changes.items())
            ],
        }
        plain = wants_json(as_json)
        if not plain:
            say(_difference(changes))
        moved = {tp: commit for tp, (before, commit) in changes.items() if before != commit.offset}
        if not dry_run and moved:
            confirm(f"Set {len(moved)} positions of group {name}?", yes)
            opened_store.group(name).reset(moved)
    if plain:
        write_json(document)
    elif dry_run or not moved:
        say(Text("nothing was changed", "dim"))
    else:
        done(f"group {name} continues from these positions")


def _difference(changes: dict[TopicPartition, tuple[int | None, Commit]]) -> Any:
    listed = table("partition", ">now", "", ">then", ">records")
    for spot, (before, commit) in sorted(changes.items()):
        step = commit.offset - (before or 0)
        style = "dim" if before == commit.offset else "yellow" if step < 0 else "cyan"
        told = "" if before is None else f"{step:+,}" if step else "the same"
        listed.add_row(
            shown(str(spot)),
            "none" if before is None else f"{before:,}",
            "→",
            Text(f"{commit.offset:,}", style),
            Text(told, style),
        )
    return listed


@app.command(epilog="[bold]Examples[/]\n\n  hw group delete billing\n  hw group delete billing --yes")
def delete(name: GroupName, yes: Yes = False, store: StoreOption = None, as_json: Json = False) -> None:
    """Delete a group without living members, with its positions. Then it protects no records, and begins anew."""
    with opened(store) as opened_store:
        _described(opened_store, name)
        confirm(f"Delete group {name} and its positions?", yes)
        gone = opened_store.group(name).expire(_WHENEVER)
        if not gone and opened_store.group(name).describe().members:
            raise HeadwaterError(f"group {name!r} has living members: stop them first")
    if wants_json(as_json):
        write_json({"deleted": name})
    else:
        done(f"group {name} is deleted")
