"""`hw cluster elect`: let a replica lead a partition that has lost its leaders: an unclean election, with losses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from headwater.cli.cluster.status import table
from headwater.cli.output import Json, console, shown, wants_json, write_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.core.address import parse_store
from headwater.core.errors import InvalidConfiguration, StoreError

if TYPE_CHECKING:
    from headwater.v1 import broker_pb2 as pb

_TIMEOUT: Final = 30.0
"""A broker that is alive and does not answer is waited for."""


def elect(
    partition: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="Which partition, such as orders/0.")],
    broker: Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="N", help="The broker that becomes its leader.")],
    address: BrokerAddress = HERE,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do not ask: records that only other replicas had may be lost.")
    ] = False,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
) -> None:
    """Make a broker the leader of a partition that has none because an in-sync replica is lost for good.

    All acknowledged records beyond the end of its log are lost, even if a lost replica comes back. If you can, start
    the in-sync replicas instead: then one of them becomes the leader by itself. The command needs the right to
    administer the topic; it takes a token from HEADWATER_CLIENT_TOKEN.
    """
    from headwater.client.cluster_status import call
    from headwater.v1 import broker_pb2 as pb

    topic, _, number = partition.rpartition("/")
    if not topic or not number.isascii() or not number.isdigit() or int(number) >= 2**32:
        raise InvalidConfiguration(f"a partition is named like orders/0, not {partition!r:.100}")
    where = parse_store(address), credentials_of(tls_ca, tls_certificate, tls_key), "ElectLeader"
    tp = pb.TopicPartition(topic=topic, partition=int(number))
    plan: pb.ElectLeaderResponse = call(
        *where, pb.ElectLeaderRequest(partition=tp, broker=broker, dry_run=True), _TIMEOUT
    )
    people = not wants_json(as_json)
    if people:
        _show(partition, broker, plan)
    if not accept_loss:
        _confirm(partition, broker)
    request = pb.ElectLeaderRequest(partition=tp, broker=broker, revision=plan.revision)
    done: pb.ElectLeaderResponse = call(*where, request, _TIMEOUT)
    if people:
        told = f"{partition} is led by broker {broker}, in epoch {done.epoch}"
        console().print(Text.assemble(("✓ ", "bold green"), shown(told)))
    else:
        write_json(_document(partition, broker, done))


def _confirm(partition: str, broker: int) -> None:
    if not sys.stdin.isatty():
        raise StoreError(
            "there is no terminal to ask at: --accept-loss accepts losing the records that only other replicas had"
        )
    if not typer.confirm(
        f"Let broker {broker} lead {partition}, and lose the records that it does not have?", err=True
    ):
        raise StoreError("nothing was done")


def _end_of(broker: int, answer: pb.ElectLeaderResponse) -> int:
    return next(replica.end for replica in answer.replicas if replica.broker == broker)


def _show(partition: str, broker: int, plan: pb.ElectLeaderResponse) -> None:
    people = console()
    people.print(Text.assemble(shown(partition, "bold"), " is led by nobody"))
    replicas = table("broker", "was in sync", "alive", "its log ends at")
    for replica in plan.replicas:
        replicas.add_row(
            str(replica.broker),
            "yes" if replica.in_sync else "no",
            Text("yes") if replica.alive else Text("away", "bold red"),
            f"{replica.end:,}" if replica.HasField("end") else "not known",
        )
    people.print(replicas)
    end = _end_of(broker, plan)
    people.print()
    loss = f"what was acknowledged from offset {end:,} on is lost for good"
    people.print(Text.assemble(("! ", "bold yellow"), f"If broker {broker} leads, {loss}."), soft_wrap=True)
    best = max(plan.replicas, key=lambda replica: replica.end)
    if best.end > end:
        more = f"Broker {best.broker} is alive and has {best.end - end:,} records more."
        people.print(Text.assemble(("! ", "bold yellow"), more), soft_wrap=True)


def _document(partition: str, broker: int, done: pb.ElectLeaderResponse) -> dict[str, Any]:
    return {
        "partition": partition,
        "leader": broker,
        "epoch": done.epoch,
        "lost_from": _end_of(broker, done),
        "replicas": [
            {
                "broker": replica.broker,
                "in_sync": replica.in_sync,
                "alive": replica.alive,
                "end": replica.end if replica.HasField("end") else None,
            }
            for replica in done.replicas
        ],
    }
