"""Options of all commands that talk to brokers: the address, and the files of TLS."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.core.address import DEFAULT_PORT, SCHEME

if TYPE_CHECKING:
    from headwater.client.credentials import Credentials

HERE: Final = f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"
BrokerAddress = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        envvar="HEADWATER_STORE",
        help="The address of a broker; several, separated by commas, are tried in turn.",
    ),
]
TlsAuthority = Annotated[
    str | None,
    typer.Option("--tls-ca", metavar="PATH", help="The authority that the brokers' certificates come from."),
]
TlsCertificate = Annotated[
    str | None, typer.Option("--tls-certificate", metavar="PATH", help="A certificate of your own.")
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="PATH", help="Its key.")]


def credentials_of(tls_ca: str | None, tls_certificate: str | None, tls_key: str | None) -> Credentials:
    """Return the credentials of the environment, with those of the command line over them."""
    from headwater.client.credentials import Credentials

    said = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
    return Credentials.from_environment(os.environ).overridden(
        {name: value for name, value in said.items() if value is not None}
    )
