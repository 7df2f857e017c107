"""Mutants of stores: topics, producers, consumers, groups, transactions and stewards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="batch-in-pieces",
        promise="the rows of one partition that send_batch is given become visible together",
        file="headwater/streams/producer.py",
        old="        if batch.num_rows and whole.size <= self._most_whole:\n",
        new="        if batch.num_rows and whole.size <= self._bytes:\n",
        killers=("tests/streams/test_atomic_batches.py -k directory",),
    ),
    Mutant(
        name="atomic-batch-without-a-transaction",
        promise="an atomic batch for several partitions is in all of them or in none",
        file="headwater/streams/producer.py",
        old="            if len(all_portions) > 1:\n",
        new="            if len(all_portions) > 1 << 30:\n",
        killers=("tests/streams/test_atomic_batches.py -k directory",),
    ),
    Mutant(
        name="dead-letter-after-acknowledgement",
        promise="a record that process gives up is in the dead-letter topic before it is acknowledged",
        file="headwater/streams/processing.py",
        old=(
            "            self._producer.sync()  # before the acknowledgement: else a power loss could"
            " take the record from both\n"
        ),
        new="",
        killers=(
            "'tests/streams/test_processing.py::test_a_dead_letter_is_durable_before_its_record_is_acknowledged[directory]'",
        ),
    ),
    Mutant(
        name="commit-by-another-member",
        promise="a commit for a partition that is another member's by now is refused",
        file="headwater/embedded/group.py",
        old="                if is_reset or membership.owners.get(partition) != member_id:\n",
        new="                if is_reset:\n",
        killers=(
            "'tests/streams/test_group.py::test_a_member_that_does_not_poll_in_time_loses_all_and_joins_again[directory]'",
        ),
    ),
    Mutant(
        name="commit-from-before-a-reset",
        promise="a commit from before a reset is refused",
        file="headwater/embedded/group.py",
        old="                if is_reset or membership.owners.get(partition) != member_id:\n",
        new="                if membership.owners.get(partition) != member_id:\n",
        killers=("tests/streams/test_group.py -k directory",),
    ),
    Mutant(
        name="positions-move-back",
        promise="positions move back by reset alone",
        file="headwater/embedded/group.py",
        old="        if before is not None and offset < before.offset:\n            raise CommitRefused(",
        new="        if before is not None and offset < -1:\n            raise CommitRefused(",
        killers=("tests/streams/test_group.py -k directory",),
    ),
    Mutant(
        name="carried-out-over-a-reset",
        promise="a decided transaction does not undo a later reset",
        file="headwater/embedded/group.py",
        old=("                if before is None or (before.offset <= offset and before.generation <= generation):\n"),
        new="                if before is None or before.offset <= offset:\n",
        killers=(
            "tests/streams/test_group.py -k directory",
            "tests/streams/test_transactions.py -k directory",
            "tests/streams/test_transactions_unfinished.py",
        ),
    ),
    Mutant(
        name="reset-below-an-older-decision",
        promise="a reset has a newer generation than every decision before it",
        file="headwater/embedded/group.py",
        old="            membership.generation = self._newest_generation(membership, positions) + 1\n",
        new="            membership.generation += 1\n",
        killers=("tests/streams/test_transactions_unfinished.py -k power_loss_took",),
    ),
    Mutant(
        name="reset-keeps-owners",
        promise="after a reset members go on from the new positions",
        file="headwater/embedded/group.py",
        old=("            for partition in positions:\n                membership.owners.pop(partition, None)\n"),
        new="",
        killers=("tests/streams/test_group.py -k directory",),
    ),
    Mutant(
        name="transaction-of-a-lost-partition",
        promise="a transaction does not commit positions of a partition that is another member's by now",
        file="headwater/embedded/group.py",
        old="                if membership.owners.get(partition) != member_id\n                or (known",
        new="                if (known",
        killers=("tests/streams/test_group.py -k directory", "tests/streams/test_transactions.py -k directory"),
    ),
    Mutant(
        name="dead-members-keep-partitions",
        promise="a dead member's partitions go to others",
        file="headwater/embedded/group.py",
        old="                if other != member_id and not self._lives(other, oldest):\n",
        new="                if other != member_id and not other:\n",
        killers=("tests/streams/test_group_processes.py", "tests/streams/test_group.py -k directory"),
    ),
    Mutant(
        name="groups-with-members-expire",
        promise="a group with a living member is not forgotten",
        file="headwater/embedded/group.py",
        old="            known = self.committed() if len(dead) == len(membership.members) else {}\n",
        new="            known = self.committed()\n",
        killers=("tests/streams/test_group.py -k directory", "tests/streams/test_steward.py -k directory"),
    ),
    Mutant(
        name="two-readers-of-a-partition",
        promise="a partition has one reader in a group at a time",
        file="headwater/streams/membership.py",
        old="            self.owners.setdefault(partition, member_id)\n",
        new="            self.owners[partition] = member_id\n",
        killers=("tests/streams/test_membership.py", "tests/streams/test_group.py -k directory"),
    ),
    Mutant(
        name="unread-records-deleted",
        promise="retention keeps what a group has not read yet",
        file="headwater/embedded/cleaning.py",
        old="        return min(self.readers.values(), default=None)\n",
        new="        return None\n",
        killers=("tests/streams/test_steward.py -k directory",),
    ),
    Mutant(
        name="unfinished-transactions-left",
        promise="a steward finishes transactions whose program died after deciding",
        file="headwater/embedded/cleaning.py",
        old="            finished = self._store.roll_forward(dry_run=self._dry_run)\n",
        new="            finished = 0\n",
        killers=("tests/streams/test_steward.py -k directory", "tests/streams/test_transactions_unfinished.py"),
    ),
    Mutant(
        name="dry-run-forgets-groups",
        promise="a dry run changes nothing",
        file="headwater/embedded/group.py",
        old="            if not dry_run:\n                for member_id in dead:",
        new="            if dead or not dry_run:\n                for member_id in dead:",
        killers=("tests/streams/test_group_processes.py -k dry_run",),
    ),
    Mutant(
        name="keys-scattered",
        promise="records with the same key go to the same partition in every process and language",
        file="headwater/streams/routing.py",
        old="% partitions",
        new="% max(partitions - 1, 1)",
        killers=("tests/streams/test_producer.py -k directory", "tests/streams/test_topics.py -k directory"),
    ),
    Mutant(
        name="damaged-decisions-believed",
        promise="a damaged decision of a transaction is not carried out",
        file="headwater/embedded/decision.py",
        old="            if magic != _MAGIC or len(content) != size or crc32c(content) != checksum:\n",
        new="            if magic != _MAGIC or len(content) != size:\n",
        killers=("tests/streams/test_transactions_unfinished.py -k damaged_decision",),
    ),
    Mutant(
        name="pending-lost-at-exit",
        promise="the end of a program writes what is pending",
        file="headwater/streams/producer.py",
        old="atexit.register(_write_at_exit)\n",
        new="",
        killers=("tests/streams/test_exit.py",),
    ),
    Mutant(
        name="child-writes-its-parents-records",
        promise="what is pending at a fork is written by the parent alone",
        file="headwater/streams/producer.py",
        old=("        self._batches = [Batch(number) for number in range(self._count)]\n        self._closed = True\n"),
        new="        self._closed = False\n",
        killers=("tests/streams/test_exit.py",),
    ),
    Mutant(
        name="receipts-lock-held-in-children",
        promise="a forked child can wait for receipts",
        file="headwater/streams/receipt.py",
        old=(
            "os.register_at_fork(before=_waiting.acquire, after_in_parent=_waiting.release,"
            " after_in_child=_waiting.release)\n"
        ),
        new="",
        killers=("tests/log/test_fork.py -k receipts",),
    ),
)
