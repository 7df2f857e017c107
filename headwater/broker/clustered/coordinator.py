"""The coordinator of some groups of a cluster: their rules over a replicated log. It has no files of its own.

Decisions are noted, and notes are appended to the log. The rules go on with a decision at once; but nobody is told
anything that rests on what is not acknowledged yet, be it an answer, an error or a look. So the next coordinator, from
the log alone, knows everything that anybody was told.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from headwater.broker.sessions import MemorySessions
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.internal import InternalLog, Record
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.deciding import Decider, Note
from headwater.cluster.transactions.transaction_log import TransactionLog
from headwater.core.errors import HeadwaterError
from headwater.core.options import MIB
from headwater.log import Appended
from headwater.log.clock import Clock
from headwater.streams.group import FORGOTTEN, TopicKey
from headwater.streams.membership import Membership
from headwater.streams.position import Position
from headwater.streams.topic import TopicPartition

_R = TypeVar("_R")
_log = logging.getLogger(__name__)
_SNAPSHOT_BYTES: Final = 8 * MIB
"""When a log has grown to this, and to twice its last snapshot, everything is written anew and the rest removed."""
_MEMBERS: Final = b"m"
_POSITION: Final = b"p"
_TRANSACTION: Final = b"t"
_KEY: Final = struct.Struct(">c16sI")
"""The key of a position begins with this: its kind, the topic, the partition. The group's name follows."""
_VALUE: Final = struct.Struct("<Qqqq")

Tell = Callable[[Any], None]
"""Takes the outcome of a rule: what it returned, or the exception that it raised."""


class LoggedSessions(MemorySessions):
    """A group of a cluster: in memory, with a note of every change for the log."""

    def __init__(self, name: str, clock: Clock, note: Callable[[bytes, bytes | None], None], *, timeout: float) -> None:
        super().__init__(name, clock, timeout=timeout)
        self._note = note

    def restore(self, document: dict[str, Any] | None, positions: dict[TopicKey, Position]) -> None:
        """Be as the log says. Every member has a whole session's time, from now on, to be heard."""
        self._membership = Membership() if document is None else Membership.from_dict(document)
        self._positions = positions
        timeouts = {} if document is None else document["timeouts"]
        for member_id in self._membership.members:
            self._begin_life(member_id)
            self._sessions[member_id].timeout = timeouts.get(member_id, self._timeout)

    def begin_session(self, member_id: str, timeout: float) -> None:
        """A member has joined that may be silent for so long."""
        super().begin_session(member_id, timeout)
        self._note_members()

    @property
    def empty(self) -> bool:
        """True if there is nothing to remember of it."""
        return not self._membership.members and not self._positions

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with self._mutex:
            before = self._membership.to_dict()
            try:
                yield self._membership
            finally:
                if self._membership.to_dict() != before:
                    self._note_members()

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        if offset == FORGOTTEN:
            self._unset(key)
            return
        super()._set(key, offset, generation, before)
        self._note(*self._position_record(key))

    def _unset(self, key: TopicKey) -> None:
        super()._unset(key)
        self._note(self._position_key(key), None)

    # As records.

    def _note_members(self) -> None:
        self._note(*self._members_record())

    def _members_record(self) -> Record:
        timeouts = {key: self._sessions[key].timeout for key in self._membership.members if key in self._sessions}
        return _MEMBERS + self.name.encode(), json.dumps(self._membership.to_dict() | {"timeouts": timeouts}).encode()

    def _position_key(self, key: TopicKey) -> bytes:
        return _KEY.pack(_POSITION, *key) + self.name.encode()

    def _position_record(self, key: TopicKey) -> Record:
        position = self._positions[key]
        return self._position_key(key), _VALUE.pack(
            position.sequence, position.offset, position.committed_ns, position.generation
        )

    def records(self) -> list[Record]:
        """All of the group as it is."""
        return [self._members_record(), *(self._position_record(key) for key in self._positions)]

    def forget(self) -> None:
        """There is no such group any more."""
        self._note(_MEMBERS + self.name.encode(), None)


