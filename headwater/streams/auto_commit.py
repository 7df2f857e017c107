"""Automatic commits: when a consumer that acknowledges by itself commits what is done."""

from __future__ import annotations

import time

from headwater.core.config import ConsumerConfig


class AutoCommit:
    """Tells when the next commit of a poll is due: by a number of records, or by the time since the first of them.

    Without such options every poll commits. Not thread-safe.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._records = config.auto_commit_records
        self._interval = config.auto_commit_interval
        self.every_poll = self._records is None and self._interval is None
        """True if every poll commits."""
        self._since: float | None = None
        """The time at which there was something to commit for the first time since the last commit."""

    def is_due(self, uncommitted: int) -> bool:
        """Return whether so many records are to be committed now. If so, the time begins anew."""
        if not uncommitted:
            self._since = None
            return False
        if self._since is None:
            self._since = time.monotonic()
        due = (self._records is not None and uncommitted >= self._records) or self.patience() <= 0
        if due:
            self._since = None
        return due

    def patience(self) -> float:
        """Return the seconds until a commit is due by its time; infinity if nothing waits for that."""
        if self._interval is None or self._since is None:
            return float("inf")
        return self._since + self._interval - time.monotonic()
