"""Secrets: a broker signs what it gives out, and knows it again without a table, also after a restart.

Producer ids, the secrets to resume them and the tokens of stages carry a signature under a key that only the broker
has. The key is a file in the store's directory that only its owner can read.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from headwater.core.errors import OpenFailed, StoreError
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.entropy import random_bytes
from headwater.streams.store import Store

KEY_FILE: Final = "broker.key"
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 16
_SECRET_BYTES: Final = 16
_TOKEN_BYTES: Final = 16


class Secrets:
    """Signs what is given out, and knows it again."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.owns = lru_cache(maxsize=65536)(self._owns)
        """Returns whether a producer id was given to the caller of this name."""

    def _sign(self, purpose: str, *parts: bytes) -> bytes:
        content = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), *parts))
        return hmac.digest(self._key, content, "sha256")

    # Producers.

    def new_producer(self, caller: str) -> bytes:
        """An id for a producer of this caller: half of it random, half of it says whose it is."""
        number = random_bytes(_ID_BYTES // 2)
        return number + self._sign("producer", number, caller.encode())[: _ID_BYTES // 2]

    def _owns(self, caller: str, producer_id: bytes) -> bool:
        number, signature = producer_id[: _ID_BYTES // 2], producer_id[_ID_BYTES // 2 :]
        expected = self._sign("producer", number, caller.encode())[: _ID_BYTES // 2]
        return hmac.compare_digest(signature, expected)

    def secret_of(self, caller: str, producer_id: bytes) -> bytes:
        """The secret that the caller must know to go on as this producer."""
        return self._sign("secret", producer_id, caller.encode())[:_SECRET_BYTES]

    # Tokens.

    def seal(self, content: bytes) -> bytes:
        """The content with a signature before it."""
        return self._sign("token", content)[:_TOKEN_BYTES] + content

    def unseal(self, token: bytes) -> bytes:
        """The content of a token that was sealed here; raises StoreError."""
        signature, content = token[:_TOKEN_BYTES], token[_TOKEN_BYTES:]
        if not hmac.compare_digest(signature, self._sign("token", content)[:_TOKEN_BYTES]):
            raise StoreError("this broker did not issue the token")
        return content


def secrets_of(store: Store) -> Secrets:
    """The secrets of the broker that serves this store; made with the first one."""
    if not isinstance(store, DirectoryStore):
        return Secrets(os.urandom(_KEY_BYTES))
    path = store.path / KEY_FILE
    try:
        return Secrets(_read_key(path) or _make_key(path))
    except OSError as error:
        raise OpenFailed(path, error) from error


def _read_key(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    return None


def _make_key(path: Path) -> bytes:
    """A new key, durable before anything is signed with it. A key that is cut short has never been used."""
    key = os.urandom(_KEY_BYTES)
    with suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, key)
        os.fsync(fd)
    finally:
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return key
