"""The producer table: it remembers the last batches of each producer, which makes retries harmless.

For an idempotent producer the last five batches are kept, so that a retry of any of them is answered with the offsets
of the original. For the writer of atomic groups one number is kept for ever. The table is saved at each roll as it is
at the new segment's base; what came later is in the headers of the frames behind that.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headwater.core.errors import Damaged, OutOfOrderSequence, ProducerFenced
from headwater.log.elapsed import IsOld
from headwater.log.files.disk import open_plain, read_plain
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, list_segments, seed_of
from headwater.log.files.state import State
from headwater.log.format.frame import FrameHeader, Identity, identity_of

if TYPE_CHECKING:
    from headwater.log.write.owner import PartitionOwner

BATCHES_KEPT: Final = 5
_MAGIC: Final = b"HWPRODS1"
_HEAD = struct.Struct("<8sQQ")
_WRITER = struct.Struct("<16sq")
_PRODUCER = struct.Struct("<16sIIq")
_BATCH = struct.Struct("<qqqq")


class ProducedBatch(NamedTuple):
    """One append of a producer: its first and last sequence, its first offset and the one after its last."""

    first: int
    last: int
    base_offset: int
    end_offset: int


class KnownProducer:
    """An idempotent producer: its epoch, when it last wrote, and its last batches, the newest last."""

    __slots__ = ("batches", "epoch", "seen_ns")

    def __init__(self, epoch: int, seen_ns: int, batches: Iterable[ProducedBatch] = ()) -> None:
        self.epoch = epoch
        self.seen_ns = seen_ns
        self.batches: deque[ProducedBatch] = deque(batches, BATCHES_KEPT)


class ProducerTable:
    """Idempotence for one partition. Not thread-safe: it belongs to the owner of the partition's lock."""

    def __init__(self) -> None:
        self._producers: dict[bytes, KnownProducer] = {}
        self._writers: dict[bytes, int] = {}

    def check(self, identity: Identity, count: int) -> ProducedBatch | None:
        """None when these `count` records come next; the original when they are a retry; an error otherwise.

        The original of an atomic group is known only by its number: its offsets are -1.
        """
        if identity.forever:
            last = self._writers.get(identity.producer_id, -1)
            return ProducedBatch(identity.sequence, identity.sequence, -1, -1) if identity.sequence <= last else None
        producer = self._producers.get(identity.producer_id)
        expected = 0
        if producer is not None:
            if identity.epoch < producer.epoch:
                raise ProducerFenced(identity.epoch, producer.epoch)
            if identity.epoch == producer.epoch:
                for batch in producer.batches:
                    if batch.first == identity.sequence and batch.last == identity.sequence + count - 1:
                        return batch
                expected = producer.batches[-1].last + 1 if producer.batches else 0
        if identity.sequence != expected:
            raise OutOfOrderSequence(identity.sequence, expected)
        return None

    def add(self, identity: Identity, count: int, base_offset: int, end_offset: int, now_ns: int) -> None:
        """Remember an append of `count` records that `check` has let through, unless a later one is known already."""
        if identity.forever:
            last = self._writers.get(identity.producer_id, -1)
            self._writers[identity.producer_id] = max(identity.sequence, last)
            return
        producer = self._producers.get(identity.producer_id)
        if producer is None or producer.epoch < identity.epoch:
            producer = self._producers[identity.producer_id] = KnownProducer(identity.epoch, now_ns)
        if producer.batches and producer.batches[-1].base_offset >= base_offset:
            return
        producer.seen_ns = now_ns
        producer.batches.append(
            ProducedBatch(identity.sequence, identity.sequence + count - 1, base_offset, end_offset)
        )

    def add_stored(self, header: FrameHeader, now_ns: int) -> None:
        """Remember a frame that is in the log already."""
        identity = identity_of(header)
        if identity is not None:
            self.add(identity, header.record_count, header.base_offset, header.next_offset, now_ns)

    def expire(self, is_old: IsOld) -> None:
        """Forget the producers, not the writers, that have been silent for too long."""
        self._producers = {key: producer for key, producer in self._producers.items() if not is_old(producer.seen_ns)}

    def forget_beyond(self, offset: int) -> None:
        """Forget the batches of producers that lie beyond `offset`, where the log now ends, but not what comes next."""
        for producer in self._producers.values():
            gone = [batch for batch in producer.batches if batch.end_offset > offset]
            if gone:
                kept = [batch for batch in producer.batches if batch.end_offset <= offset]
                kept = kept or [ProducedBatch(gone[0].first, gone[0].first - 1, -1, -1)]
                producer.batches = deque(kept, BATCHES_KEPT)

    @property
    def producers(self) -> Mapping[bytes, KnownProducer]:
        """The idempotent producers, by id."""
        return self._producers

    @property
    def writers(self) -> Mapping[bytes, int]:
        """The last sequence of each writer of atomic groups, by id."""
        return self._writers

    def writer_sequence(self, writer: bytes) -> int:
        """The last sequence of this writer, -1 when it has written nothing."""
        return self._writers.get(writer, -1)

    def pack(self) -> bytes:
        """The table as bytes, for a snapshot."""
        parts = [_HEAD.pack(_MAGIC, len(self._producers), len(self._writers))]
        for key, producer in self._producers.items():
            parts.append(_PRODUCER.pack(key, producer.epoch, len(producer.batches), producer.seen_ns))
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        parts += [_WRITER.pack(key, sequence) for key, sequence in self._writers.items()]
        content = b"".join(parts)
        checksum: int = crc32c(content)
        return content + checksum.to_bytes(4, "little")

    @classmethod
    def unpack(cls, content: bytes) -> ProducerTable:
        """The table in a snapshot's bytes, verified."""
        if content[:8] != _MAGIC or crc32c(content[:-4]) != int.from_bytes(content[-4:], "little"):
            raise Damaged("a snapshot of producers does not match its checksum")
        table = cls()
        _, producers, writers = _HEAD.unpack_from(content)
        position = _HEAD.size
        for _ in range(producers):
            key, epoch, batches, seen_ns = _PRODUCER.unpack_from(content, position)
            position += _PRODUCER.size
            end = position + batches * _BATCH.size
            table._producers[key] = KnownProducer(
                epoch, seen_ns, map(ProducedBatch._make, _BATCH.iter_unpack(content[position:end]))
            )
            position = end
        end = position + writers * _WRITER.size
        table._writers = dict(_WRITER.iter_unpack(content[position:end]))
        return table

    @classmethod
    def load(cls, path: Path) -> ProducerTable:
        """The table in a snapshot file; raises Damaged or FileNotFoundError."""
        try:
            return cls.unpack(read_plain(path))
        except FileNotFoundError:
            raise
        except (Damaged, struct.error, OSError) as error:
            raise Damaged(f"a snapshot of producers is not readable: {error}", file=path) from error


