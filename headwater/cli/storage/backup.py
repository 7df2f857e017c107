"""`hw backup`: copy a store, wherever it is, as far as it was not copied before, and verify the copy.

A backup is a store of its own with a manifest beside it. Its partitions are replicas: the same frames at the same
offsets, fetched from where the copy ends. So a second backup to the same place costs what is new, and one that was
interrupted goes on.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli.output import Json, done, size, wants_json, write_json
from headwater.cli.progress import progress
from headwater.cli.storage.backup_manifest import FILE, STORE, BackupManifest
from headwater.cli.target import StoreOption, complete_topic, opened
from headwater.client.partition import RemotePartition
from headwater.client.store import RemoteStore
from headwater.core.errors import Damaged, HeadwaterError, SegmentListDamaged
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, Partition, SchemaDirectory
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.files.segment_list import LIST_FILE, SegmentList
from headwater.log.format.frame import GROUP_LAST
from headwater.log.maintain.check import Check, read_state_copies
from headwater.log.recover.recovery import STATE_FILE
from headwater.log.write.producers import ProducerTable

if TYPE_CHECKING:
    from headwater.log import StoredFrame
    from headwater.streams import Store, TopicInfo

app = typer.Typer(add_completion=False)

_BATCH_BYTES: Final = 4 << 20
_ATTEMPTS: Final = 5
_AGAIN: Final = 1.0
_MOMENTARY: Final = ("lock", "state")
_OWN: Final = ("__groups", "__history", "__transactions", "__txn")
"""Topics that Headwater keeps for itself. The manifest has the positions of groups."""


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw backup /backups/events                    the whole store; again later: only new records\n"
    "  hw backup /backups/prod --store hw://broker.example:6174\n"
    "  hw backup /backups/orders --topic orders\n"
    "  hw restore /backups/events events",
)
def backup(
    destination: Annotated[
        Path,
        typer.Argument(metavar="DESTINATION", help="A new directory, or an earlier backup.", show_default=False),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; repeat it for several.",
            autocompletion=complete_topic,
        ),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Back up a store, embedded or behind a broker, while it is in use: records, schemas, configuration, positions.

    The backup holds the records that were there when it began, with the same offsets. Every frame is verified as it is
    read and once more as it is stored; then the manifest vouches for every file. The backup is itself a store: hw
    consume orders --store DESTINATION/store.
    """
    began = time.monotonic()
    if destination.exists() and any(destination.iterdir()) and not (destination / STORE).is_dir():
        raise HeadwaterError(f"{destination} is not empty, and not a backup: choose another directory")
    with opened(store) as source:
        names = topic or [name for name in source.topic_names() if name not in _OWN]
        infos = [source.describe_topic(name) for name in names]  # before anything is touched: a name may be mistyped
        manifest = BackupManifest(str(source), time.time_ns())
        destination.mkdir(parents=True, exist_ok=True)
        finished = (destination / FILE).exists()
        (destination / FILE).unlink(missing_ok=True)  # it vouches for files that change now
        with DirectoryStore(destination / STORE, exclusive=True) as target:
            copied = _copy(source, target, infos, finished=finished)
            _describe(target, manifest)
            _positions(source, manifest)
    _verify(destination, manifest)
    seconds = time.monotonic() - began
    if wants_json(as_json):
        write_json(
            {
                "backup": str(destination),
                "source": manifest.source,
                "topics": len(manifest.topics),
                "records": manifest.records,
                "copied_records": copied,
                "bytes": manifest.bytes,
                "seconds": round(seconds, 3),
            }
        )
    else:
        done(
            f"{copied:,} new records copied to {destination}; {manifest.records:,} in {len(manifest.topics)} topics, "
            f"{size(manifest.bytes)}, verified in {seconds:.1f} s"
        )


