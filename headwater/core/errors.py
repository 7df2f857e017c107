"""Every error that Headwater raises on purpose, in one hierarchy.

`except headwater.HeadwaterError` catches them all. Each message says what happened, where, and what to do; the
attributes carry the same facts for programs.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_ADVICE: Final = {
    errno.ENOSPC: "make room and retry",
    errno.EDQUOT: "make room and retry",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or close some, and retry",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max), or close some, and retry",
    errno.EACCES: "give this user the right to it and retry",
    errno.EPERM: "give this user the right to it and retry",
    errno.EROFS: "make the file system writable and retry",
}


def _advice(cause: OSError) -> str:
    return _ADVICE.get(cause.errno or 0, "look after the disk and retry")


class HeadwaterError(Exception):
    """The root of everything that Headwater raises on purpose."""


# Input that cannot be accepted. Nothing has been written when one of these is raised.


class InvalidConfiguration(HeadwaterError, ValueError):
    """A configuration value is out of its range or contradicts another one."""


class TooFewBrokers(InvalidConfiguration):
    """A topic cannot have so many replicas: fewer brokers are alive. Others may still be joining."""

    def __init__(self, topic: str, replication: int, alive: int) -> None:
        super().__init__(
            f"topic {topic!r} cannot have {replication} replicas: {alive} brokers are alive. Start more brokers, or "
            f"ask for fewer replicas"
        )
        self.topic = topic
        self.replication = replication
        self.alive = alive


class InvalidFilter(InvalidConfiguration):
    """A filter cannot be understood, or does not fit the records. `position` is the index in its text, if known."""

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__(problem if position is None else f"{problem}, at character {position + 1}")
        self.position = position


class InvalidRecord(HeadwaterError, ValueError):
    """A record or a batch cannot be stored as it is: a wrong type, a wrong length, or over a limit."""


class SchemaError(HeadwaterError, ValueError):
    """A schema cannot be used, or data does not fit it."""


class UnknownSchema(SchemaError):
    """A frame names a schema that this log does not have."""

    def __init__(self, schema_id: int, where: str) -> None:
        super().__init__(f"schema {schema_id:016x} is not known in {where}: restore its schema file from a backup")
        self.schema_id = schema_id


class InvalidName(HeadwaterError, ValueError):
    """A topic or a group cannot have this name."""


class OffsetOutOfRange(HeadwaterError, LookupError):
    """An offset lies outside what the partition holds."""

    def __init__(self, offset: int, start: int, end: int, where: str) -> None:
        side = "was removed: the log starts at" if offset < start else "is not there yet: the log ends at"
        bound = start if offset < start else end
        super().__init__(f"offset {offset} of {where} {side} {bound}")
        self.offset = offset
        self.start = start
        self.end = end


# Damage: bytes that are not what was written.


class Damaged(HeadwaterError):
    """Stored or received bytes are not what was written.

    `reason`, `file`, `position` and `offset` say more; what can be read again begins at `next_offset`, where that is
    known.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: Path | None = None,
        position: int | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        lost = f"{offset} to {next_offset - 1}" if offset is not None and next_offset is not None else offset
        where = [
            f"{name} {value}"
            for name, value in (("file", file), ("position", position), ("offset", lost))
            if value is not None
        ]
        super().__init__(f"{reason} ({', '.join(where)})" if where else reason)
        self.reason = reason
        self.file = file
        self.position = position
        self.offset = offset
        self.next_offset = next_offset

    def at(self, *, file: Path, position: int, offset: int | None = None) -> Damaged:
        """The same finding, with the place where it was found."""
        return type(self)(self.reason, file=file, position=position, offset=offset)


class FrameDamaged(Damaged):
    """A frame failed one of its checks."""


