"""A decision: what a transaction does, all of it, as it is kept until it is done."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from headwater.core.errors import Damaged
from headwater.log import Identity
from headwater.streams.staging import Output, StagedExtent

_TRAILER = struct.Struct("<II8s")
_MAGIC: Final = b"HWTXN001"


class Input(NamedTuple):
    """The position of the group in one partition once the transaction is done."""

    topic: str
    uuid: bytes
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A transaction that is decided: under which number of which writer, and all that has to be done for it.

    A `named` writer repeats a transaction under the same number, so its last one is kept for ever. `generation` is the
    one in which the inputs were the consumer's: a position that was set in a later one is not touched.
    """

    writer: bytes
    sequence: int
    named: bool
    outputs: tuple[Output, ...]
    group: str | None = None
    inputs: tuple[Input, ...] = ()
    generation: int = 0
    request: str = ""
    """The id under which a broker was asked for it. A client that did not hear the answer can ask again."""

    @property
    def identity(self) -> Identity:
        """The identity of the writer, as its frames carry it."""
        return Identity(self.writer, 0, self.sequence, forever=True)

    @property
    def name(self) -> str:
        """The name of its file. The generation is known only at the decision, so it is in the name."""
        return f"{self.writer.hex()}.{self.sequence}.{self.generation}"

    @property
    def files(self) -> frozenset[str]:
        """The other files that its frames are in."""
        return frozenset(extent.file for output in self.outputs for extent in output.extents if extent.file)

    def pack(self) -> bytes:
        """The end of the decision's file."""
        content = json.dumps(
            {
                "writer": self.writer.hex(),
                "sequence": self.sequence,
                "named": self.named,
                "outputs": [[topic, uuid.hex(), number, extents] for topic, uuid, number, extents in self.outputs],
                "group": self.group,
                "inputs": [[topic, uuid.hex(), number, offset] for topic, uuid, number, offset in self.inputs],
                **({"request": self.request} if self.request else {}),
            },
            separators=(",", ":"),
        ).encode()
        return content + _TRAILER.pack(len(content), crc32c(content), _MAGIC)

    @classmethod
    def unpack(cls, file: memoryview, where: Path) -> Decision:
        """The decision at the end of this file; its name gives the generation. Raises Damaged."""
        try:
            size, checksum, magic = _TRAILER.unpack_from(file, len(file) - _TRAILER.size)
            content = bytes(file[len(file) - _TRAILER.size - size : len(file) - _TRAILER.size])
            if magic != _MAGIC or len(content) != size or crc32c(content) != checksum:
                raise ValueError("it does not match its checksum")
            document: dict[str, Any] = json.loads(content)
            decision = cls(
                bytes.fromhex(document["writer"]),
                int(document["sequence"]),
                bool(document["named"]),
                tuple(
                    Output(topic, bytes.fromhex(uuid), number, tuple(StagedExtent(*extent) for extent in extents))
                    for topic, uuid, number, extents in document["outputs"]
                ),
                document["group"],
                tuple(Input(topic, bytes.fromhex(uuid), number, at) for topic, uuid, number, at in document["inputs"]),
                int(where.stem.rpartition(".")[2]),
                str(document.get("request", "")),
            )
            if where.stem != decision.name:
                raise ValueError("the file has the name of another transaction")
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"not a decided transaction: {error}", file=where) from error
        return decision