def load_producers(directory: Path, partition: bytes, base: int) -> ProducerTable:
    """The table as it was at `base`: from the nearest snapshot that can be read, and the frames since then."""
    with contextlib.suppress(Damaged, FileNotFoundError):
        return ProducerTable.load(directory / f"{base:020d}.producers")
    table = ProducerTable()
    walked: list[Segment] = []
    for segment in reversed(list_segments(directory, partition)[0]):
        if segment.base > base:
            continue
        with contextlib.suppress(Damaged, FileNotFoundError):
            table = ProducerTable.load(segment.producers_path)
            walked += [segment] if segment.base < base else []
            break
        walked.append(segment)
    for segment in reversed(walked):
        with open(open_plain(segment.path), "rb") as log:
            size = os.fstat(log.fileno()).st_size
            file = FrameFile(log.fileno(), size, seed_of(partition), segment.path)
            for header in file.walk_identified(SEGMENT_HEADER_BYTES, segment.base):
                if header.next_offset > base:
                    break
                table.add_stored(header, segment.header.created_ns)
    return table


class KnownProducers:
    """The producer table of a partition up to its published end, kept between appends. The partition's lock is held."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner
        self._table: ProducerTable | None = None
        self._position = 0
        self._valid_in: tuple[bytes, int] | None = None
        """The segment, and the number of recoveries, for which the table is right."""

    def table(self) -> ProducerTable:
        """Return who has written what, up to the published end."""
        owner, state = self._owner, self._owner.state
        valid_in = (state.segment, owner.recovered)
        table = self._table
        if table is None or self._valid_in != valid_in:
            table = load_producers(owner.directory, state.partition, state.segment_base)
            self._position = SEGMENT_HEADER_BYTES
        if self._position < state.identified_position:
            path = owner.directory / f"{state.segment_base:020d}.log"
            file = FrameFile(owner.log_fd, state.position, owner.seed, path)
            now = owner.clock.now_ns()
            for header in file.walk_identified(self._position, state.segment_base):
                table.add_stored(header, now)
        self._table, self._position, self._valid_in = table, state.position, valid_in
        return table

    def begin(self, table: ProducerTable) -> None:
        """Take a table over that is right at the beginning of the growing segment."""
        self._table, self._position = table, SEGMENT_HEADER_BYTES
        self._valid_in = (self._owner.state.segment, self._owner.recovered)

    def follow(self, before: State, after: State) -> None:
        """Take note that the appends between two states are in the table."""
        if self._position == before.position:
            self._position = after.position

    def forget(self) -> None:
        """Load the table anew when it is needed: an append that is in it was taken back."""
        self._table = None