class RecordsDamaged(FrameDamaged):
    """Records of a topic cannot be read: `offset` up to, and without, `next_offset` of a `partition`."""

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int, cause: Damaged) -> None:
        super().__init__(
            f"{topic}/{partition}: offsets {offset} to {next_offset - 1} cannot be read, {cause.reason}: restore the "
            f"partition from a backup, or go on behind them by seek(..., {next_offset}) or with on_damage",
            file=cause.file,
            position=cause.position,
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class IndexDamaged(Damaged):
    """An index does not belong to its log or has a bad entry. The engine rebuilds it; users never see this."""


class SegmentListDamaged(Damaged):
    """A partition's list of closed segments is not sound. Recovery makes it anew; users never see this."""


class UntrustedFrame(FrameDamaged):
    """A frame from outside is well checksummed but says something that cannot be true or is not allowed."""


# Refusals: the partition cannot do that now, or for this caller.


class PartitionError(HeadwaterError):
    """A partition refuses an operation in its present condition."""


class PartitionBusy(PartitionError, TimeoutError):
    """Another process holds the partition's lock and did not let go within the timeout. Nothing was written."""

    def __init__(self, where: Path, pid: int | None, held_seconds: float | None, timeout: float) -> None:
        holder = f"process {pid}" if pid else "another process"
        since = f" for {held_seconds:.1f} s" if held_seconds is not None else ""
        super().__init__(
            f"{where} is locked by {holder}{since}, longer than the timeout of {timeout:g} s: "
            f"retry, resume that process if it is stopped, or end it"
        )
        self.pid = pid
        self.held_seconds = held_seconds


class PartitionPoisoned(PartitionError):
    """The disk failed to sync this partition. Acknowledged records are safe; reopen it to go on."""

    def __init__(self, where: Path, cause: str) -> None:
        super().__init__(
            f"{where} could not be synced ({cause}); nothing since the last sync was acknowledged: "
            f"check the disk, then reopen the partition to recover and go on"
        )


class RecoveryRefused(PartitionError):
    """The end of a log is unsound, and its configuration says to leave it as it is (`recovery="raise"`).

    `report` says what recovery has found, and would have cut or given up.
    """

    def __init__(self, where: Path, report: object) -> None:
        super().__init__(
            f"the end of this log is unsound, and recovery='raise' leaves it as it is ({report}); "
            f"look at it with: hw check {where}; then have it repaired with: hw check --repair {where}"
        )
        self.report = report


class WriteFailed(PartitionError, OSError):
    """The disk refused a write (it is full, say). Nothing of it was kept; appending works again when the disk does."""

    def __init__(self, where: Path, cause: OSError) -> None:
        problem = f"{where}: {cause.strerror or cause}; nothing was written"
        PartitionError.__init__(self, f"{problem}: {_advice(cause)}")
        self.errno = cause.errno


class OpenFailed(PartitionError, OSError):
    """Files cannot be opened, read or brought in order."""

    def __init__(self, where: Path, cause: OSError) -> None:
        PartitionError.__init__(self, f"{where} cannot be opened ({cause}): {_advice(cause)}")
        self.errno = cause.errno


class PartitionClosed(PartitionError):
    """The handle was closed."""

    def __init__(self, where: object) -> None:
        super().__init__(f"{where} was closed: open it again")


class PartitionForked(PartitionError):
    """The handle was opened before a fork and is used after it, in the child."""

    def __init__(self, where: object) -> None:
        super().__init__(f"{where} was opened before this process was forked: open it again in the child")


class PartitionDeleted(PartitionError):
    """The partition's files were deleted or replaced while it was open."""

    def __init__(self, where: object) -> None:
        super().__init__(f"{where} was deleted or replaced while it was open: open it again")


class UnsupportedFileSystem(HeadwaterError):
    """The directory is on a network file system, where locks and syncs cannot be relied on."""


# Idempotence.


class ProducerFenced(PartitionError):
    """A newer incarnation of this producer has written: this one must stop."""

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(f"producer epoch {epoch} was replaced by epoch {current}: stop this producer")
        self.epoch = epoch
        self.current = current


class OutOfOrderSequence(PartitionError):
    """A producer's batch does not follow its last one: an earlier batch is missing, or this one is too old to know."""

    def __init__(self, sequence: int, expected: int) -> None:
        super().__init__(f"batch with sequence {sequence} refused: sequence {expected} comes next for this producer")
        self.sequence = sequence
        self.expected = expected


# Streams: topics, producers, consumers, groups.


class StoreError(HeadwaterError):
    """A store refuses an operation."""


class StoreClosed(StoreError):
    """The store, producer or consumer was closed."""

    def __init__(self, handle: str) -> None:
        super().__init__(f"{handle} was closed: open it again")


class StoreInUse(StoreError):
    """The directory is served by a broker, or used by others while a broker wants it for itself."""


class UnknownTopic(StoreError, LookupError):
    """There is no topic of this name."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"there is no topic {name!r} in {where}: create it first")
        self.name = name


class TopicExists(StoreError):
    """There is a topic of this name already."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"there is a topic {name!r} in {where} already: choose another name or pass exist_ok=True")
        self.name = name


class NotLeader(StoreError):
    """Another broker of the cluster leads the partition, or none does at the moment. Clients look for it by themselves.

    `leader` is its address, as far as the broker that was asked knows it.
    """

    def __init__(self, topic: str, partition: int, leader: str | None) -> None:
        advice = "no broker does at the moment: ask again" if leader is None else f"ask the broker at {leader}"
        super().__init__(f"this broker does not lead {topic}/{partition}; {advice}")
        self.topic = topic
        self.partition = partition
        self.leader = leader


class LeaderNotReady(NotLeader):
    """The broker has just become the leader, and may not answer readers yet. Clients ask again by themselves.

    Earlier leaders may have acknowledged and shown more than this one can be sure of. It answers as soon as the other
    replicas in sync have everything that its log had at the election.
    """

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition, None)
        said = (
            f"{topic}/{partition} has a new leader, which answers reads once the other replicas in sync have caught up "
            f"with it; ask again, and see that their brokers run"
        )
        self.args = (said,)


