"""The ledger: where the frames of transactions wait, and which transactions are decided.

A transaction is one file. Frames go into it as they are produced; a description of all that is to be done goes behind
them; the file is synced; and one rename decides. From then on it is done by whoever comes across it, as often as it
takes: frames are known by their writer and its sequence, which partitions remember for ever, so nothing is done twice.

Writers are few. A transaction that names none borrows a slot, which nobody else has meanwhile, so the numbers of a slot
reach every partition in their order. The slots of dead processes are used again.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Final
from weakref import WeakSet

import pyarrow as pa

from headwater.errors import Damaged, PartitionForked, StoreClosed
from headwater.log import Frame, StoredFrame
from headwater.log.disk import TEMPORARY, Disk, read_plain
from headwater.log.encode import signed
from headwater.log.entropy import random_bytes
from headwater.log.frame import FrameHeader, SchemaOf, parse_header, verify_body
from headwater.store.decision import Decision, Output
from headwater.store.stage import SEED, FileStage, MemoryStage, Stage, writing
from headwater.store.writer import Writer

_log = logging.getLogger(__name__)
_STAGE: Final = ".stage"
_COMMITTED: Final = ".committed"
_WRITERS: Final = "writers"
_RESERVED_AT_ONCE: Final = 1000
"""How many sequences a slot sets aside with one sync. Numbers that are not used do no harm."""


@dataclass(slots=True)
class Slot:
    """A writer that one transaction at a time may borrow, and its next sequence."""

    writer: bytes
    next: int
    reserved: int
    number: int = 0
    lock_fd: int = -1


class Ledger(ABC):
    """What kinds of stores keep transactions in. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[Slot] = []

    def borrow(self) -> Slot:
        """A slot that nobody else has, with a sequence that nobody has used."""
        self._check_open()
        with self._mutex:
            slot = self._idle.pop() if self._idle else self._find_slot()
        if slot.next >= slot.reserved:
            try:
                self._reserve(slot)
            except BaseException:
                with self._mutex:
                    self._idle.append(slot)
                raise
        return slot

    def give_back(self, slot: Slot) -> None:
        """The slot's sequence was used, or will never be."""
        slot.next += 1
        with self._mutex:
            self._idle.append(slot)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise when the ledger cannot be used any more."""

    @abstractmethod
    def _find_slot(self) -> Slot: ...

    @abstractmethod
    def _reserve(self, slot: Slot) -> None:
        """Make sure that no one uses the slot's next sequences, not even after a crash."""

    @abstractmethod
    def writing_as(self, writer: bytes) -> AbstractContextManager[None]:
        """The right to decide for a named writer, for the length of a block."""

    @abstractmethod
    def writer(self, writer: bytes) -> Writer:
        """A named writer, as far as its transactions are decided and done."""

    @abstractmethod
    def keep(self, writer: Writer) -> None:
        """Keep what has changed of a named writer, durably."""

    @abstractmethod
    def changing_writers(self) -> AbstractContextManager[None]:
        """The right to read a named writer and keep it changed, for the length of a block."""

    def used(self, writer: bytes) -> int:
        """The last sequence of a named writer that is decided and done; -1 for none."""
        return self.writer(writer).used

    def use(self, writer: bytes, sequence: int) -> None:
        """Keep the last sequence of a named writer. Whoever comes late, with an older one, must not set it back."""
        with self.changing_writers():
            known = self.writer(writer)
            if known.used < sequence:
                self.keep(replace(known, used=sequence))

    def claim(self, writer: bytes, name: str, owner: str | None, number: int, *, takeover: bool) -> int | None:
        """The sequence for an owner's number; None when it was done before. Raises WriterTaken."""
        with self.changing_writers():
            known = self.writer(writer)
            claimed = known.claimed(name, owner, number, takeover=takeover)
            if claimed != known:
                self.keep(claimed)
        return claimed.sequence(owner, number)

    @abstractmethod
    def stage(self) -> Stage:
        """A new stage, empty."""

    @abstractmethod
    def decide(self, stage: Stage, decision: Decision) -> None:
        """Decide, in one step: from now on it will be done, whatever happens.

        Raises FileNotFoundError when a stage that it needs is gone.
        """

    @abstractmethod
    def decided(self, writer: bytes | None = None) -> list[Decision]:
        """Everything that is decided and not done, or what one writer has decided. What is damaged is left out."""

    def is_damaged(self, decision: Decision) -> bool:  # noqa: ARG002 - what is in memory is not
        """Whether a decision was found damaged, so that it cannot be carried out."""
        return False

    @abstractmethod
    def make_durable(self) -> None:
        """Return when what was decided is on the device: a power loss must not take back what is half done."""

    @abstractmethod
    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:
        """The frames for one partition, verified; None when another process has finished the transaction."""

    @abstractmethod
    def finish(self, decision: Decision) -> None:
        """Everything is done: forget the transaction, but not the sequence of a named writer."""

    @abstractmethod
    def drop(self, files: Collection[str]) -> None:
        """Remove stages that were left to a transaction, unless it is decided; twice does no harm."""

    @abstractmethod
    def sweep(self, before: float, *, dry_run: bool = False) -> int:
        """Drop the stages that nobody has written to since that time (seconds since 1970); how many."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


def named_writer(name: str) -> bytes:
    """The identity of a writer that has a name: the same wherever and whenever it writes."""
    return blake2b(name.encode(), digest_size=16, person=b"headwater writer").digest()


class MemoryLedger(Ledger):
    """Transactions in this process's memory."""

    def __init__(self) -> None:
        super().__init__()
        self._decided: dict[str, tuple[Decision, list[Frame]]] = {}
        self._writers: dict[bytes, Writer] = {}
        self._left: dict[str, list[Frame]] = {}
        self._turn = threading.RLock()

    def _check_open(self) -> None:
        """It is open for as long as someone has it."""

    def _find_slot(self) -> Slot:
        return Slot(random_bytes(16), 0, 1 << 62)

    def _reserve(self, slot: Slot) -> None:
        """Nobody else can use them."""

    @contextmanager
    def writing_as(self, writer: bytes) -> Iterator[None]:  # noqa: ARG002 - one turn for all of them
        with self._turn:
            yield

    def writer(self, writer: bytes) -> Writer:
        return self._writers.get(writer, Writer(writer))

    def keep(self, writer: Writer) -> None:
        self._writers[writer.id] = writer

    @contextmanager
    def changing_writers(self) -> Iterator[None]:
        with self._turn:
            yield

    def stage(self) -> Stage:
        return MemoryStage(self._left)

    def decide(self, stage: Stage, decision: Decision) -> None:
        assert isinstance(stage, MemoryStage)
        if not decision.files <= self._left.keys():
            raise FileNotFoundError
        self._decided[decision.name] = (decision, stage.frames)
        stage.discard()

    def make_durable(self) -> None:
        """Memory is all there is."""

    def decided(self, writer: bytes | None = None) -> list[Decision]:
        return [one for one, _ in list(self._decided.values()) if writer is None or one.writer == writer]

    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:  # noqa: ARG002
        found = self._decided.get(decision.name)
        if found is None:
            return None
        frames = [self._left[file][at] if file else found[1][at] for file, at, _ in output.extents]
        return [_signed(frame, decision) for frame in frames]

    def finish(self, decision: Decision) -> None:
        if decision.named:
            self.use(decision.writer, decision.sequence)
        self._decided.pop(decision.name, None)
        for file in decision.files:
            self._left.pop(file, None)

    def drop(self, files: Collection[str]) -> None:
        needed = {file for decision in self.decided() for file in decision.files}
        for file in set(files) - needed:
            self._left.pop(file, None)

    def sweep(self, before: float, *, dry_run: bool = False) -> int:  # noqa: ARG002 - no stage outlives its owner
        return 0

    def close(self) -> None:
        """Nothing to give back."""


