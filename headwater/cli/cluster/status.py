"""`hw cluster status`: the brokers of a cluster, leaders, in-sync replicas (ISR), and the lag of the others."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.output import Json, console, shown, wants_json, write_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.core.address import parse_store


def status(
    broker: BrokerAddress = HERE,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
) -> None:
    """Show how a cluster is. The exit code is 1 when a partition has too few replicas in sync, or nobody leads it.

    A token is taken from HEADWATER_CLIENT_TOKEN. Topics that it may not see are left out; how far followers are behind
    needs the right to administer the broker.
    """
    from headwater.client.cluster_status import look

    document = look(parse_store(broker), credentials_of(tls_ca, tls_certificate, tls_key))
    if wants_json(as_json):
        write_json(document)
    else:
        _show(document)
    raise typer.Exit(1 if document["under_replicated"] or document["leaderless"] else 0)


def _show(document: dict[str, Any]) -> None:
    people = console()
    people.print(Text.assemble("cluster ", shown(document["cluster"], "bold")))
    brokers = table("broker", "address", "leads", "replicas", "")
    for broker in document["brokers"]:
        problem = broker["problem"]
        mark = Text("✓", "bold green") if problem is None else shown(problem, "bold red")
        brokers.add_row(
            str(broker["id"]), shown(broker["address"] or "-"), str(broker["leads"]), str(broker["replicas"]), mark
        )
    people.print(brokers)
    people.print()
    partitions = table("partition", "leader", "epoch", "in sync", "away or behind")
    for topic in document["topics"]:
        for partition in topic["partitions"]:
            partitions.add_row(
                shown(f"{topic['name']}/{partition['partition']}"),
                Text("nobody", "bold red") if partition["leader"] is None else str(partition["leader"]),
                str(partition["epoch"]),
                " ".join(map(str, partition["in_sync"])),
                _behind(partition),
            )
    people.print(partitions if partitions.row_count else Text("no topics yet", "dim"))
    _judge(document)


def table(*headings: str) -> Table:
    """Columns without lines between them."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading)
    return made


def _behind(partition: dict[str, Any]) -> Text:
    """The replicas that are not in sync, and those that lack records at the moment."""
    text = Text()
    for replica, lag in partition["lag"].items():
        out = int(replica) not in partition["in_sync"]
        if out or lag:
            text.append("  " if text else "")
            text.append(f"{replica}: {'away' if lag is None else f'{lag:,} behind'}", "bold red" if out else "")
    return text


def _judge(document: dict[str, Any]) -> None:
    people = console()
    people.print()
    for name, about in (
        ("leaderless", "led by nobody"),
        ("under_replicated", "with fewer replicas in sync than wanted"),
    ):
        if document[name]:
            count = len(document[name])
            noun = "partition" if count == 1 else "partitions"
            people.print(Text.assemble(("✗ ", "bold red"), f"{count:,} {noun} {about}"))
    if document["moving"]:
        count = len(document["moving"])
        noun = "partition moves" if count == 1 else "partitions move"
        told = f"{count:,} {noun} to other brokers: hw cluster rebalance watches, --cancel takes it back"
        people.print(Text.assemble(("→ ", "bold cyan"), told))
    if document["thinly_kept"]:
        partitions = ", ".join(document["thinly_kept"])
        warning = (
            f"internal topics have fewer replicas than the cluster could hold ({partitions}): the cluster adds them by "
            f"itself, unless `replication` asks for so few"
        )
        people.print(Text.assemble(("! ", "bold yellow"), shown(warning)))
    if not document["leaderless"] and not document["under_replicated"]:
        people.print(Text.assemble(("✓ ", "bold green"), "every partition is led, and all its replicas are in sync"))
