"""A ledger in a directory: one file for each transaction, and one for each writer."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Final
from weakref import WeakSet

import pyarrow as pa

from headwater.core.errors import Damaged, PartitionForked, StoreClosed
from headwater.embedded.decision import Decision
from headwater.embedded.ledger import Ledger, Slot, signed_for
from headwater.embedded.stage import SEED, FileStage, Stage
from headwater.log import Frame, StoredFrame
from headwater.log.elapsed import IsOld
from headwater.log.entropy import random_bytes
from headwater.log.files.disk import TEMPORARY, Disk, open_plain, read_plain
from headwater.log.files.mapping import map_file
from headwater.log.files.open_files import open_file
from headwater.log.files.refusals import opening, writing
from headwater.log.format.frame import FrameHeader, SchemaOf
from headwater.log.format.verify import verify_body, verify_stamp
from headwater.streams.named_writer import NamedWriter
from headwater.streams.staging import Output

_log = logging.getLogger(__name__)
_STAGE: Final = ".stage"
_COMMITTED: Final = ".committed"
_ANSWERED: Final = "answered"
"""A directory of its own: there may be many of them, and the decided ones are looked through all the time."""
_WRITERS: Final = "writers"
_RESERVED_AT_ONCE: Final = 1000
"""A slot sets so many sequences aside with one sync. Numbers that are not used do no harm."""


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
        with writing(self._directory):
            if not (self._directory / _WRITERS).is_dir():
                self._disk.make_directory(self._directory / _WRITERS)

    # Writers.

    def _find_slot(self) -> Slot:
        for number in count():
            path = self._directory / _WRITERS / f"slot-{number}"
            fd = self._lock_file(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = self._read_writer(path) or NamedWriter(random_bytes(16))
            except (BlockingIOError, Damaged):
                os.close(fd)
                continue
            slot = Slot(known.id, known.used + 1, known.used + 1, number, fd)
            self._slots.append(slot)
            return slot
        raise AssertionError("numbers do not end")

    def _lock_file(self, path: Path) -> int:
        with writing(path):
            return open_file(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)

    def _read_writer(self, path: Path) -> NamedWriter | None:
        """Return a writer as its file describes it; None when it has not written yet."""
        try:
            return NamedWriter.unpack(read_plain(path), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Damaged(f"not a writer of transactions: {error}", file=path) from error

    def _keep_writer(self, path: Path, writer: NamedWriter) -> None:
        with writing(path):
            self._disk.replace(path, writer.pack())
            self._disk.sync_directory(path.parent)

    def _reserve(self, slot: Slot) -> None:
        reserved = slot.next + _RESERVED_AT_ONCE
        self._keep_writer(self._directory / _WRITERS / f"slot-{slot.number}", NamedWriter(slot.writer, reserved - 1))
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

    def writer(self, writer: bytes) -> NamedWriter:
        return self._read_writer(self._directory / _WRITERS / writer.hex()) or NamedWriter(writer)

    def keep(self, writer: NamedWriter) -> None:
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
            with opening(self._directory):
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
        with suppress(FileNotFoundError), opening(self._directory), os.scandir(self._directory) as entries:
            return [Path(entry.path) for entry in entries if entry.name.endswith(suffix)]
        return []

    def decided(self, writer: bytes | None = None) -> list[Decision]:
        decisions = []
        for path in self._files(_COMMITTED):
            if path in self._damaged or not path.name.startswith(writer.hex() if writer is not None else ""):
                continue
            try:
                decisions.append(Decision.unpack(memoryview(_mapped(path)), path))
            except FileNotFoundError:
                continue  # done by another process
            except Damaged as error:
                self._note_damage(path, error)
        return decisions

    def _note_damage(self, path: Path, error: Damaged) -> None:
        self._damaged.add(path)
        _log.error("a transaction was decided and is damaged, so that nothing of it can be done: %s", error)

    def is_damaged(self, decision: Decision) -> bool:
        return self._path(decision) in self._damaged

    def frames(self, decision: Decision, output: Output, schema_of: SchemaOf) -> list[Frame] | None:
        path = self._path(decision)
        try:
            staged = list(self._verified(path, output))
        except FileNotFoundError as error:
            if not path.exists():
                return None
            damage = Damaged(f"a stage of a decided transaction is missing: {error.filename}", file=path)
            self._note_damage(path, damage)
            raise damage from None
        except Damaged as error:
            self._note_damage(path, error)
            raise
        frames = [StoredFrame(header, file, schema_of(header.schema_id), at).unstamped() for header, file, at in staged]
        return [signed_for(frame, decision) for frame in frames]

    def _verified(self, path: Path, output: Output) -> Iterator[tuple[FrameHeader, pa.Buffer, int]]:
        names = {file for file, _, _ in output.extents}
        files = {file: _mapped(self._directory / (file or path.name)) for file in names}
        for file, position, length in output.extents:
            view = memoryview(files[file])[position : position + length]
            try:
                header = verify_stamp(view, 0, SEED)
                verify_body(view, 0, header)
            except Damaged as error:
                raise error.at(file=path, position=position) from None
            yield header, files[file], position

    def finish(self, decision: Decision) -> None:
        if decision.named:
            self.use(decision.writer, decision.sequence)
        with writing(self._directory):
            if decision.request:
                self._disk.make_directory(self._directory / _ANSWERED)
                with suppress(FileNotFoundError):  # another thread was faster
                    self._disk.rename(self._path(decision), self._directory / _ANSWERED / decision.request)
            else:
                self._disk.unlink(self._path(decision))
            for file in decision.files:
                self._disk.unlink(self._directory / file)

    def answered(self, request: str) -> bool:
        with opening(self._directory):
            return (self._directory / _ANSWERED / request).exists()

    def drop(self, files: Collection[str]) -> None:
        if not files:
            return
        with self._others_stages(), writing(self._directory):
            for file in set(files) - self._needed():
                self._disk.unlink(self._directory / file)

    def _needed(self) -> set[str]:
        """The stages that decisions speak of."""
        return {file for decision in self.decided() for file in decision.files}

    def sweep(self, is_old: IsOld, *, dry_run: bool = False) -> int:
        old = []
        with opening(self._directory):
            answered = (self._directory / _ANSWERED).glob("*")
            for path in [*self._files(_STAGE), *answered, *(self._directory / _WRITERS).glob(f"*{TEMPORARY}")]:
                with suppress(FileNotFoundError):
                    if is_old(path.stat().st_mtime_ns):
                        old.append(path)
        if not old:
            return 0
        with self._others_stages(), writing(self._directory):
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


def _mapped(path: Path) -> pa.Buffer:
    """A file's content. Raises Damaged for an empty one; what else cannot be read now may be sound."""
    with opening(path), open(open_plain(path), "rb") as file:
        length = os.fstat(file.fileno()).st_size
        if not length:
            raise Damaged("an empty file", file=path)
        return map_file(file.fileno(), length)


_open_ledgers: WeakSet[DirectoryLedger] = WeakSet()


def _close_after_fork() -> None:
    """A child has its parent's locks as well: kept open, they would outlive the parent, and its slots with them."""
    for ledger in list(_open_ledgers):
        ledger.forget_slots()
    _open_ledgers.clear()


os.register_at_fork(after_in_child=_close_after_fork)