class Coordinator:
    """The groups of one partition, in one epoch of its leader."""

    def __init__(self, clock: Clock, timeout: float, epoch: int = 0) -> None:
        """`timeout` is what members get that do not ask for another one, in seconds."""
        self.transaction_log = TransactionLog(epoch)
        """The transactions of consumers."""
        self._clock = clock
        self._timeout = timeout
        self.groups: dict[str, LoggedSessions] = {}
        self.noted = 0
        """The number of records that were noted in this epoch."""
        self._acknowledged = 0
        self._notes: list[Record] = []
        self._untold: deque[tuple[int, Any, Tell]] = deque()
        self._serving = False

    # A life.

    def replay(self, records: list[Record]) -> None:
        """Take in everything that was acknowledged before; from now on it serves."""
        members: dict[str, dict[str, Any]] = {}
        positions: dict[str, dict[TopicKey, Position]] = {}
        for key, value in records:
            if key.startswith(_MEMBERS):
                name = key[len(_MEMBERS) :].decode()
                members.pop(name, None)
                if value is not None:
                    members[name] = json.loads(value)
            elif key.startswith(_POSITION):
                _, topic, partition = _KEY.unpack_from(key)
                known = positions.setdefault(key[_KEY.size :].decode(), {})
                known.pop((topic, partition), None)
                if value is not None:
                    known[topic, partition] = Position(topic, partition, *_VALUE.unpack(value))
            elif key == _TRANSACTION and value is not None:
                self.transaction_log.take([value])
        for name in sorted(members.keys() | positions.keys()):
            group = self._new(name)
            group.restore(members.get(name), positions.get(name, {}))
            if not group.empty or name in members:
                self.groups[name] = group
        self._serving = True

    def end(self) -> None:
        """Another one coordinates, or may do so: nobody is told anything any more but that."""
        self._serving = False
        untold, self._untold = self._untold, deque()
        for _, _, tell in untold:
            tell(NotLeading())

    # Serving.

    def group(self, name: str) -> LoggedSessions:
        """A group, made if need be."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = self._new(name)
        return group

    def _new(self, name: str) -> LoggedSessions:
        return LoggedSessions(name, self._clock, self._note, timeout=self._timeout)

    def _note(self, key: bytes, value: bytes | None) -> None:
        self._notes.append((key, value))
        self.noted += 1

    def note_transaction(self, record: bytes) -> None:
        """Note what has changed of the transactions."""
        self._note(_TRANSACTION, record)

    def do(self, rule: Callable[[], Any], tell: Tell) -> None:
        """Apply a rule to the groups. `tell` gets its outcome, when all that it rests on is acknowledged."""
        if not self.serves():
            tell(NotLeading())
            return
        try:
            outcome = rule()
        except Exception as error:  # noqa: BLE001 - told like every other outcome
            outcome = error
        if not self._untold and self.may_tell(self.noted):
            tell(outcome)
        else:
            self._untold.append((self.noted, outcome, tell))

    def serves(self) -> bool:
        """Return whether it has replayed the log, and nothing has happened since that ends it."""
        return self._serving

    def may_tell(self, noted: int) -> bool:
        """Return whether an outcome that rests on so many notes may be told."""
        return self._acknowledged >= noted

    def take(self) -> list[Record]:
        """Take the notes that are to be appended, in their order."""
        notes, self._notes = self._notes, []
        return notes

    def acknowledge(self, noted: int) -> None:
        """So many notes are in the log for good."""
        self._acknowledged = max(self._acknowledged, noted)
        while self._untold and self.may_tell(self._untold[0][0]):
            _, outcome, tell = self._untold.popleft()
            tell(outcome)

    def forget_empty(self) -> None:
        """Forget groups of which there is nothing to remember."""
        for name in [name for name, group in self.groups.items() if group.empty]:
            self.groups.pop(name).forget()

    def snapshot(self) -> None:
        """Note everything as it is: what is in the log before that is needed no more."""
        for group in self.groups.values():
            for record in group.records():
                self._note(*record)
        self.note_transaction(self.transaction_log.snapshot())


class Coordination:
    """A coordinator at work: its notes go to the log, and its answers wait for that. For the event loop."""

    def __init__(self, log: InternalLog, rules: Coordinator, tell: Callable[[str], None]) -> None:
        """`tell` is called with the names of groups that are to be looked at again."""
        self._log = log
        self._tell = tell
        self.rules = rules
        self.decider: Decider | None = None
        """Decides over transactions of consumers."""
        self._enough = _SNAPSHOT_BYTES
        self._shrinking: asyncio.Task[None] | None = None

    @property
    def partition(self) -> TopicPartition:
        """The partition of the internal topic."""
        return self._log.partition

    @property
    def key(self) -> PartitionKey:
        """The same, with the topic's uuid in place of its name."""
        return self._log.key

    @property
    def good(self) -> bool:
        """True if it serves, as far as is known here."""
        return self._log.good and self.rules.serves()

    def replay(self, records: list[Record]) -> None:
        """Take in what the log has, and begin to serve."""
        self.rules.replay(records)
        if self.decider is not None:
            self.decider.begin()

    def end(self) -> None:
        """Serve no more. Callers that wait for a change here go elsewhere."""
        self.rules.end()
        if self.decider is not None:
            self.decider.end()
        for name in self.rules.groups:
            self._tell(name)

    async def do(self, rule: Callable[[], _R]) -> _R:
        """Apply a rule; returns, or raises, what came of it when everybody may know. Raises NotLeading."""
        return await self._begin(rule)

    def write(self, work: Callable[[Note], Any]) -> asyncio.Future[Any]:
        """Apply a rule that notes something of transactions as well, at once."""
        return self._begin(lambda: work(self.rules.note_transaction))

    def _begin(self, rule: Callable[[], _R]) -> asyncio.Future[_R]:
        future: asyncio.Future[_R] = asyncio.get_running_loop().create_future()

        def tell(outcome: Any) -> None:
            if future.done():
                return  # nobody waits for it any more
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
                future.exception()  # a caller that waits is told; where nobody does, nobody misses it
            else:
                future.set_result(outcome)

        self.rules.do(rule, tell)
        self._write()
        return future

    def _write(self) -> None:
        notes = self.rules.take()
        if notes:
            noted = self.rules.noted
            self._log.append(notes).add_done_callback(lambda done: self._written(done, noted))

    def _written(self, done: asyncio.Future[Appended], noted: int) -> None:
        if done.cancelled() or done.exception() is not None:
            self.end()
            return
        self.rules.acknowledge(noted)
        if self._log.bytes > self._enough and (self._shrinking is None or self._shrinking.done()):
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        """Write everything anew, and remove what was before it."""
        try:
            await self.do(self.rules.forget_empty)
            before = self._log.bytes
            self.rules.snapshot()
            notes, noted = self.rules.take(), self.rules.noted
            appending = self._log.append(notes)
            appending.add_done_callback(lambda done: self._written(done, noted))
            appended = await appending
            await self._log.forget(appended.base_offset)
            self._log.bytes -= before
            self._enough = max(_SNAPSHOT_BYTES, 2 * self._log.bytes)
        except NotLeading:
            return
        except (HeadwaterError, OSError) as error:
            _log.error("%s cannot be made smaller: %s", self.partition, error)

    async def confirm(self) -> None:
        """Return when it is sure that nobody else has coordinated meanwhile; raises NotLeading."""
        await self._log.confirm()
