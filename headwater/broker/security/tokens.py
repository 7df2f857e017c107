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

from headwater.broker.security.access import TooManyAttempts
from headwater.core.errors import InvalidFile, Problem, StoreError
from headwater.serving.failures import Failures

SUFFIX: Final = ".tokens"
_TOKEN: Final = re.compile(r"hw_(?P<id>[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"[0-9a-f]{12}")
_SALT_BYTES: Final = 16
# The secrets are random, so nobody guesses them by the dictionary: this is some milliseconds, not half a second.
_SCRYPT_COST: Final = 1 << 12
_MAX_FAILURES: Final = 10
_FAILURE_SECONDS: Final = 1.0
"""So many wrong tokens from one source are hashed in this time. More are refused unseen: each costs milliseconds."""


class Token(NamedTuple):
    """A token as it is kept: without its secret part."""

    id: str
    user: str
    salt: str
    hash: str
    created: float
    expires: float | None = None

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, user={self.user!r})"


def tokens_beside(access: Path) -> Path:
    """The file with the tokens of an access file: `access.tokens` for `access.yaml`."""
    return access.with_suffix(SUFFIX)


def read_tokens(path: Path) -> dict[str, Token]:
    """The tokens in a file, by their ids; none when there is no file. Raises InvalidFile."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["tokens"]
        tokens = [token_of(entry) for entry in listed]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        # Without the cause's text, which may quote what is in the file.
        message = f"is not a file of tokens ({type(error).__name__}): restore it, or remove it and create new tokens"
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
    """Make a token for a user and keep its hash. The returned token is nowhere else."""
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
                f"token {identity!r:.40} does not exist in {path}: `hw broker token list` shows the tokens"
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
    """Knows whose a token is. Thread-safe.

    A token that was right once is known without hashing it again, and so is that any other one under its id is wrong.
    """

    def __init__(
        self,
        tokens: Mapping[str, Token],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokens = tokens
        self._now = now
        self._known: dict[str, tuple[bytes, Token]] = {}
        self._failures = Failures(_MAX_FAILURES, _FAILURE_SECONDS, monotonic)

    def __repr__(self) -> str:
        return f"Verifier({len(self.tokens)} tokens)"

    def user(self, presented: str, source: str = "") -> str | None:
        """The user of a token; None if it is nobody's, or is no longer good.

        Raises TooManyAttempts where it would have to be hashed and too many wrong ones came from this source.
        """
        token = self._named(presented)
        if token is None:
            return None
        digest = hashlib.sha256(presented.encode()).digest()
        known = self._known.get(token.id)
        if known is not None and known[1] == token:
            return token.user if hmac.compare_digest(known[0], digest) else None
        if self._failures.blocks(source):
            raise TooManyAttempts("too many wrong tokens come from this address: try again in a moment")
        if not hmac.compare_digest(_hashed(presented, bytes.fromhex(token.salt)).hex(), token.hash):
            self._failures.note(source)
            return None
        self._known[token.id] = (digest, token)
        return token.user

    def hashes(self, presented: str) -> bool:
        """Return whether `user` would hash this one, which takes milliseconds of a processor."""
        token = self._named(presented)
        if token is None:
            return False
        known = self._known.get(token.id)
        return known is None or known[1] != token

    def _named(self, presented: str) -> Token | None:
        """The token that it says it is, if that is good."""
        match = _TOKEN.fullmatch(presented)
        token = self.tokens.get(match["id"]) if match is not None else None
        return None if token is None or (token.expires is not None and self._now() >= token.expires) else token
