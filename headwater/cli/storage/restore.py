"""`hw restore`: make a store of a backup."""

from __future__ import annotations

import time
from collections.abc import Container
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.output import Json, done, size, wants_json, write_json
from headwater.cli.progress import progress
from headwater.cli.storage.backup_manifest import STORE, BackupManifest, copy_file, digest_of, sync_directory
from headwater.core.address import SCHEME
from headwater.core.errors import Damaged, HeadwaterError
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.maintain.check import lost_segments
from headwater.streams.group import Commit
from headwater.streams.topic import TopicPartition

app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw restore /backups/events events            a new store, with the same offsets\n"
    "  hw restore /backups/events --verify          is it as it was written? Nothing is restored\n"
    "  hw restore /backups/events events --topic orders\n"
    "  hw topic copy orders --store /backups/events/store --to-store hw://broker.example:6174",
)
def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A backup that hw backup has made.", show_default=False)
    ],
    target: Annotated[
        str | None,
        typer.Argument(metavar="[DIRECTORY]", help="A new directory for the store.", show_default=False),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; repeat it for several.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only check every file of the backup.")] = False,
    as_json: Json = False,
) -> None:
    """Restore a store from a backup. Every file is checked, and the store appears as a whole or not at all.

    Offsets and the positions of groups are as they were. Run an interrupted restore again to resume it.
    """
    began = time.monotonic()
    manifest = BackupManifest.load(backup)
    unknown = [name for name in topic or () if name not in manifest.topics]
    if unknown:
        raise HeadwaterError(f"{backup} has no topic {unknown[0]!r}; its topics are {', '.join(manifest.topics)}")
    chosen = topic or list(manifest.topics)
    files = {
        name: expected
        for name, expected in manifest.files.items()
        if Path(name).parts[0] in chosen or Path(name).parts[0] not in manifest.topics
    }
    if verify or target is None:
        if not verify:
            raise HeadwaterError("name a new directory to restore to, or give --verify")
        _verify(backup, files)
        _check_segments(backup / STORE, manifest, chosen)
    else:
        _restore(backup, _new_directory(target), manifest, files, chosen)
    seconds = time.monotonic() - began
    records = sum(partition["end"] - partition["start"] for name in chosen for partition in manifest.topics[name])
    amount = sum(file["bytes"] for file in files.values())
    if wants_json(as_json):
        write_json(
            {
                "backup": str(backup),
                "store": None if verify else str(target),
                "topics": len(chosen),
                "records": records,
                "bytes": amount,
                "created_ns": manifest.created_ns,
                "seconds": round(seconds, 3),
            }
        )
    else:
        summary = f"{backup} is sound" if verify else f"{target} is restored"
        done(f"{summary}: {records:,} records of {len(chosen)} topics, {size(amount)}, in {seconds:.1f} s")


def _new_directory(target: str) -> Path:
    if target.startswith(SCHEME):
        raise HeadwaterError(
            "hw restore cannot restore to a running broker: hw topic copy --store BACKUP/store TOPIC --to-store hw://… "
            "copies a topic; to keep the offsets, restore to a directory and serve that"
        )
    target_directory = Path(target)
    if target_directory.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise HeadwaterError(
            f"{target_directory} is the current directory or above it, and cannot be replaced: name a new directory"
        )
    if target_directory.exists() and (not target_directory.is_dir() or any(target_directory.iterdir())):
        raise HeadwaterError(f"{target_directory} is not empty: restore to a new directory")
    return target_directory


def _verify(backup: Path, files: dict[str, dict[str, object]]) -> None:
    with progress("verifying", sum(int(str(file["bytes"])) for file in files.values()), "bytes") as advance:
        for name, expected in files.items():
            path = backup / STORE / name
            if not path.is_file():
                raise HeadwaterError(f"{path} is missing: this backup cannot be restored as it is")
            if digest_of(path, advance) != (expected["bytes"], expected["blake2b"]):
                raise HeadwaterError(f"{path} does not match its checksum in the backup's manifest")


def _check_segments(root: Path, manifest: BackupManifest, topics: list[str]) -> None:
    """Raise if a partition lacks segments that it had: then it was backed up without them."""
    for topic in topics:
        for number in range(len(manifest.topics[topic])):
            for lost in lost_segments(root / topic / str(number)):
                raise Damaged(
                    f"{topic}/{number} was backed up without offsets {lost.offset} to {lost.next_offset - 1}, "
                    f"{lost.reason}: take another backup",
                    file=lost.file,
                )


def _restore(
    backup: Path, target: Path, manifest: BackupManifest, files: dict[str, dict[str, object]], topics: list[str]
) -> None:
    """Copy beside the target, put the groups back, and rename."""
    unfinished = target.absolute().with_name(f".{target.name}.restoring")
    unfinished.mkdir(parents=True, exist_ok=True)
    _remove_others(unfinished, files)
    with progress("restoring", sum(int(str(file["bytes"])) for file in files.values()), "bytes") as advance:
        for name, expected in files.items():
            path = unfinished / name
            known = path.is_file() and path.stat().st_size == expected["bytes"]
            if known and digest_of(path, lambda _: None)[1] == expected["blake2b"]:
                advance(int(str(expected["bytes"])))  # an earlier run has come so far
                continue
            copy_file(backup / STORE / name, path, expected, advance)
    _check_segments(unfinished, manifest, topics)
    with DirectoryStore(unfinished, exclusive=True) as store:
        for group, positions in manifest.groups.items():
            own = {
                TopicPartition(position["topic"], position["partition"]): Commit(
                    (store.describe_topic(position["topic"]).uuid, position["partition"]), position["offset"]
                )
                for position in positions
                if position["topic"] in topics
            }
            if own:
                store.group(group).reset(own)
    for directory in [*(entry for entry in unfinished.rglob("*") if entry.is_dir()), unfinished]:
        sync_directory(directory)
    if target.exists():
        target.rmdir()
    unfinished.rename(target)
    sync_directory(target.absolute().parent)


def _remove_others(unfinished: Path, files: Container[str]) -> None:
    """Remove leftovers of an earlier run: other topics, or an older state of the backup."""
    for path in sorted(unfinished.rglob("*"), reverse=True):  # what is in a directory comes before it
        if not path.is_dir():
            if path.relative_to(unfinished).as_posix() not in files:
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
