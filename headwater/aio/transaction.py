"""Transactions in an event loop: `async with store.transaction(inbox) as t`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Protocol, Self

from headwater.aio.opening import Opening
from headwater.aio.producer import Producer
from headwater.aio.threads import Threads, Unwanted
from headwater.core.config import ProducerConfig
from headwater.streams.store import Store
from headwater.streams.transaction import Transaction as SyncTransaction


class InTurn(Protocol):
    """Runs something in a thread, when it is its turn."""

    async def __call__(self, work: Any, unwanted: Unwanted[Any] | None = None) -> Any: ...


class Transaction:
    """A block whose writes, and a consumer's progress, count together or not at all. For one task.

    Leaving the block commits; an error in it, or being cancelled, gives everything up, and the consumer goes back to
    where it was. A commit that is cancelled goes on, and `state` tells how it ended.
    """

    def __init__(self, transaction: SyncTransaction, store: Store, in_turn: InTurn, threads: Threads) -> None:
        self._transaction = transaction
        self._store = store
        self._in_turn = in_turn
        self._threads = threads

    @property
    def state(self) -> Literal["open", "committed", "aborted", "repeated"]:
        """Repeated: this writer has committed this sequence before, and that one counts."""
        return self._transaction.state

    @property
    def generation(self) -> int:
        """The generation of the consumer's group in which its positions were set; 0 before, and without a consumer."""
        return self._transaction.generation

    def producer(self, topic: str, *, config: ProducerConfig | None = None, **options: Any) -> Opening[Producer]:
        """A producer whose records are part of this transaction. Options are those of ProducerConfig, by name.

        Receipts tell their offsets once the transaction is committed: await them after the block.
        """

        def make() -> Producer:
            chosen = self._store.producer_config(config, options)
            made = Producer(self._store.topic(topic), chosen, self._threads, self._transaction.appender)
            self._store.look_after(self._transaction.look_after(made.buffer))
            return made

        return Opening(lambda: self._threads.run(make, lambda unused: unused.buffer.close()))

    async def commit(self) -> None:
        """Decide and apply. When this returns, everything is durable and visible; see `headwater.Transaction`."""
        await self._in_turn(self._transaction.commit)

    async def abort(self) -> None:
        """Give everything up: nothing of it was ever visible. The consumer reads again what it has read here."""
        await self._in_turn(self._transaction.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_turn(lambda: self._transaction.__exit__(kind))
