"""Tokens: secrets by which programs say who they are. The broker keeps salted hashes, never the tokens.

A token is `hw_`, its id, `_`, and 256 random bits. The id is no secret: it finds the hash without trying all of them,
and names the token where it is listed and revoked. A file beside the access file has them; only the command writes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.errors import InvalidFile, Problem, StoreError

SUFFIX: Final = ".tokens"
_TOKEN: Final = re.compile(r"hw_(?P<id>[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"[0-9a-f]{12}")
_SALT_BYTES: Final = 16
# The secrets are random, so nobody guesses them by the dictionary: this is some milliseconds, not half a second.
_SCRYPT_COST: Final = 1 << 12
_MAX_FAILURES: Final = 10
"""So many wrong secrets of one token are hashed in a second; more are refused unseen, for each costs milliseconds."""


class Token(NamedTuple):
    """What is kept of a token."""

    id: str
    user: str
    salt: str
    hash: str
    created: float
    expires: float | None = None

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, user={self.user!r})"


def tokens_beside(access: Path) -> Path:
    """Where the tokens of an access file are: `access.tokens` for `access.yaml`."""
    return access.with_suffix(SUFFIX)


def read_tokens(path: Path) -> dict[str, Token]:
    """The tokens in a file, by their ids; none when there is no file. Raises InvalidFile."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["tokens"]
        tokens = [token_of(one) for one in listed]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        # Without the cause's text, which may quote what is in the file.
        message = f"is no file of tokens ({type(error).__name__}): restore it, or remove it and make tokens anew"
        raise InvalidFile([Problem(str(path), 1, "", message)]) from None
    return {token.id: token for token in tokens}


def token_of(content: dict[str, Any]) -> Token:
    """A token as it is kept; raises ValueError or TypeError, which may quote what is there."""
    token = Token(**content)
    bytes.fromhex(token.salt), bytes.fromhex(token.hash)
    if not _ID.fullmatch(token.id) or not isinstance(token.user, str):
        raise ValueError("it has no id, or no user")
    return token


def create_token(path: Path, user: str, expires: float | None = None) -> str:
    """Make a token for a user and keep its hash. What is returned is nowhere else."""
    with _changing(path) as tokens:
        identity = secrets.token_hex(6)
        token = f"hw_{identity}_{secrets.token_urlsafe(32)}"
        salt = secrets.token_bytes(_SALT_BYTES)
        tokens[identity] = Token(identity, user, salt.hex(), _hashed(token, salt).hex(), round(time.time(), 3), expires)
    return token


def revoke_token(path: Path, identity: str) -> Token:
    """Forget a token: it is refused from now on."""
    with _changing(path) as tokens:
        if identity not in tokens:
            raise StoreError(
                f"there is no token {identity!r:.40} in {path}: `hw broker token list` shows those that are"
            )
        return tokens.pop(identity)


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, Token]]:
    """The tokens in a file, which is replaced at the end. Two commands at once do it one after the other."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        tokens = read_tokens(path)
        yield tokens
        document = json.dumps({"tokens": [token._asdict() for token in tokens.values()]}, indent=2)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="ascii") as out:
            out.write(document + "\n")
            out.flush()
            os.fsync(file)
        scratch.replace(path)
        os.fsync(directory)
    finally:
        os.close(directory)


def _hashed(token: str, salt: bytes) -> bytes:
    return hashlib.scrypt(token.encode(), salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=32)


class Verifier:
    """Knows whose a token is. A token that was right once is recognised without hashing it again. Thread-safe."""

    def __init__(self, tokens: Mapping[str, Token], now: Callable[[], float] = time.time) -> None:
        self.tokens = tokens
        self._now = now
        self._known: dict[str, tuple[bytes, Token]] = {}
        self._failures: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"Verifier({len(self.tokens)} tokens)"

    def user(self, presented: str) -> str | None:
        """Whose token this is; None if it is nobody's, or is no longer good."""
        found = _TOKEN.fullmatch(presented)
        token = self.tokens.get(found["id"]) if found is not None else None
        if token is None or (token.expires is not None and self._now() >= token.expires):
            return None
        digest = hashlib.sha256(presented.encode()).digest()
        known = self._known.get(token.id)
        if known is not None and known[1] == token and hmac.compare_digest(known[0], digest):
            return token.user
        if not self._may_try(token.id):
            return None
        if not hmac.compare_digest(_hashed(presented, bytes.fromhex(token.salt)).hex(), token.hash):
            return None
        self._known[token.id] = (digest, token)
        self._failures.pop(token.id, None)
        return token.user

    def _may_try(self, identity: str) -> bool:
        second = int(self._now())
        since, tries = self._failures.get(identity, (second, 0))
        tries = tries + 1 if since == second else 1
        self._failures[identity] = (second, tries)
        return tries <= _MAX_FAILURES
