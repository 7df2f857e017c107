"""The backend of a broker that is in no cluster."""

from __future__ import annotations

import asyncio
import logging

from headwater.broker.groups import Groups
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import Access
from headwater.broker.security.secrets import Secrets
from headwater.broker.standalone.catalog import StandaloneCatalog
from headwater.broker.standalone.groups import StoredGroups
from headwater.broker.standalone.logs import StandaloneLogs
from headwater.broker.standalone.operations import NoCluster, StandaloneOperations
from headwater.broker.standalone.transactions import StoreTransactions
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.streams.store import Store

_log = logging.getLogger(__name__)


class StandaloneBackend:
    """Serves a store of its own. See `Backend`."""

    ready = True
    reserved_topics: frozenset[str] = frozenset()

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        config: BrokerConfig,
        access: Access,
        secrets: Secrets,
        address: Address,
    ) -> None:
        """Clients reach the broker at `address`."""
        self._store = store
        self._config = config
        self.secrets = secrets
        self.logs = StandaloneLogs(runtime, store)
        self.catalog = StandaloneCatalog(runtime, store, config.broker_id or 0, address)
        home = StoredGroups(runtime, store)
        self.groups = Groups(runtime, home, config, access)
        self.transactions = StoreTransactions(runtime, store, secrets, self.groups.rules)
        self.operations = StandaloneOperations(runtime, store)
        self.administration = NoCluster()
        self._home = home
        self._sweeping: asyncio.Task[None] | None = None

    def is_peer(self, password: str) -> bool:  # noqa: ARG002
        """No: there are no other brokers."""
        return False

    async def start(self, address: Address) -> None:  # noqa: ARG002
        """See Backend."""
        steward = self._store.steward()
        self.operations.steward = await asyncio.to_thread(steward.start) if self._config.steward else steward
        self._sweeping = asyncio.create_task(self._home.sweep())
        self._sweeping.add_done_callback(_tell_end)

    async def drain(self) -> None:
        """Nobody else could lead."""

    async def stop(self) -> None:
        """See Backend."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self.operations.steward is not None:
            await asyncio.to_thread(self.operations.steward.stop)


def _tell_end(task: asyncio.Task[None]) -> None:
    """Log the end of background work, which should never end by itself."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("a background task of the broker has failed and is not running any more", exc_info=task.exception())