class BufferFull(StoreError, TimeoutError):
    """A producer's buffer stayed full for longer than its timeout. The record was not taken."""


class GroupBusy(StoreError, TimeoutError):
    """A process holds a group's lock, which takes microseconds unless it was stopped in the middle of that."""

    def __init__(self, name: str, pid: int | None, timeout: float) -> None:
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"group {name!r} was held by {who} for over {timeout:g} s: resume that process if it is stopped, or end it"
        )
        self.pid = pid


class StaleMember(StoreError):
    """A member of a group acts on a partition that is no longer its own. Its commit was refused; others go on there."""


class CommitRefused(StoreError, ValueError):
    """A commit would move a group's position back, or beyond the end. Use reset to do that on purpose."""


class TransactionAborted(StoreError):
    """The transaction was given up, so nothing of it is in the log and no position has moved. It may be done again."""


class TransactionUnfinished(StoreError):
    """The transaction is decided, and could not be carried out yet. It will be: do not do it again.

    The next process that opens the store, stewards it or begins a transaction goes on with it; the cause says what was
    in the way.
    """


class WriterTaken(StoreError):
    """A named writer belongs to someone else: its numbers would be taken for the other's, which are done."""

    def __init__(self, name: str, owner: str | None, wanted: str | None) -> None:
        holder = "transactions without an owner" if owner is None else f"{owner!r}"
        super().__init__(f"writer {name!r} belongs to {holder}, not to {wanted!r}: use another name, or take it over")
        self.name = name
        self.owner = owner