def _copy(source: Store, target: DirectoryStore, infos: list[TopicInfo], *, finished: bool) -> int:
    """Bring every topic up to date, after a backup that was finished or not; how many records were copied."""
    plans: list[tuple[TopicInfo, int, int]] = []
    copied = 0
    for info in infos:
        target.adopt_topic(info, [source.schema_by_id(info, schema_id) for schema_id in info.schemas])
        if isinstance(source, DirectoryStore) and info.config.compact:
            copied += _copy_compacted(source, target, info)
            continue
        plans += [(info, number, source.partition(info, number).bounds().end) for number in range(info.partitions)]
    # A broker on its own does not tell which delete markers are gone: there, what was compacted is refused.
    clustered = isinstance(source, RemoteStore) and source.leaders.clustered
    left = sum(max(end - target.partition(info, number).bounds().end, 0) for info, number, end in plans)
    with progress("backing up", left, "records") as advance:
        for info, number, end in plans:
            original, copy = source.partition(info, number), target.partition(info, number)
            if clustered and info.config.compact and isinstance(original, RemotePartition):
                steps = _replicate_compacted(original, copy, end, finished=finished)
            else:
                steps = _replicate(original, copy, end)
            for records in steps:
                copied += records
                advance(records)
    return copied


def _copy_compacted(source: DirectoryStore, target: DirectoryStore, info: TopicInfo) -> int:
    """Bring a topic up to date file by file, while no steward works; how many offsets were new."""
    states = [target.path / info.name / str(number) / STATE_FILE for number in range(info.partitions)]
    ends = [[state.end for state in read_state_copies(file) if state] for file in states if file.exists()]
    with source.stewarding():
        for number in range(info.partitions):
            source.partition(info, number).sync()
            _copy_files(source.path / info.name / str(number), target.path / info.name / str(number))
    return sum(bounds.end for bounds in target.topic(info.name).bounds().values()) - sum(
        max(copies, default=0) for copies in ends
    )


def _replicate_compacted(source: RemotePartition, target: Partition, end: int, *, finished: bool) -> Iterator[int]:
    """Copy a compacted partition, as `_replicate` does.

    When delete markers are gone that are not in the copy, or go while it is made, it may have what they have deleted:
    then it is made anew. So is one that was not finished: what went while it was made is not known any more.
    """
    for _ in range(_ATTEMPTS):
        until, state = source.markers()
        if until > target.bounds().end or (until and not finished):
            target.truncate(target.bounds().start)
        begun = target.bounds().end
        yield from _replicate(source, target, end, compacted_until=end)
        now_until, now_state = source.markers()
        if now_until <= begun or 0 != now_state == state:
            return
        finished = False
        time.sleep(_AGAIN)
    raise HeadwaterError(f"{source} was compacted or changed its leader during every attempt: back it up again later")


def _replicate(source: Partition, target: Partition, end: int, *, compacted_until: int = 0) -> Iterator[int]:
    """Copy the records that the target lacks, up to `end`, and tell after each step how many offsets those were.

    Before `compacted_until` the source may have removed some.
    """
    assert isinstance(target, DirectoryPartition)
    start = source.bounds().start
    have = target.bounds()
    if have.end > end:
        target.truncate(end)  # a power loss, or an operator, has taken it from the source
    if have.end < start:
        first = next(source.frames(start, end), None) if start < end else None  # it may begin before the log does
        base = start if first is None else first.header.base_offset
        if base > have.end:
            target.restart(base, ProducerTable().pack())  # retention has removed what was between
    else:
        _check_same(source, target, start)
    pending: list[StoredFrame] = []
    size_ = 0
    told = at = target.bounds().end
    for frame in source.frames(max(at, start), end) if at < end else ():
        if not pending and frame.header.base_offset < at:
            target.truncate(frame.header.base_offset)  # compaction has joined what was copied with what was not
        if frame.header.base_offset > max(at, compacted_until):
            raise HeadwaterError(
                f"{source} was compacted, so it has gaps that cannot be fetched: back up the broker's directory instead"
            )
        pending.append(frame)
        at = frame.header.next_offset
        size_ += frame.header.length
        if size_ >= _BATCH_BYTES and frame.header.group & GROUP_LAST:
            target.copy(pending, compacted_until=compacted_until)
            yield at - told
            told, pending, size_ = at, [], 0
    if pending:
        target.copy(pending, compacted_until=compacted_until)
        yield at - told
    if start > target.bounds().start:
        target.delete_before(start)


