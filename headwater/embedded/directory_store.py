"""A store in a directory: each topic a directory in it, beside those of the groups and of the transactions."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from headwater.core.config import ConsumerConfig, PartitionConfig
from headwater.core.errors import HeadwaterError, OpenFailed, StoreInUse, UnknownTopic
from headwater.core.names import GROUPS
from headwater.core.options import GIB, HOUR, MIB
from headwater.core.presets import DEFAULT, Preset
from headwater.core.schema import Schema
from headwater.embedded.appender import PartitionAppender
from headwater.embedded.cleaner import EmbeddedCleaner
from headwater.embedded.directory_catalog import DirectoryCatalog
from headwater.embedded.directory_group import OFFSETS_FILE, DirectoryGroup
from headwater.embedded.directory_ledger import DirectoryLedger
from headwater.embedded.fetcher import PartitionFetcher
from headwater.embedded.groups import OpenGroups
from headwater.embedded.offsets import OffsetTable
from headwater.embedded.transactions import LedgerCoordinator
from headwater.log import DirectoryPartition
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.elapsed import Elapsed
from headwater.log.files.disk import REAL_DISK, Disk, refuse_network_file_system
from headwater.log.files.lock import PartitionLock
from headwater.log.files.refusals import opening
from headwater.streams.catalog import TOPIC_FILE, TopicInfo, partition_uuid
from headwater.streams.configuring import partition_config
from headwater.streams.group import Commit
from headwater.streams.store import Store
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
"""The configuration of stage logs, whatever their topics say: small segments are given back soon."""


class DirectoryBackend:
    """Topics, groups and transactions in a directory, used by any number of processes at once."""

    def __init__(
        self, path: Path, disk: Disk, clock: Clock, exclusive: bool, open_group: Callable[[str], DirectoryGroup]
    ) -> None:
        self.path = path
        self.clock = clock
        self._disk = disk
        self._exclusive = exclusive
        self.always_repairs = False
        """True if partitions are replicas: others have what recovery cuts, so it need not be refused."""
        try:
            disk.make_directory(path)
            refuse_network_file_system(path)
            self._lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OpenFailed(path, error) from error
        try:
            fcntl.flock(self._lock_fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_fd)
            why = "others have it open" if exclusive else "a broker serves it: connect to the broker"
            raise StoreInUse(f"{path} cannot be opened: {why}") from None
        self.catalog = DirectoryCatalog(path, disk)
        self.elapsed = Elapsed(clock, path, disk)
        self.groups = OpenGroups(open_group)
        if not self.elapsed.kept:
            with suppress(OSError):  # then the first steward keeps it: until then ages begin with each opening
                self.elapsed.keep()
        self.catalog.sweep_topics()

    def __str__(self) -> str:
        return str(self.path)

    def transactions(self, store: Store) -> LedgerCoordinator:
        return LedgerCoordinator(store, self.groups.get, DirectoryLedger(self.path / TRANSACTIONS, self._disk))

    # Partitions.

    def holds_partition(self, info: TopicInfo, number: int) -> bool:
        path = self.catalog.path(info.name) / str(number)
        with opening(path):
            return path.exists()

    def open_partition(self, info: TopicInfo, number: int) -> DirectoryPartition:
        partition = self._open_log(info, str(number), partition_config(info.config), partition_uuid(info.uuid, number))
        if info.config.sync != "always" or partition.recovery_reports:
            self._clamp_positions(info, number, partition)
        return partition

    def open_stage_log(self, info: TopicInfo, number: int) -> DirectoryPartition:
        """Open the stage log of a partition, in which brokers of a cluster keep what is not decided."""
        config = replace(partition_config(info.config), **_STAGES)
        uuid = partition_uuid(stage_uuid(info.uuid), number)
        return self._open_log(info, f"{number}{STAGE_SUFFIX}", config, uuid)

    def _open_log(self, info: TopicInfo, name: str, config: PartitionConfig, uuid: bytes) -> DirectoryPartition:
        return DirectoryPartition(
            self.catalog.make_log_directory(info, name),
            config,
            schemas=self.catalog.schemas(info),
            uuid=uuid,
            disk=self._disk,
            clock=self.clock,
            elapsed=self.elapsed,
            exclusive=self._exclusive,
            create=False,
            always_repair=self.always_repairs,
        )

    def _clamp_positions(self, info: TopicInfo, number: int, partition: DirectoryPartition) -> None:
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
                self.groups.get(name).clamp({TopicPartition(info.name, number): Commit(key, end)})

    # Groups.

    def coordinator(self, name: str) -> DirectoryGroup:
        return self.groups.get(name)

    def has_group(self, name: str) -> bool:
        return name in self.groups or name in self.group_names()

    def group_names(self) -> list[str]:
        opened = self.groups.names()
        try:
            with opening(self.path / GROUPS):
                if (self.path / GROUPS / TOPIC_FILE).exists():
                    return []  # this is a broker's of a cluster, which keeps its groups in a topic of this name
                names = sorted(os.listdir(self.path / GROUPS))
        except FileNotFoundError:
            names = []
        self.groups.forget(set(opened).difference(names))
        return names

    # Producing, consuming and cleaning.

    def new_fetcher(self, config: ConsumerConfig, group: str | None) -> PartitionFetcher:  # noqa: ARG002
        if group is None:
            return PartitionFetcher(None)
        coordinator = self.groups.get(group)
        return PartitionFetcher(coordinator, [coordinator.generation_file])

    def new_appender(self) -> PartitionAppender:
        return PartitionAppender()

    def new_cleaner(self, store: Store) -> EmbeddedCleaner:
        return EmbeddedCleaner(store, self.groups.get, self.clock, self.stewarding)

    @contextmanager
    def stewarding(self) -> Iterator[None]:
        with opening(self.path):
            lock = PartitionLock(self.path / STEWARD_LOCK_FILE)
        try:
            lock.acquire(0)
            yield
        finally:
            lock.close()

    def statistics(self) -> None:
        """Leave it to the store."""

    def close(self) -> None:
        try:
            self.groups.close()
        finally:
            os.close(self._lock_fd)


class DirectoryStore(Store):
    """Topics in a directory, with what brokers of a cluster need of it besides."""

    group_kind: Callable[[Path, str, Disk, Clock], DirectoryGroup] = DirectoryGroup
    """Opens a group. A broker has a kind of its own: it hears from members that live."""

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
        self._files = DirectoryBackend(
            self.path,
            disk,
            clock,
            exclusive,
            lambda name: self.group_kind(self.path / GROUPS / name, name, disk, clock),
        )
        super().__init__(self._files, defaults)
        try:
            self.roll_forward()
        except (HeadwaterError, OSError) as error:
            _log.warning("a transaction is decided and cannot be carried out yet: %s", error)

    def reopen_groups(self) -> None:
        """Close the groups: from now on they are opened by the present `group_kind`."""
        self._files.groups.close()

    # For brokers of a cluster.

    def always_repair(self) -> None:
        """Repair the ends of partitions whatever their topics say, from the next one that is opened on."""
        self._files.always_repairs = True

    def adopt_topic(self, info: TopicInfo, schemas: Sequence[Schema]) -> None:
        """Have a topic as it is described elsewhere, with the same uuid: make it, or change the one that is here.

        One of the same name and another uuid was deleted there, and goes. Replicas are the brokers' there: here is one.
        """
        self._check_open()
        info = replace(info, replication=None, min_insync=None)
        catalog = self._files.catalog
        try:
            known = catalog.get(info.name)
            if known.uuid != info.uuid:
                self.delete_topic(info.name)
                raise UnknownTopic(info.name, str(self))
        except UnknownTopic:
            catalog.create(info, schemas[0])
            known = replace(info, schemas=())
        if known != info:
            for schema in schemas:
                catalog.schemas(info).put(schema)
            catalog.change(info.name, lambda _: info)

    def drop_partition(self, info: TopicInfo, number: int) -> None:
        """Remove one partition's records from here, because others keep them. Holders of it get PartitionDeleted."""
        self._check_open()
        with self._mutex:
            # The partition's own log is the last: as long as it is here, there is something to remove.
            self._files.catalog.drop(info.name, [f"{number}{STAGE_SUFFIX}", str(number)], info.uuid)
            for topic in (stage_uuid(info.uuid), info.uuid):
                known = self._partitions.pop((topic, number), None)
                if known is not None:
                    known[1].close()

    def stage_partition(self, info: TopicInfo, number: int) -> DirectoryPartition:
        """Return the stage log of a partition of a topic, opened when it is first asked for."""
        key = (stage_uuid(info.uuid), number)
        with self._mutex:
            self._check_open()
            known = self._partitions.get(key)
            if known is None:
                known = self._partitions[key] = (info.config, self._files.open_stage_log(info, number))
        assert isinstance(known[1], DirectoryPartition)
        return known[1]

    def delete_topic(self, name: str) -> None:
        stages = stage_uuid(self.describe_topic(name).uuid)
        super().delete_topic(name)
        self._close_partitions(stages)


def stage_uuid(topic: bytes) -> bytes:
    """Return what stands for a topic's uuid in the identities of its stage logs."""
    return blake2b(topic, digest_size=16, person=b"headwater stage").digest()
