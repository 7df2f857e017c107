"""TLS: the broker's certificate and, for mutual TLS, the authority that its clients' certificates must come from.

Files that are renewed are taken up by the connections that come after: nothing has to be started again.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

import grpc

from headwater.core.errors import InvalidConfiguration

_LOG: Final = logging.getLogger("headwater.broker.security.tls")
Stamp = tuple[tuple[int, int], ...]


class Certificates:
    """A certificate with its key, and the authority of clients if they have to have one too."""

    def __init__(self, certificate: Path, key: Path, client_authority: Path | None = None) -> None:
        """Raises InvalidConfiguration, which says what is wrong with which file."""
        self._certificate = certificate
        self._key = key
        self._authority = client_authority
        self._stamp = self._stamped()
        self.context = self._checked()
        """The same for HTTP, where clients need no certificate."""

    def _paths(self) -> tuple[Path, ...]:
        return (self._certificate, self._key) + ((self._authority,) if self._authority is not None else ())

    def _stamped(self) -> Stamp:
        try:
            return tuple((status.st_mtime_ns, status.st_size) for status in (path.stat() for path in self._paths()))
        except OSError as error:
            raise InvalidConfiguration(f"{error.filename}: {error.strerror}") from error

    def _checked(self) -> ssl.SSLContext:
        """gRPC says nothing about files that are wrong, it only lets nobody connect: so Python's own TLS reads them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key that wants a password would make it ask at the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except (OSError, ValueError) as error:
            reason = f"{self._certificate} and {self._key} are no certificate with its unencrypted key in PEM"
            raise InvalidConfiguration(f"{reason}: {error}") from error
        if self._authority is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._authority)
            except (OSError, ValueError) as error:
                raise InvalidConfiguration(f"{self._authority} is no certificate in PEM: {error}") from error
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration(
            [pair], self._authority.read_bytes() if self._authority is not None else None
        )

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of a server, which takes the files as they are whenever a client connects."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._renewed,  # type: ignore[arg-type] # it may return None: nothing has changed
            require_client_authentication=self._authority is not None,
        )

    def peer_credentials(self) -> grpc.ChannelCredentials:
        """Credentials to call the other brokers of a cluster, which have certificates of the same authorities."""
        roots = self._authority.read_bytes() if self._authority is not None else None
        return grpc.ssl_channel_credentials(roots, self._key.read_bytes(), self._certificate.read_bytes())

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The files anew if they have changed and are right; called by gRPC with every connection."""
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            self._checked()
            self.context.load_cert_chain(self._certificate, self._key)  # for servers that use it by now
            renewed = self._configuration()
        except (InvalidConfiguration, OSError) as error:
            _LOG.error("certificate refused, the old one stays", extra={"facts": {"problem": str(error)}})
            return None
        _LOG.info("certificate renewed")
        return renewed
