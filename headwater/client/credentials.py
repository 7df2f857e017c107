"""Credentials: how a client proves to a broker who it is, and how it knows the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import grpc

from headwater.core.address import Address
from headwater.core.environment import PREFIX
from headwater.core.errors import InvalidConfiguration

NAMES: Final = ("token", "tls", "tls_ca", "tls_certificate", "tls_key")
"""The options of `headwater.open` beside those of a ClientConfig; in the environment `HEADWATER_CLIENT_TOKEN`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, and the files of TLS. The token is shown nowhere."""

    token: str | None = field(default=None, repr=False)
    tls: bool = False
    """True to use TLS, also without any of the files below: then with the machine's own authorities."""
    tls_ca: str | None = None
    """A file with the certificates of the authorities that the broker's certificate may come from."""
    tls_certificate: str | None = None
    """A file with the client's own certificate, for brokers that ask for one."""
    tls_key: str | None = field(default=None, repr=False)
    """A file with the key of that certificate."""

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if name != "tls" and value is not None and (not isinstance(value, str) or not value.strip()):
                raise InvalidConfiguration(f"{name} must be text, and not empty")
        if not isinstance(self.tls, bool):
            raise InvalidConfiguration(f"tls must be True or False, not {self.tls!r:.60}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidConfiguration("tls_certificate and tls_key belong together: give both, or neither")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the environment's credentials; a variable that is set to nothing counts as not set."""
        texts = {name: environment.get(f"{PREFIX}CLIENT_{name.upper()}", "").strip() for name in NAMES}
        secure = texts.pop("tls").lower()
        if secure not in ("", "true", "yes", "on", "1", "false", "no", "off", "0"):
            raise InvalidConfiguration(f"{PREFIX}CLIENT_TLS must be true or false, not {secure!r:.60}")
        given = {name: text for name, text in texts.items() if text}
        return cls(tls=secure in ("true", "yes", "on", "1"), **given)

    def overridden(self, options: Mapping[str, object]) -> Credentials:
        """These, with what a program says explicitly over them."""
        return replace(self, **options)  # type: ignore[arg-type]

    @property
    def secure(self) -> bool:
        """True if connections use TLS."""
        return self.tls or self.tls_ca is not None or self.tls_certificate is not None

    def check(self, addresses: Sequence[Address]) -> None:
        """Raise where a token would go over a network in the clear."""
        exposed = [str(address) for address in addresses if not address.local]
        if self.token is not None and exposed and not self.secure:
            raise InvalidConfiguration(
                f"a token is sent beyond this machine only over TLS: set tls or tls_ca to connect to {exposed[0]}"
            )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel(self, address: str, options: Sequence[tuple[str, object]]) -> grpc.Channel:
        """A channel to a broker."""
        if not self.secure:
            return grpc.insecure_channel(address, options)
        tls = grpc.ssl_channel_credentials(_read(self.tls_ca), _read(self.tls_key), _read(self.tls_certificate))
        return grpc.secure_channel(address, tls, options)


def _read(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error.strerror}") from error
