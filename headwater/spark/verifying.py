"""Verifying: every frame of every segment of topics, many segments at a time. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.errors import InvalidConfiguration
from headwater.embedded.directory_catalog import DirectoryCatalog
from headwater.log.files.disk import REAL_DISK
from headwater.log.format.schemas import SchemaDirectory
from headwater.log.maintain.check import Check, Finding
from headwater.spark.address import check_present
from headwater.spark.jobs import OnProgress, each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class VerifiedPartition:
    """The findings in one partition."""

    topic: str
    partition: int
    directory: Path
    start: int
    end: int
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """True if acknowledged records cannot be read as they were written."""
        return any(finding.kind == "damage" for finding in self.findings)


@dataclass(frozen=True)
class _Part:
    """One segment to check."""

    directory: Path
    schemas: Path
    base: int
    size: int


@dataclass(frozen=True)
class _Result:
    """The findings in one segment."""

    findings: list[Finding]
    end: int
    frames: int
    records: int
    bytes: int


def verify(
    spark: SparkSession, store: str, topics: Sequence[str] = (), *, on_progress: OnProgress | None = None
) -> list[VerifiedPartition]:
    """Check all topics of a store in a directory, or the named ones."""
    if "://" in store:
        raise InvalidConfiguration(f"{store} is no directory: files are checked where they are")
    check_present(store)
    catalog = DirectoryCatalog(Path(store), REAL_DISK)
    found: list[VerifiedPartition] = []
    parts: list[tuple[VerifiedPartition, _Part]] = []
    checks: list[Check] = []
    for name in topics or catalog.names():
        schemas = catalog.path(name) / "schemas"
        for number in range(catalog.get(name).partitions):
            directory = catalog.path(name) / str(number)
            if not directory.is_dir():
                continue  # nobody has opened it yet
            check = Check(directory, schemas=SchemaDirectory(schemas))
            findings = list(check.begin())
            one = VerifiedPartition(name, number, directory, check.start, check.start, findings=findings)
            found.append(one)
            checks.append(check)
            parts += [(one, _Part(directory, schemas, base, check.size_of(base))) for base in check.bases]
    results: dict[int, _Result] = {}
    total = sum(part.size for _, part in parts)
    done = 0
    for number, result in each(spark, _check, [part for _, part in parts]):
        results[number] = result
        done += parts[number][1].size
        if on_progress is not None:
            on_progress(done, total)
    for number, (one, _) in enumerate(parts):
        _add(one, results[number])
    for one, check in zip(found, checks, strict=True):
        one.findings += check.finish()
    return found


def _add(one: VerifiedPartition, result: _Result) -> None:
    one.segments += 1
    one.end = max(one.end, result.end)
    one.frames += result.frames
    one.records += result.records
    one.bytes += result.bytes
    one.findings += result.findings


def _check(part: _Part) -> _Result:
    """The work of a task."""
    check = Check(part.directory, schemas=SchemaDirectory(part.schemas))
    _exhaust(check.begin())  # what it finds is known
    findings = list(check.check(part.base))
    return _Result(
        findings,
        check.end,
        sum(segment.frames for segment in check.segments),
        sum(segment.records for segment in check.segments),
        sum(segment.bytes for segment in check.segments),
    )


def _exhaust(findings: Iterable[Finding]) -> None:
    for _ in findings:
        pass