class DeadLetterRefused(StoreError):
    """A record failed for good, and the dead-letter topic cannot take it: it is not done, and nothing of it is lost."""

    def __init__(self, topic: str, partition: int, offset: int, dead_letter: str, cause: HeadwaterError) -> None:
        super().__init__(
            f"{topic}/{partition} offset {offset} failed for good, and the dead-letter topic {dead_letter!r} cannot "
            f"take it ({cause}): raise its limits by alter_topic, use another topic, or on_error alone"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.dead_letter = dead_letter


# The broker.


class BrokerUnavailable(StoreError, TimeoutError):
    """No broker has answered in time. The call may have been carried out nevertheless, if the message says so."""

    def __init__(self, where: str, what: str, seconds: float, why: str, *, unknown: bool = False) -> None:
        outcome = "; whether it has happened is not known" if unknown else ""
        super().__init__(
            f"{where}: {what} was not answered within {seconds:.1f} s ({why}){outcome}: is the broker running, and "
            f"reachable from here?"
        )
        self.what = what
        self.unknown = unknown


class Unauthenticated(StoreError):
    """The broker does not know who calls: a token or a certificate is missing, wrong or revoked."""


class PermissionDenied(StoreError):
    """The caller lacks a right at the broker. Nothing was done; `right`, `kind` and `name` say which it lacks."""

    def __init__(self, caller: str, right: str, kind: str, name: str) -> None:
        subject = kind if kind == "broker" else f"{kind} {name!r}"
        super().__init__(
            f"{caller!r} lacks the right {right!r} on {subject}: an administrator can grant it in the access file"
        )
        self.caller = caller
        self.right = right
        self.kind = kind
        self.name = name


# The cluster.


class EtcdUnavailable(StoreError, TimeoutError):
    """etcd has not answered in time. With `unknown`, what was to be written may have been: read it again first."""

    def __init__(self, where: str, what: str, seconds: float, why: str, *, unknown: bool = False) -> None:
        outcome = "; whether it has happened is not known" if unknown else ""
        super().__init__(
            f"etcd at {where}: {what} was not answered within {seconds:.1f} s ({why}){outcome}: is it running, with a "
            f"majority of its members, and reachable from here?"
        )
        self.what = what
        self.unknown = unknown


class EtcdRefused(StoreError):
    """etcd has refused something for a reason that does not pass by itself; `code` is the name that gRPC has for it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


# Spark.


class SparkUnavailable(HeadwaterError):
    """Spark cannot be started here: PySpark or Java is missing. The message says what to install."""


class RangeUnreadable(StoreError):
    """A task of Spark cannot read all of the records that it was given to read, so it gives none of them as all."""

    def __init__(self, topic: str, partition: int, start: int, end: int, cause: object) -> None:
        super().__init__(f"{topic}/{partition}: offsets {start} to {end} (exclusive) cannot be read: {cause}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end


class DataLost(StoreError):
    """Records were removed before a consumer, or a query of Spark, has read them: `start` up to, and without, `end`.

    `partition` is None when a whole topic was removed.
    """

    def __init__(
        self,
        topic: str,
        partition: int | None,
        start: int | None,
        end: int | None,
        why: str,
        advice: str = "to go on without them set the option failOnDataLoss to false",
    ) -> None:
        subject = topic if partition is None else f"{topic}/{partition}"
        records = "records are" if start is None else f"offsets {start} to {end} (exclusive) are"
        self.finding = f"{subject}: {records} gone before they were read: {why}"
        super().__init__(f"{self.finding}; {advice}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end


# Files that people write.


class Problem(NamedTuple):
    """Something that is wrong in a file that people write: where, and what."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {f'{self.key}: ' if self.key else ''}{self.message}"


class InvalidFile(InvalidConfiguration):
    """A file that says how something is to be done is wrong; `problems` has all of it. Nothing of it was used."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


# Pipelines.


class InvalidPipeline(InvalidFile):
    """The declaration of a pipeline is wrong; `problems` has all of it. Nothing was started."""


class PipelineRunning(StoreError):
    """The pipeline runs already, and one run at a time is what its checkpoints allow."""

    def __init__(self, name: str, checkpoint: Path) -> None:
        super().__init__(f"pipeline {name!r} is running on {checkpoint}: stop that run first, or wait for its end")
        self.name = name


class PipelineFailed(StoreError):
    """A sink of a pipeline failed for good. The records that it had written count; the next run goes on from there."""

    def __init__(self, name: str, sink: str, attempts: int, cause: str) -> None:
        super().__init__(f"pipeline {name!r}, sink {sink!r} failed, {attempts} × in a row: {cause}")
        self.name = name
        self.sink = sink


class ExpectationFailed(PipelineFailed):
    """A row breaks a rule that ends the pipeline. Nothing of its batch was written."""
