"""A writer of transactions: the numbers that it has used, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headwater.core.errors import Damaged, WriterTaken


@dataclass(frozen=True, slots=True)
class NamedWriter:
    """A writer, as it is kept for ever: the last of its sequences that are taken, -1 for none.

    Numbers may belong to an owner, such as a query of Spark, which counts from 0 whatever was written before it. A
    sequence must rise, so `base` is what is added to the owner's numbers; `past` has the last number of each owner
    before it.
    """

    id: bytes
    used: int = -1
    owner: str | None = None
    base: int = 0
    past: Mapping[str, int] = field(default_factory=dict)

    def claimed(self, name: str, owner: str | None, number: int, *, takeover: bool) -> NamedWriter:
        """The writer as `owner` goes on with it from this number on. Raises WriterTaken when it is another's."""
        if owner == self.owner:
            return self
        new = self.used < 0 and self.owner is None
        if owner is None or not (new or takeover):
            raise WriterTaken(name, self.owner, owner)
        if number <= self.past.get(owner, -1):
            return self  # it comes back with what it did before it was replaced
        past = dict(self.past)
        if self.owner is not None:
            past[self.owner] = self.used - self.base
        return replace(self, owner=owner, base=self.used + 1 - number, past=past)

    def sequence(self, owner: str | None, number: int) -> int | None:
        """The sequence of an owner's number that was claimed; None when it was done before."""
        if owner != self.owner:
            return None
        sequence = self.base + number
        return sequence if sequence > self.used else None

    def pack(self) -> bytes:
        """The content of the writer's file."""
        content: dict[str, Any] = {"writer": self.id.hex(), "used": self.used}
        if self.owner is not None:
            content |= {"owner": self.owner, "base": self.base, "past": self.past}
        return json.dumps(content).encode()

    @classmethod
    def unpack(cls, content: bytes, where: Path) -> NamedWriter:
        """The reverse of `pack`. Raises Damaged."""
        try:
            document = json.loads(content)
            past = {str(owner): int(number) for owner, number in document.get("past", {}).items()}
            return cls(
                bytes.fromhex(document["writer"]),
                int(document["used"]),
                document.get("owner"),
                int(document.get("base", 0)),
                past,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"not a writer of transactions: {error}", file=where) from error


def named_writer(name: str) -> bytes:
    """The identity of a writer that has a name: the same wherever and whenever it writes."""
    return blake2b(name.encode(), digest_size=16, person=b"headwater writer").digest()