class DirectoryLedger(Ledger):
    """Transactions in a directory, shared by any number of processes."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        super().__init__()
        self._directory = directory
        self._disk = disk
        self._slots: list[Slot] = []
        self._damaged: set[Path] = set()
        self._pid = os.getpid()
        self._closed = False
        _open_ledgers.add(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store")
        if self._pid != os.getpid():
            raise PartitionForked(self._directory)
        if not (self._directory / _WRITERS).is_dir():
            with writing(self._directory):
                self._disk.make_directory(self._directory / _WRITERS)

    # Writers.

    def _find_slot(self) -> Slot:
        for number in count():
            path = self._directory / _WRITERS / f"slot-{number}"
            fd = self._lock_file(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = self._read_writer(path) or Writer(random_bytes(16))
            except (BlockingIOError, Damaged):
                os.close(fd)
                continue
            slot = Slot(known.id, known.used + 1, known.used + 1, number, fd)
            self._slots.append(slot)
            return slot
        raise AssertionError("numbers do not end")

    def _lock_file(self, path: Path) -> int:
        with writing(path):
            return os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _read_writer(self, path: Path) -> Writer | None:
        """What is known of a writer; None when it has not written yet."""
        try:
            return Writer.unpack(read_plain(path), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Damaged(f"not a writer of transactions: {error}", file=path) from error

    def _keep_writer(self, path: Path, writer: Writer) -> None:
        with writing(path):
            self._disk.replace(path, writer.pack())
            self._disk.sync_directory(path.parent)

    def _reserve(self, slot: Slot) -> None:
        reserved = slot.next + _RESERVED_AT_ONCE
        self._keep_writer(self._directory / _WRITERS / f"slot-{slot.number}", Writer(slot.writer, reserved - 1))
        slot.reserved = reserved

    @contextmanager
    def writing_as(self, writer: bytes) -> Iterator[None]:
        self._check_open()
        with self._locked(self._directory / _WRITERS / writer.hex()):
            yield

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        fd = self._lock_file(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def writer(self, writer: bytes) -> Writer:
        return self._read_writer(self._directory / _WRITERS / writer.hex()) or Writer(writer)

    def keep(self, writer: Writer) -> None:
        self._keep_writer(self._directory / _WRITERS / writer.id.hex(), writer)

    def changing_writers(self) -> AbstractContextManager[None]:
        return self._locked(self._directory / _WRITERS / "all")

    # Stages and decisions.

    def stage(self) -> Stage:
        self._check_open()
        return FileStage(self._directory / f"{random_bytes(16).hex()}{_STAGE}", self._disk)

    def decide(self, stage: Stage, decision: Decision) -> None:
        assert isinstance(stage, FileStage)
        with self._others_stages() if decision.files else nullcontext():
            for file in decision.files:
                os.stat(self._directory / file)
            if decision.files:
                self.make_durable()  # their names: a power loss must not leave the decision without them
            with writing(stage.path):
                self._disk.rename(stage.path, self._path(decision))

    def _others_stages(self) -> AbstractContextManager[None]:
        """The right to decide over stages of other processes, or to remove them: never both at a time."""
        return self._locked(self._directory / _WRITERS / "stages")

    def make_durable(self) -> None:
        with writing(self._directory):
            self._disk.sync_directory(self._directory)

    def _path(self, decision: Decision) -> Path:
        return self._directory / f"{decision.name}{_COMMITTED}"

    def _files(self, suffix: str) -> list[Path]:
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            return [Path(entry.path) for entry in entries if entry.name.endswith(suffix)]
        return []

    def decided(self, writer: bytes | None = None) -> list[Decision]:
        found = []
        for path in self._files(_COMMITTED):
            if path in self._damaged or not path.name.startswith(writer.hex() if writer is not None else ""):
                continue
            try:
                found.append(Decision.unpack(memoryview(_mapped(path)), path))
            except FileNotFoundError:
                continue  # done by another process
            except Damaged as error:
                self._note_damage(path, error)
        return found

    def _note_damage(self, path: Path, error: Damaged) -> None:
        self._damaged.add(path)
        _log.error("a transaction was decided and is damaged, so that nothing of it can be done: %s", error)

    def is_damaged(self, decision: Decision) -> bool:
        return self._path(decision) in self._damaged

    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:
        path = self._path(decision)
        try:
            found = list(self._verified(path, output))
        except FileNotFoundError as error:
            if not path.exists():
                return None
            damage = Damaged(f"a stage of a decided transaction is missing: {error.filename}", file=path)
            self._note_damage(path, damage)
            raise damage from None
        except Damaged as error:
            self._note_damage(path, error)
            raise
        frames = [StoredFrame(header, file, schema_of(header.schema_id), at).unstamped() for header, file, at in found]
        return [_signed(frame, decision) for frame in frames]

    def _verified(self, path: Path, output: Output) -> Iterator[tuple[FrameHeader, pa.Buffer, int]]:
        files = {file: _mapped(self._directory / (file or path.name)) for file, _, _ in output.extents}
        for file, position, length in output.extents:
            view = memoryview(files[file])[position : position + length]
            try:
                header = parse_header(view, 0, SEED)
                verify_body(view, 0, header)
            except Damaged as error:
                raise error.at(file=path, position=position) from None
            yield header, files[file], position

    def finish(self, decision: Decision) -> None:
        if decision.named:
            self.use(decision.writer, decision.sequence)
        with writing(self._directory):
            self._disk.unlink(self._path(decision))
            for file in decision.files:
                self._disk.unlink(self._directory / file)

    def drop(self, files: Collection[str]) -> None:
        if not files:
            return
        with self._others_stages():
            for file in set(files) - self._needed():
                self._disk.unlink(self._directory / file)

    def _needed(self) -> set[str]:
        """The stages that decisions speak of."""
        return {file for decision in self.decided() for file in decision.files}

    def sweep(self, before: float, *, dry_run: bool = False) -> int:
        old = []
        for path in [*self._files(_STAGE), *(self._directory / _WRITERS).glob(f"*{TEMPORARY}")]:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    old.append(path)
        if not old:
            return 0
        with self._others_stages():
            needed = self._needed()
            swept = [path for path in old if path.name not in needed]
            for path in swept if not dry_run else ():
                self._disk.unlink(path)
        return sum(path.suffix == _STAGE for path in swept)

    def give_back(self, slot: Slot) -> None:
        super().give_back(slot)
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            # One that a transaction has is kept until that ends: another process must not get ahead of its number.
            for slot in self._idle:
                os.close(slot.lock_fd)
                self._slots.remove(slot)
            self._idle.clear()

    def forget_slots(self) -> None:
        """Close the locks of all slots, without a lock: for a forked child, which has copies of them."""
        for slot in self._slots:
            os.close(slot.lock_fd)
        self._slots.clear()
        self._idle.clear()


def _signed(frame: Frame, decision: Decision) -> Frame:
    """A frame that was staged before its transaction was known gets the identity of that."""
    return frame if frame.identity is not None else signed(frame, decision.identity)


def _mapped(path: Path) -> pa.Buffer:
    """A file's content. Raises Damaged for an empty one; what else cannot be read now may be sound."""
    with open(path, "rb") as file:
        try:
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        except ValueError:
            raise Damaged("an empty file", file=path) from None


_open_ledgers: WeakSet[DirectoryLedger] = WeakSet()


def _close_after_fork() -> None:
    """A child has its parent's locks as well: kept open, they would outlive the parent, and its slots with them."""
    for ledger in list(_open_ledgers):
        ledger.forget_slots()
    _open_ledgers.clear()


os.register_at_fork(after_in_child=_close_after_fork)
