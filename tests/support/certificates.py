"""Certificates for tests, made by the command openssl: an authority, and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")


class Pair(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, in a directory."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self.directory = directory
        self.certificate, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        self._openssl(
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"],
            ["-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate)],
        )

    def _openssl(self, *arguments: list[str]) -> None:
        subprocess.run(["openssl", *(text for part in arguments for text in part)], check=True, capture_output=True)

    def sign(self, name: str, *alternatives: str, file: str | None = None) -> Pair:
        """A certificate for a name and, if there are any, alternatives such as `DNS:localhost`."""
        pair = Pair(self.directory / f"{file or name}.pem", self.directory / f"{file or name}.key")
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        self._openssl(
            ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"],
            ["-keyout", str(pair.key), "-out", str(request)],
        )
        extensions.write_text(f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
        self._openssl(
            ["x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)],
            ["-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(pair.certificate)],
        )
        return pair
