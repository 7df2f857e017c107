"""`hw broker status`: how a broker is."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.output import Json, console, shown, size, wants_json, write_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.core.address import parse_store
from headwater.core.config import ClientConfig
from headwater.core.errors import InvalidConfiguration
from headwater.core.options import options_of

_WAIT: Final = "5s"
_TIMEOUT: Final = next(option for option in options_of(ClientConfig) if option.name == "timeout")


def status(
    broker: BrokerAddress = HERE,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to keep trying, such as 1min for a broker that is starting.")
    ] = _WAIT,
    as_json: Json = False,
) -> None:
    """Show a broker's topics, counters and problems. The exit code is 1 if it has problems.

    A token is taken from HEADWATER_CLIENT_TOKEN. It needs the right to read the broker.
    """
    from headwater.client.connection import Connection
    from headwater.v1 import broker_pb2 as pb

    credentials = credentials_of(tls_ca, tls_certificate, tls_key)
    try:
        config = ClientConfig(timeout=_TIMEOUT.parse(wait))
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"--wait {wait!r:.60}: {error}") from None
    connection = Connection(parse_store(broker), config, credentials)
    try:
        broker_status: pb.Status = connection.call("GetStatus", pb.GetStatusRequest())
    finally:
        connection.close()
    document = {field.name: getattr(broker_status, field.name) for field in broker_status.DESCRIPTOR.fields}
    document["unhealthy"] = list(broker_status.unhealthy)
    if wants_json(as_json):
        write_json(document)
    else:
        _show(broker_status)
    raise typer.Exit(1 if broker_status.unhealthy else 0)


def _show(broker_status: object) -> None:
    from headwater.v1 import broker_pb2 as pb

    assert isinstance(broker_status, pb.Status)
    people = console()
    style = "bold green" if broker_status.state == "serving" else "bold yellow"
    people.print(Text.assemble((f"broker {broker_status.broker_id}", "bold"), "  ", shown(broker_status.state, style)))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in (
        ("directory", broker_status.directory),
        ("version", broker_status.version),
        ("up for", _length(time.time() - broker_status.started_ns / 1e9)),
        ("topics", f"{broker_status.topics:,} with {broker_status.partitions:,} partitions"),
        ("connections", f"{broker_status.connections:,}"),
        ("in flight", size(broker_status.in_flight_bytes)),
        ("produced", f"{broker_status.produced_records:,} records, {size(broker_status.produced_bytes)}"),
        ("fetched", size(broker_status.fetched_bytes)),
        ("memory", size(broker_status.memory_bytes)),
    ):
        table.add_row(name, shown(value))
    people.print(table)
    for partition in broker_status.unhealthy:
        people.print(
            Text.assemble(("✗ ", "bold red"), shown(partition), " is damaged, or its disk has failed: hw check")
        )


def _length(seconds: float) -> str:
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{int(seconds)} s"
