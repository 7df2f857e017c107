"""Leading: followers are answered, each when there is something for it or its patience is over."""

from __future__ import annotations

import logging
import time
from typing import Final

from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.following import WAIT, DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.cluster.replication.replica import FollowerRequest, NotLeading
from headwater.core.errors import HeadwaterError, NotLeader
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error

_repeated = RepeatedLog(logging.getLogger(__name__))
_HEARING: Final = 0.1
"""The time until a follower hears that records are acknowledged, if nothing else is to be told: nobody waits for
that, and while there is more it comes along. Seconds."""


async def answer_follower(
    local: LocalReplica | None, question: pb.ReplicaFetch, threads: DiskThreads
) -> pb.ReplicaFetched:
    """Answer with what is behind a follower's end, or where its log differs; with an error if another broker leads."""
    answer = pb.ReplicaFetched(
        topic_uuid=question.topic_uuid, partition=question.partition, epoch=question.epoch, end=question.end
    )
    try:
        if local is None:
            raise NotLeading
        await _fill(answer, question, local, threads)
    except NotLeading:
        answer.error.CopyFrom(pack_error(NotLeader("" if local is None else local.tp.topic, question.partition, None)))
    except HeadwaterError as error:
        _repeated.log(logging.ERROR, "%s cannot be read for a follower: %s", local, error)
        answer.error.CopyFrom(pack_error(error))
    return answer


async def _fill(
    answer: pb.ReplicaFetched, question: pb.ReplicaFetch, local: LocalReplica, threads: DiskThreads
) -> None:
    request = FollowerRequest(
        question.replica,
        question.incarnation,
        question.epoch,
        question.end,
        question.durable_end,
        question.last_epoch,
        question.mark,
        question.damaged,
    )
    local.heard(request)
    now = time.monotonic()
    deadline, hearing = now + min(question.max_wait_ms / 1000, WAIT), now + _HEARING
    while True:
        response = local.fetch(request)
        answer.mark = response.mark
        if request.end < local.log.start:
            await _fill_start(answer, local, threads)
            return
        left = deadline - time.monotonic()
        withheld = local.log.markers.are_going(request.end)
        news = (response.batches and not withheld) or response.diverging is not None
        if news or left <= 0 or local.confirming:
            break
        if response.high_watermark != question.high_watermark:
            left = hearing - time.monotonic()
            if left <= 0:
                break
        await local.changed(left)
    answer.high_watermark = response.high_watermark
    answer.log_start = local.log.start
    answer.markers_until = local.log.markers.until
    if response.diverging is not None:
        answer.diverging.epoch, answer.diverging.end = response.diverging
    elif news and response.batches:
        frames = await local.frames(response.batches[0], question.max_bytes, threads.read)
        if not local.leads or local.led != question.epoch:
            raise NotLeading  # what was read may be another leader's by now, and not fit what the follower has
        markers = local.log.markers  # after the frames were read, not before
        if markers.are_going(question.end):
            return
        answer.markers_until, answer.markers_state = markers
        answer.next_offset, answer.next_epoch = frames[-1].header.next_offset, frames[-1].header.leader_epoch
        answer.frames = b"".join(memoryview(frame.data) for frame in frames)
        await _fill_gaps(answer, question, local.log, threads)


async def _fill_gaps(
    answer: pb.ReplicaFetched, question: pb.ReplicaFetch, log: DurableLog, threads: DiskThreads
) -> None:
    """Add what frames do not tell since compaction has removed some of them: after they were read, not before."""
    answer.compacted_until = until = log.compacted_until
    answer.epochs.extend(
        pb.EpochStart(epoch=epoch, start=start)
        for epoch, start in log.epochs_before(answer.next_offset)
        if start >= question.end
    )
    if question.end < until and question.producers_until < until:
        answer.producers = await threads.read(log.partition.producers_at, until)


async def _fill_start(answer: pb.ReplicaFetched, local: LocalReplica, threads: DiskThreads) -> None:
    """Retention was faster than the follower: it goes on where the log begins."""
    log = local.log
    answer.log_start, answer.high_watermark = log.start, local.replica.high_watermark
    answer.epochs.extend(pb.EpochStart(epoch=epoch, start=start) for epoch, start in log.epochs_before(log.start))
    answer.producers = await threads.read(log.partition.producers_at, log.start)
