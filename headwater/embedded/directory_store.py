"""A store in a directory: each topic a directory in it, beside those of the groups and of the transactions."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from headwater.core.config import ConsumerConfig
from headwater.core.errors import HeadwaterError, OpenFailed, StoreInUse, UnknownTopic
from headwater.core.names import GROUPS
from headwater.core.options import GIB, HOUR, MIB
from headwater.core.presets import DEFAULT, Preset
from headwater.core.schema import Schema
from headwater.embedded.appender import PartitionAppender
from headwater.embedded.cleaning import EmbeddedCleaner
from headwater.embedded.directory_group import OFFSETS_FILE, DirectoryGroup
from headwater.embedded.directory_ledger import DirectoryLedger
from headwater.embedded.fetcher import PartitionFetcher
from headwater.embedded.offsets import OffsetTable
from headwater.embedded.transactions import LedgerCoordinator
from headwater.log import DirectoryPartition, Partition, PartitionStatistics, SchemaDirectory, Schemas
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.elapsed import Elapsed
from headwater.log.files.disk import REAL_DISK, Disk, refuse_network_file_system
from headwater.log.files.lock import PartitionLock
from headwater.log.files.refusals import opening
from headwater.streams.catalog import TOPIC_FILE, DirectoryCatalog, TopicInfo, partition_uuid
from headwater.streams.group import Commit
from headwater.streams.ports import Appender, Cleaner, Fetcher
from headwater.streams.store import Store, partition_config
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
LOCK_FILE: Final = "store.lock"
STEWARD_LOCK_FILE: Final = "steward.lock"
TRANSACTIONS: Final = "__transactions"
STAGE_SUFFIX: Final = ".stage"
_STAGES: Final[dict[str, Any]] = {
    "sync": "always",
    "segment_bytes": 64 * MIB,
    "segment_age": HOUR,
    "max_frame_bytes": GIB,
    "retention_age": None,
    "retention_bytes": None,
}
"""How stage logs are kept, whatever their topics say: small segments are given back soon."""


_NOTHING: Final[dict[str, Any]] = {field.name: 0 for field in fields(PartitionStatistics)} | {"poisoned": False}


class DirectoryStore(Store):
    """Topics in a directory, used by any number of processes at once."""

    group_kind: Callable[[Path, str, Disk, Clock], DirectoryGroup] = DirectoryGroup
    """How groups are opened. A broker has a kind of its own: it hears from members that live."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        disk: Disk = REAL_DISK,
        clock: Clock = REAL_CLOCK,
        exclusive: bool = False,
        defaults: Preset = DEFAULT,
    ) -> None:
        self.path = Path(path)
        self._disk = disk
        self._exclusive = exclusive
        try:
            disk.make_directory(self.path)
            refuse_network_file_system(self.path)
            self._lock_fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OpenFailed(self.path, error) from error
        try:
            fcntl.flock(self._lock_fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_fd)
            who = "others have it open" if exclusive else "a broker serves it: connect to the broker"
            raise StoreInUse(f"{self.path} cannot be opened: {who}") from None
        catalog = DirectoryCatalog(self.path, disk)
        ledger = DirectoryLedger(self.path / TRANSACTIONS, disk)
        elapsed = Elapsed(clock, self.path, disk)
        super().__init__(
            catalog, lambda store: LedgerCoordinator(store, self._embedded_group, ledger), clock, defaults, elapsed
        )
        self._directory = catalog
        self._known: dict[bytes, Schemas] = {}
        if not elapsed.kept:
            with suppress(OSError):  # then the first steward keeps it: until then ages begin with each opening
                elapsed.keep()
        catalog.sweep()
        try:
            self.roll_forward()
        except (HeadwaterError, OSError) as error:
            _log.warning("a transaction is decided and cannot be carried out yet: %s", error)

    def __str__(self) -> str:
        return str(self.path)

    def _create(self, info: TopicInfo, schema: Schema) -> None:
        self._directory.create(info, lambda path: SchemaDirectory(path / "schemas", self._disk).put(schema))

    def adopt_topic(self, info: TopicInfo, schemas: Sequence[Schema]) -> None:
        """Have a topic as it is described elsewhere, with the same uuid: make it, or change the one that is here.

        One of the same name and another uuid was deleted there, and goes.
        """
        self._check_open()
        try:
            known = self._directory.get(info.name)
            if known.uuid != info.uuid:
                self.delete_topic(info.name)
                raise UnknownTopic(info.name, str(self))
        except UnknownTopic:
            self._create(info, schemas[0])
            known = replace(info, schemas=())
        if known != info:
            for schema in schemas:
                self._schemas(info).put(schema)
            self._directory.change(info.name, lambda _: info)

    def holds_partition(self, info: TopicInfo, number: int) -> bool:
        """Whether there are files of a partition here: one that was never used has none."""
        path = self._directory.path(info.name) / str(number)
        with opening(path):
            return path.exists()

    def partition_statistics(self, info: TopicInfo, number: int) -> PartitionStatistics:
        """One partition of a topic in numbers. One that was never used is not made by this, which takes some syncs."""
        if not self.holds_partition(info, number):
            return PartitionStatistics(**_NOTHING)
        return super().partition_statistics(info, number)

    def drop_partition(self, info: TopicInfo, number: int) -> None:
        """Remove one partition's records from here, because others keep them. Who has it open gets PartitionDeleted."""
        self._check_open()
        with self._mutex:
            # The partition's own log is the last: as long as it is here, there is something to remove.
            self._directory.drop(info.name, [f"{number}{STAGE_SUFFIX}", str(number)], info.uuid)
            for topic in (stage_uuid(info.uuid), info.uuid):
                known = self._partitions.pop((topic, number), None)
                if known is not None:
                    known[1].close()

    def _schemas(self, info: TopicInfo) -> Schemas:
        found = self._known.get(info.uuid)
        if found is None:
            path = self._directory.path(info.name) / "schemas"
            found = self._known[info.uuid] = SchemaDirectory(path, self._disk)
        return found

    def _open_partition(self, info: TopicInfo, number: int) -> Partition:
        partition = DirectoryPartition(
            self._directory.path(info.name) / str(number),
            partition_config(info.config),
            schemas=self._schemas(info),
            uuid=partition_uuid(info.uuid, number),
            disk=self._disk,
            clock=self._clock,
            elapsed=self.elapsed,
            exclusive=self._exclusive,
        )
        if info.config.sync != "always" or partition.recovery_reports:
            self._clamp_positions(info, number, partition)
        return partition

    def stage_partition(self, info: TopicInfo, number: int) -> DirectoryPartition:
        """The stage log of a partition of a topic, opened when it is first asked for; for brokers of a cluster."""
        key = (stage_uuid(info.uuid), number)
        with self._mutex:
            self._check_open()
            known = self._partitions.get(key)
            if known is None:
                config = replace(partition_config(info.config), **_STAGES)
                partition = DirectoryPartition(
                    self._directory.path(info.name) / f"{number}{STAGE_SUFFIX}",
                    config,
                    schemas=self._schemas(info),
                    uuid=partition_uuid(*key),
                    disk=self._disk,
                    clock=self._clock,
                    elapsed=self.elapsed,
                    exclusive=self._exclusive,
                )
                known = self._partitions[key] = (info.config, partition)
        assert isinstance(known[1], DirectoryPartition)
        return known[1]

    def delete_topic(self, name: str) -> None:
        stages = stage_uuid(self.describe_topic(name).uuid)
        super().delete_topic(name)
        with self._mutex:
            for key in [key for key in self._partitions if key[0] == stages]:
                self._partitions.pop(key)[1].close()

    def _clamp_positions(self, info: TopicInfo, number: int, partition: Partition) -> None:
        """Bring groups back that are beyond the end, because a power loss has taken records that were not synced.

        Every process does so before its own first append, so no new record comes in the place of a lost one while a
        group would still pass over it.
        """
        key = (info.uuid, number)
        for name in self.group_names():
            try:
                with opening(self.path / GROUPS / name):
                    position = OffsetTable(self.path / GROUPS / name / OFFSETS_FILE, self._disk).read(*key)
            except FileNotFoundError:
                continue  # removed since its name was read
            end = partition.bounds().end  # after the position was read, so that no member can be beyond it by right
            if position is not None and position.offset > end:
                self.coordinator(name).clamp({TopicPartition(info.name, number): Commit(key, end)})

    def _open_group(self, name: str) -> DirectoryGroup:
        return self.group_kind(self.path / GROUPS / name, name, self._disk, self._clock)

    def group_names(self) -> list[str]:
        opened = list(self._groups)
        try:
            with opening(self.path / GROUPS):
                if (self.path / GROUPS / TOPIC_FILE).exists():
                    return []  # this is a broker's of a cluster, which keeps its groups in a topic of this name
                names = sorted(os.listdir(self.path / GROUPS))
        except FileNotFoundError:
            names = []
        for name in set(opened).difference(names):
            self._groups.pop(name, None)  # nobody used it, and it was removed
        return names

    def sweep(self, *, dry_run: bool = False) -> int:
        swept = super().sweep(dry_run=dry_run)
        if not dry_run:
            self._directory.sweep_files()
        return swept

    @contextmanager
    def stewarding(self) -> Iterator[None]:
        with opening(self.path):
            lock = PartitionLock(self.path / STEWARD_LOCK_FILE)
        try:
            lock.acquire(0)
            yield
        finally:
            lock.close()

    def _new_fetcher(self, config: ConsumerConfig, group: str | None) -> Fetcher:  # noqa: ARG002
        if group is None:
            return PartitionFetcher(None)
        coordinator = self._embedded_group(group)
        return PartitionFetcher(coordinator, [coordinator.generation_file])

    def _embedded_group(self, name: str) -> DirectoryGroup:
        """Return the coordinator of a group, with all that transactions and cleaning need of it."""
        coordinator = self.coordinator(name)
        assert isinstance(coordinator, DirectoryGroup)
        return coordinator

    def _new_cleaner(self) -> Cleaner:
        return EmbeddedCleaner(self, self._embedded_group, self._clock, self.stewarding)

    def _new_appender(self) -> Appender:
        return PartitionAppender()

    def close(self) -> None:
        if not self._closed:
            try:
                super().close()
            finally:
                os.close(self._lock_fd)


def stage_uuid(topic: bytes) -> bytes:
    """Stands for a topic's uuid in the identities of its stage logs."""
    return blake2b(topic, digest_size=16, person=b"headwater stage").digest()
