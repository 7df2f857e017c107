"""Ports: the interfaces that a backend implements for producers and consumers.

Nothing here is specific to a directory, to memory or to a network. Calls may block where their descriptions say so, and
raise HeadwaterError where a backend cannot do what it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from headwater.log import Bounds, Frame, Identity, Partition, StoredFrame

if TYPE_CHECKING:
    from headwater.streams.cursor import Cursor
    from headwater.streams.group import Commit, Group, TopicKey
    from headwater.streams.receipt import Outcome
    from headwater.streams.topic import Topic, TopicPartition


class Appender(Protocol):
    """A producer sends frames through it: to a partition at once, to a transaction's stage, or to a broker."""

    identity: Identity | None
    """The identity of the producer, as its frames carry it."""
    prompt: bool
    """Whether frames are where they belong when `append` returns, or only on their way there."""

    def room(self, partition: int, timeout: float) -> bool:
        """Wait until there is room for one more frame, at most `timeout` seconds; whether there is."""

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        """Write one frame. The outcome is told its place in the log as soon as it has one."""

    @property
    def pending(self) -> int:
        """How many records are on their way."""

    def settle(self) -> None:
        """Return when all frames that are on their way have arrived, or have failed."""

    def sync(self, topic: Topic) -> None:
        """Make what was written durable."""

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with the error of each frame that fails after `append` has returned."""

    def close(self) -> None:
        """Nothing more comes."""


class Wakeup(Protocol):
    """Wakes a consumer when there may be something to poll: a thread by `wait`, an event loop by `fileno`.

        def readable():
            if wakeup.drain():
                event.set()

        loop.add_reader(wakeup.fileno(), readable)

    The descriptor becomes readable when there may be something new, and now and then for nothing. `drain` tells which,
    and makes it unreadable again. Look for records after the first call of `fileno`, and each time that `drain`
    returns True: then nothing falls between.
    """

    @property
    def complete(self) -> bool:
        """Whether everything new wakes; if not, look in intervals."""

    def fileno(self) -> int:
        """A descriptor, the same one until `close`; -1 where there is none."""

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Block until `ready()`, at most `timeout` seconds; whether it was."""

    def drain(self) -> bool:
        """Forget the news so far; whether there were any."""

    def close(self) -> None:
        """Give the descriptors back. Closing twice does no harm."""


class Source(Protocol):
    """Where a cursor reads: a partition, or what was fetched of one."""

    def bounds(self) -> Bounds:
        """Which offsets can be read now."""

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:
        """Frames from the one that holds `offset` on."""


class Fetcher(Protocol):
    """One consumer reads and commits through it."""

    @property
    def watch(self) -> Wakeup:
        """Wakes the consumer when there may be something to poll."""

    def source(self, place: TopicPartition, key: TopicKey, partition: Partition) -> Source:
        """Where a new cursor reads."""

    def follow(self, cursors: Sequence[Cursor], group: Group | None) -> None:
        """Be woken by what is appended to these partitions, and by changes in the group."""

    def look(self, cursors: Sequence[Cursor], group: Group | None, member: str | None, *, patiently: bool) -> bool:
        """Before records are taken: see what there is for these cursors by now; whether that took a call.

        With `patiently`, the caller waits for news anyway, so nothing need be asked for.
        """

    def taken(self, cursors: Sequence[Cursor]) -> None:
        """After records were taken: fetch the next ones, while the caller handles these."""

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        """Whether there is something for one of these cursors."""

    def commit(
        self,
        group: Group,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: dict[TopicKey, int] | None,
        *,
        patiently: bool,
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        """Set positions of the group: which are set by now, and which were refused.

        With `patiently`, the result may arrive with a later call, which is given all that is not known to be set.
        """

    def finish_commits(self) -> None:
        """Block until no commit is on its way."""

    def close(self) -> None:
        """Give everything back."""
