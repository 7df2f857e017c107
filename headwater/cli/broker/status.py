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
        str, typer.Option(metavar="TIME", help="How long to go on trying, such as 1min for a broker that is starting.")
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
        found: pb.Status = connection.call("GetStatus", pb.GetStatusRequest())
    finally:
        connection.close()
    document = {field.name: getattr(found, field.name) for field in found.DESCRIPTOR.fields}
    document["unhealthy"] = list(found.unhealthy)
    if wants_json(as_json):
        write_json(document)
    else:
        _show(found)
    raise typer.Exit(1 if found.unhealthy else 0)


def _show(found: object) -> None:
    from headwater.v1 import broker_pb2 as pb

    assert isinstance(found, pb.Status)
    people = console()
    style = "bold green" if found.state == "serving" else "bold yellow"
    people.print(Text.assemble((f"broker {found.broker_id}", "bold"), "  ", shown(found.state, style)))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in (
        ("directory", found.directory),
        ("version", found.version),
        ("up for", _length(time.time() - found.started_ns / 1e9)),
        ("topics", f"{found.topics:,} with {found.partitions:,} partitions"),
        ("connections", f"{found.connections:,}"),
        ("in flight", size(found.in_flight_bytes)),
        ("produced", f"{found.produced_records:,} records, {size(found.produced_bytes)}"),
        ("fetched", size(found.fetched_bytes)),
        ("memory", size(found.memory_bytes)),
    ):
        table.add_row(name, shown(value))
    people.print(table)
    for partition in found.unhealthy:
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