def _copy_files(source: Path, target: Path) -> None:
    """Copy a partition file by file: one that was compacted has gaps, which a replica cannot be given.

    The state is read first, and then the list of closed segments, so that they say no more than the copy holds; what
    was cut in two, recovery cuts off.
    """
    target.mkdir(exist_ok=True)
    state = (source / STATE_FILE).read_bytes()
    lengths = _closed_lengths(source)
    files = [
        file for file in source.iterdir() if file.is_file() and file.name not in _MOMENTARY and file.suffix != ".tmp"
    ]
    for file in sorted(files, key=lambda file: file.name != LIST_FILE):
        if not _same(file, target / file.name):
            unfinished = target / f"{file.name}.tmp"
            shutil.copyfile(file, unfinished)
            if unfinished.stat().st_size > lengths.get(file.name, unfinished.stat().st_size):
                os.truncate(unfinished, lengths[file.name])  # what lies behind a closed segment is not part of it
            unfinished.replace(target / file.name)
    for file in target.iterdir():
        if file.is_file() and file.name not in {copied.name for copied in files} | {*_MOMENTARY}:
            file.unlink()
    (target / STATE_FILE).write_bytes(state)


def _closed_lengths(source: Path) -> dict[str, int]:
    """Return the sizes of the files of closed segments, as they were when closed."""
    newest = max((state for state in read_state_copies(source / STATE_FILE) if state), key=lambda state: state.sequence)
    try:
        listed = SegmentList.read(source, newest.partition)
    except (FileNotFoundError, SegmentListDamaged):
        return {}
    try:
        return {
            f"{segment.base:020d}.log": segment.length
            for segment in listed.scan()
            if segment is not None and not segment.former_length
        }
    finally:
        listed.close()


def _same(file: Path, copied: Path) -> bool:
    """Return whether a segment was copied before: it only grows, and compaction gives it another header."""
    if file.suffix != ".log" or not copied.exists() or copied.stat().st_size != file.stat().st_size:
        return False
    with file.open("rb") as original, copied.open("rb") as copy:
        return original.read(SEGMENT_HEADER_BYTES) == copy.read(SEGMENT_HEADER_BYTES)


def _check_same(source: Partition, target: DirectoryPartition, start: int) -> None:
    """Raise when the last record of the copy is another one in the source: then it is not a copy of that."""
    last = target.bounds().end - 1
    if last < max(start, target.bounds().start):
        return
    ours, theirs = (list(partition.records(last, last + 1)) for partition in (target, source))
    if ours and theirs and ours != theirs:
        raise HeadwaterError(f"offset {last} of {source} is a different record in the backup: choose another directory")


def _describe(target: DirectoryStore, manifest: BackupManifest) -> None:
    for name in target.topic_names():
        bounds = target.topic(name).bounds()
        manifest.topics[name] = [
            {"start": bounds[number].start, "end": bounds[number].end} for number in sorted(bounds)
        ]


def _positions(source: Store, manifest: BackupManifest) -> None:
    names = {source.describe_topic(name).uuid: name for name in source.topic_names() if name in manifest.topics}
    for group in source.group_names():
        positions = [
            {"topic": names[uuid], "partition": number, "offset": position.offset}
            for (uuid, number), position in sorted(source.group(group).committed().items())
            if uuid in names
        ]
        if positions:
            manifest.groups[group] = positions


def _verify(destination: Path, manifest: BackupManifest) -> None:
    """Read all of the copy once more; only then say, by the manifest, that it is one."""
    root = destination / STORE
    total = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    with progress("verifying", 2 * total, "bytes") as advance:
        for name, partitions in manifest.topics.items():
            schemas = SchemaDirectory(root / name / "schemas")
            for number in range(len(partitions)):
                check = Check(root / name / str(number), schemas=schemas)
                for finding in check.run():
                    if finding.kind == "damage":
                        raise Damaged(
                            f"the copy is not sound, {finding.reason}: if `hw check` finds nothing in "
                            f"the store itself, remove {root / name / str(number)} and back up again",
                            file=finding.file,
                        )
                advance(check.bytes_total)
        manifest.take_files(destination, advance)
    manifest.save(destination)
