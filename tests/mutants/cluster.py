"""Mutants of clusters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="watermark-without-followers",
        promise="a record is acknowledged when every replica in sync has it",
        file="headwater/cluster/replication/replica.py",
        old="            ends.append(progress.durable_end)\n",
        new="",
        killers=("tests/cluster/test_replica.py::test_a_follower_that_asks_and_gets_no_further_is_left_behind",),
    ),
    Mutant(
        name="watermark-by-what-is-not-durable",
        promise="a follower counts with what is durable there",
        file="headwater/cluster/replication/replica.py",
        old="        return request.durable_end\n",
        new="        return request.end\n",
        killers=("tests/cluster/test_replica.py::test_a_follower_counts_with_what_is_durable_there",),
    ),
    Mutant(
        name="own-end-not-durable",
        promise="a leader counts itself with what is durable",
        file="headwater/cluster/replication/replica.py",
        old=("        return self.log.durable_end\n\n    def _counted("),
        new=("        return self.log.end\n\n    def _counted("),
        killers=("tests/cluster/test_replica.py::test_a_leader_counts_itself_with_what_is_durable",),
    ),
    Mutant(
        name="pending-members-not-counted",
        promise="acknowledgements wait for who may be in sync by now",
        file="headwater/cluster/replication/replica.py",
        old="        if self._pending is not None:\n            for broker, incarnation",
        new="        if self._pending is not None and not counted:\n            for broker, incarnation",
        killers=("tests/cluster/test_replica.py::test_a_follower_that_may_be_in_sync_by_now_is_waited_for",),
    ),
    Mutant(
        name="min-insync-ignored",
        promise="nothing is acknowledged with fewer replicas in sync than required",
        file="headwater/cluster/replication/replica.py",
        old="        if len(self.state.in_sync) >= self._min_insync:\n",
        new="        if self.state.in_sync:\n",
        killers=("tests/cluster/test_replica.py::test_nothing_is_acknowledged_with_fewer_in_sync_than_required",),
    ),
    Mutant(
        name="shrinking-below-the-minimum",
        promise="the in-sync set does not shrink below the minimum",
        file="headwater/cluster/replication/replica.py",
        old="        return len(members) > self._min_insync\n",
        new="        return len(members) > 1\n",
        killers=("tests/cluster/test_replica.py::test_the_in_sync_set_does_not_shrink_below_the_minimum",),
    ),
    Mutant(
        name="reads-before-the-election-settled",
        promise="reads never go back after an election",
        file="headwater/cluster/replication/replica.py",
        old="        return self.high_watermark if self.high_watermark >= self._epoch_start else None\n",
        new="        return self.high_watermark\n",
        killers=("tests/cluster/test_replica.py::test_a_new_leader_shows_nothing_until_those_in_sync_have_its_log",),
    ),
    Mutant(
        name="settled-from-the-start",
        promise="a new leader shows records only when everybody who counts has its log",
        file="headwater/cluster/replication/replica.py",
        old="            self._settled = False\n        if self.leads:",
        new="            self._settled = True\n        if self.leads:",
        killers=("tests/cluster/test_replica.py::test_a_new_leader_shows_nothing_until_those_in_sync_have_its_log",),
    ),
    Mutant(
        name="lagging-replicas-join",
        promise="a replica joins the in-sync set with everything acknowledged",
        file="headwater/cluster/replication/replica.py",
        old="        return progress.durable_end >= max(self.high_watermark, self._epoch_start)\n",
        new="        return progress.durable_end >= min(self.high_watermark, self._epoch_start)\n",
        killers=("tests/cluster/test_replica.py::test_a_follower_joins_with_everything_that_is_acknowledged",),
    ),
    Mutant(
        name="divergence-by-length-alone",
        promise="a follower cuts what its leader does not have",
        file="headwater/cluster/replication/replica.py",
        old=("        return request.end > self.log.end or self.log.epoch_before(request.end) != request.last_epoch\n"),
        new="        return request.end > self.log.end\n",
        killers=("tests/cluster/test_replica.py::test_a_follower_with_records_of_another_epoch_is_told_where_to_cut",),
    ),
    Mutant(
        name="answers-of-other-epochs-taken",
        promise="a follower takes no answer to another question",
        file="headwater/cluster/replication/replica.py",
        old="        return response[:3] == (self.epoch, end, self.log.epoch_before(end))\n",
        new="        return response[1:3] == (end, self.log.epoch_before(end))\n",
        killers=("tests/cluster/test_replica.py::test_a_follower_takes_no_answer_to_another_question",),
    ),
    Mutant(
        name="stale-requests-noted",
        promise="an old request of a follower does not count",
        file="headwater/cluster/replication/replica.py",
        old=("        return (request.incarnation, request.durable_end) < (known.incarnation, known.durable_end)\n"),
        new="        return False\n",
        killers=("tests/cluster/test_replica.py::test_an_old_request_of_a_follower_does_not_count",),
    ),
    Mutant(
        name="confirmed-without-followers",
        promise="a coordinator that is cut off does not answer as if it led",
        file="headwater/cluster/replication/replica.py",
        old=(
            "        return all(self._reached.get(broker, 0) >= mark for broker in self._counted() "
            "if broker != self.broker)\n"
        ),
        new="        return True\n",
        killers=("tests/cluster/test_replica.py::test_a_leader_is_confirmed_by_all_who_may_elect_another",),
    ),
    Mutant(
        name="duplicates-answered-early",
        promise="a duplicate is answered when the original is acknowledged",
        file="headwater/cluster/replication/local_replica.py",
        old="        if by_all and written.end_offset > self.replica.high_watermark:\n",
        new="        if by_all and not written.duplicate and written.end_offset > self.replica.high_watermark:\n",
        killers=(
            "tests/cluster/test_local_replica.py::test_a_record_that_comes_again_is_acknowledged_no_sooner_than_the_first_time",
        ),
    ),
    Mutant(
        name="acknowledged-in-another-role",
        promise="nothing that was appended in another role is acknowledged in this one",
        file="headwater/cluster/replication/local_replica.py",
        old=("        if not self.leads or self.led != epoch:\n            raise NotLeading\n        self.appended()"),
        new=("        if not self.leads:\n            raise NotLeading\n        self.appended()"),
        killers=(
            "tests/cluster/test_local_replica.py::test_what_was_appended_in_an_earlier_epoch_is_not_acknowledged_in_a_later_one",
        ),
    ),
    Mutant(
        name="acks-survive-a-change-of-role",
        promise="who waits for an acknowledgement is told when the role changes",
        file="headwater/cluster/replication/local_replica.py",
        old="                ack.set_exception(NotLeading())\n        self.wake()",
        new="                ack.set_result(None)\n        self.wake()",
        killers=(
            "tests/cluster/test_local_replica.py::test_nothing_is_acknowledged_in_another_role_than_it_was_appended_in",
        ),
    ),
    Mutant(
        name="replay-without-the-watermark",
        promise="a coordinator replays what nobody takes back",
        file="headwater/cluster/internal.py",
        old=(
            "        while self._local.replica.high_watermark < end:\n"
            "            await self._local.changed()\n"
            "            self._check()\n"
        ),
        new="",
        killers=("tests/cluster/test_internal.py::test_a_log_is_replayed_when_the_others_have_all_of_it",),
    ),
    Mutant(
        name="registered-before-the-replay",
        promise="a coordinator serves after it has replayed",
        file="headwater/cluster/internal.py",
        old=(
            "                await log.replay(coordinator.replay)\n"
            "                self._serving[number] = (log, coordinator)\n"
        ),
        new=(
            "                self._serving[number] = (log, coordinator)\n"
            "                await log.replay(coordinator.replay)\n"
        ),
        killers=("tests/cluster/test_internal.py::test_nobody_finds_a_coordinator_that_has_yet_to_replay",),
    ),
    Mutant(
        name="coordinators-wait-for-nobody",
        promise="what a coordinator acknowledges is durable at all that are in sync",
        file="headwater/cluster/internal.py",
        old="acknowledged(writing, self.epoch, by_all=True)",
        new="acknowledged(writing, self.epoch, by_all=False)",
        killers=("tests/cluster/test_internal.py::test_a_record_is_acknowledged_when_the_others_have_it",),
    ),
    Mutant(
        name="copies-unsynced",
        promise="a follower tells what is durable, whatever the topic's mode",
        file="headwater/log/directory.py",
        old="        self._writer.commit(tickets, durable=True)\n",
        new="        self._writer.commit(tickets)\n",
        killers=("'tests/cluster/test_sync_modes.py::test_what_is_acknowledged_is_durable_at_every_replica[never]'",),
    ),
    Mutant(
        name="copies-of-another-leader",
        promise="a follower copies from the leader that it follows alone",
        file="headwater/cluster/replication/durable_log.py",
        old="        with self.partition.following(epoch):\n            if self._kept.state",
        new="        with self.partition.guard:\n            if self._kept.state",
        killers=("tests/cluster/test_durable_log.py::test_only_a_leader_appends_and_only_its_follower_copies",),
    ),
    Mutant(
        name="unacknowledged-compacted",
        promise="what may still be taken back is no reason to remove anything",
        file="headwater/cluster/replication/durable_log.py",
        old="            closed = [segment for segment in self.partition.closed() if segment.end <= self.watermark]\n",
        new="            closed = list(self.partition.closed())\n",
        killers=("tests/cluster/test_compacted_logs.py::test_replicas_that_compact_by_themselves_agree",),
    ),
    Mutant(
        name="unacknowledged-retained-away",
        promise="retention deletes nothing that is not acknowledged",
        file="headwater/cluster/replication/durable_log.py",
        old="        count = max(expired(segments, config, age_ns, min(unread, high_watermark)), forced)\n",
        new="        count = max(expired(segments, config, age_ns, unread), forced)\n",
        killers=(
            "'tests/cluster/test_durable_log.py::test_retention_spares_what_is_not_acknowledged_or_not_read[3-6-steward1-3]'",
        ),
    ),
    Mutant(
        name="cut-before-the-watermark-is-kept",
        promise="a crash in the middle of a forced cut leaves no short log",
        file="headwater/cluster/replication/durable_log.py",
        old="                self._keep(offset)\n            if offset",
        new="                pass\n            if offset",
        killers=(
            "tests/cluster/test_forced_election.py::test_a_partition_is_led_again_by_one_that_lacks_records_and_all_others_copy_it",
        ),
    ),
    Mutant(
        name="append-after-losing-leadership",
        promise="a broker that no longer leads appends nothing",
        file="headwater/log/write/writer.py",
        old="            if role is None or role.leads != leads or epoch not in (None, role.epoch):\n",
        new="            if role is None or role.leads != leads:\n",
        killers=("tests/cluster/test_durable_log.py", "tests/cluster/test_local_replica.py"),
    ),
    Mutant(
        name="higher-minimum-at-once",
        promise="a higher min_insync holds when enough replicas are in sync, not before",
        file="headwater/cluster/control/replication_factor.py",
        old="    now = min(topic.min_insync, wanted)\n",
        new="    now = wanted\n",
        killers=("tests/cluster/test_replication_factor.py",),
    ),
    Mutant(
        name="number-taken-twice",
        promise="no two brokers take the same number",
        file="headwater/cluster/control/numbering.py",
        old="guards = [WriteGuard(keys.store(number), created=0), WriteGuard(keys.broker(number), created=0)]",
        new="guards: list[WriteGuard] = []",
        killers=("tests/cluster/test_numbering.py::test_of_brokers_that_begin_at_once_each_has_a_number_of_its_own",),
    ),
    Mutant(
        name="cancelled-moves-begin-again",
        promise="moves that an operator cancels do not begin again by themselves",
        file="headwater/cluster/control/moves.py",
        old='        notes = [Put(keys.kept(broker), b"{}") for broker in sorted(left)]\n',
        new="        notes: list[Put] = []\n",
        killers=(
            "tests/cluster/test_automatic_moves.py::test_replicas_leave_a_broker_that_is_gone_for_longer_than_the_timeout",
        ),
    ),
    Mutant(
        name="stopped-time-counts-as-absence",
        promise="time in which a broker was stopped is not the absence of another one",
        file="headwater/cluster/control/automatic_moves.py",
        old="min(now - self._looked, _MOST_PASSED)",
        new="now - self._looked",
        killers=(
            "tests/cluster/test_automatic_moves.py::test_nothing_leaves_while_too_few_are_alive_or_a_broker_is_waited_for",
        ),
    ),
)
