"""`hw cluster status`: the brokers of a cluster, who leads what, who is in sync, and how far the others are behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.output import Json, console, shown, wants_json, write_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.cluster.control.assignment import DEFAULT_REPLICATION
from headwater.core.address import Address, parse_store
from headwater.core.config import ClientConfig
from headwater.core.errors import BrokerUnavailable, HeadwaterError, StoreError

if TYPE_CHECKING:
    from headwater.client.credentials import Credentials
    from headwater.v1 import broker_pb2 as pb

_TIMEOUT: Final = 5.0
Ends = dict[tuple[bytes, int], int]


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
    document = look(parse_store(broker), credentials_of(tls_ca, tls_certificate, tls_key))
    if wants_json(as_json):
        write_json(document)
    else:
        _show(document)
    raise typer.Exit(1 if document["under_replicated"] or document["leaderless"] else 0)


def look(addresses: list[Address], credentials: Credentials) -> dict[str, Any]:
    """The cluster that these brokers are of; raises StoreError when they are in none."""
    from headwater.v1 import broker_pb2 as pb

    metadata: pb.Metadata = call(addresses, credentials, "GetMetadata", pb.GetMetadataRequest())
    if not metadata.cluster_id:
        raise StoreError(f"the broker at {addresses[0]} is in no cluster: hw broker status shows how it is")
    brokers = {one.id: Address(one.host, one.port) for one in metadata.brokers}
    ends: dict[int, Ends] = {}
    problems: dict[int, str] = {}
    for number, address in sorted(brokers.items()):
        try:
            ends[number] = _ends_at(number, address, credentials, metadata)
        except HeadwaterError as error:
            problems[number] = "not reached" if isinstance(error, BrokerUnavailable) else str(error)
    return _document(metadata, brokers, ends, problems)


def standing_of(metadata: pb.Metadata) -> dict[str, Any]:
    """The same by what one broker knows: it is not told how far followers are behind."""
    return _document(metadata, {one.id: Address(one.host, one.port) for one in metadata.brokers}, {}, {})


def call(
    addresses: list[Address], credentials: Credentials, method: str, request: object, timeout: float = _TIMEOUT
) -> Any:
    """The answer of the first of the brokers that gives one."""
    from headwater.client.connection import Connection

    connection = Connection(addresses, ClientConfig(timeout=timeout), credentials)
    try:
        return connection.call(method, request)
    finally:
        connection.close()


def _ends_at(number: int, address: Address, credentials: Credentials, metadata: pb.Metadata) -> Ends:
    """How far the logs go that a broker holds."""
    from headwater.v1 import broker_pb2 as pb

    held = [
        pb.TopicPartition(topic_uuid=topic.topic.uuid, partition=one.partition)
        for topic in metadata.topics
        for one in topic.partitions
        if number in one.replicas
    ]
    found = call([address], credentials, "ListLogEnds", pb.ListLogEndsRequest(partitions=held))
    return {(one.topic_uuid, one.partition): one.end for one in found.ends}


def _document(
    metadata: pb.Metadata, brokers: Mapping[int, Address], ends: Mapping[int, Ends], problems: Mapping[int, str]
) -> dict[str, Any]:
    topics: list[dict[str, Any]] = [
        {
            "name": topic.topic.name,
            "partitions": [_partition(topic.topic.uuid, one, brokers, ends) for one in topic.partitions],
        }
        for topic in metadata.topics
    ]
    places = [(f"{topic['name']}/{one['partition']}", one) for topic in topics for one in topic["partitions"]]
    leads = Counter(one["leader"] for _, one in places)
    holds = Counter(replica for _, one in places for replica in one["replicas"])
    return {
        "cluster": metadata.cluster_id,
        "version": metadata.version,
        "brokers": [
            {
                "id": one,
                "address": str(brokers[one]) if one in brokers else None,
                "leads": leads[one],
                "replicas": holds[one],
                "problem": problems.get(one) if one in brokers else "away",
            }
            for one in sorted(brokers.keys() | holds.keys())
        ],
        "topics": topics,
        "under_replicated": [place for place, one in places if len(one["in_sync"]) < len(one["replicas"])],
        "leaderless": [place for place, one in places if one["leader"] is None],
        "thinly_kept": [
            place
            for place, one in places
            if place.startswith("__") and len(one["replicas"]) < min(len(brokers), DEFAULT_REPLICATION)
        ],
    }


def _partition(
    uuid: bytes, one: pb.PartitionMetadata, brokers: Mapping[int, Address], ends: Mapping[int, Ends]
) -> dict[str, Any]:
    """A partition; a leader that is away is none. Lag is how many records a replica lacks, None where nobody knows."""
    leader = one.leader if one.leader in brokers else None
    known = {replica: ends.get(replica, {}).get((uuid, one.partition)) for replica in one.replicas}
    last = known.get(leader) if leader is not None else None
    lag = {
        str(replica): None if last is None or end is None else max(last - end, 0)
        for replica, end in known.items()
        if replica != leader
    }
    return {
        "partition": one.partition,
        "leader": leader,
        "epoch": one.leader_epoch,
        "replicas": list(one.replicas),
        "in_sync": list(one.in_sync),
        "lag": lag,
    }


def _show(document: dict[str, Any]) -> None:
    people = console()
    people.print(Text.assemble("cluster ", shown(document["cluster"], "bold")))
    brokers = table("broker", "address", "leads", "replicas", "")
    for one in document["brokers"]:
        problem = one["problem"]
        mark = Text("✓", "bold green") if problem is None else shown(problem, "bold red")
        brokers.add_row(str(one["id"]), shown(one["address"] or "-"), str(one["leads"]), str(one["replicas"]), mark)
    people.print(brokers)
    people.print()
    partitions = table("partition", "leader", "epoch", "in sync", "away or behind")
    for topic in document["topics"]:
        for one in topic["partitions"]:
            partitions.add_row(
                shown(f"{topic['name']}/{one['partition']}"),
                Text("nobody", "bold red") if one["leader"] is None else str(one["leader"]),
                str(one["epoch"]),
                " ".join(map(str, one["in_sync"])),
                _behind(one),
            )
    people.print(partitions if partitions.row_count else Text("no topics yet", "dim"))
    _judge(document)


def table(*headings: str) -> Table:
    """Columns without lines between them."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading)
    return made


def _behind(one: dict[str, Any]) -> Text:
    """The replicas that are not in sync, and those that lack records at the moment."""
    found = Text()
    for replica, lag in one["lag"].items():
        out = int(replica) not in one["in_sync"]
        if out or lag:
            found.append("  " if found else "")
            found.append(f"{replica}: {'away' if lag is None else f'{lag:,} behind'}", "bold red" if out else "")
    return found


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
    if document["thinly_kept"]:
        places = ", ".join(document["thinly_kept"])
        warning = (
            f"what the cluster keeps for itself is at fewer brokers than there are ({places}): that changes by itself, "
            f"unless `replication` says so"
        )
        people.print(Text.assemble(("! ", "bold yellow"), shown(warning)))
    if not document["leaderless"] and not document["under_replicated"]:
        people.print(Text.assemble(("✓ ", "bold green"), "every partition is led, and all its replicas are in sync"))
