"""The backend of a broker in a cluster."""

from __future__ import annotations

import asyncio

from headwater.broker.clustered.administration import ClusterAdministration, go_by_cluster
from headwater.broker.clustered.catalog import ClusterCatalog
from headwater.broker.clustered.groups import CoordinatedGroups
from headwater.broker.clustered.history import ClusterHistory
from headwater.broker.clustered.logs import ReplicatedLogs
from headwater.broker.clustered.operations import ClusterOperations
from headwater.broker.clustered.peers import Peers
from headwater.broker.clustered.polling import ClusterPolling
from headwater.broker.clustered.reading import LeadersReader
from headwater.broker.clustered.transactions import ClusterTransactions
from headwater.broker.groups import Groups
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import Access
from headwater.broker.security.secrets import Secrets
from headwater.broker.waiting_reader import NoGroups, WaitingReader
from headwater.cluster.control.automatic_moves import AutomaticMoves
from headwater.cluster.control.growing import Growing
from headwater.cluster.internal import INTERNAL
from headwater.cluster.node import ClusterNode
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.log.clock import REAL_CLOCK
from headwater.streams.scrubber import Scrubber


class ClusteredBackend:
    """Serves the replicas that this broker leads, and speaks for the whole cluster. See `Backend`."""

    reserved_topics = INTERNAL

    def __init__(self, runtime: Runtime, node: ClusterNode, config: BrokerConfig, access: Access) -> None:
        """Raises StoreError if the store of the node has groups of its own."""
        self.node = node
        self._config = config
        self._access = access
        self.ready = False
        self.secrets = Secrets(b"")
        peers = Peers(node)
        self.logs = ReplicatedLogs(runtime, node, peers)
        self.catalog = ClusterCatalog(runtime, node, config.replication)
        self.leaders_reader = LeadersReader(runtime, node, peers, WaitingReader(runtime, self.logs, NoGroups()))
        polling = ClusterPolling(self.leaders_reader)
        self.group_home = CoordinatedGroups(runtime, node, peers, polling, config.session_timeout)
        self.groups = Groups(runtime, self.group_home, config, access)
        self.transactions = ClusterTransactions(
            runtime, node, peers, self.group_home, self.groups.rules, lambda: self.secrets
        )
        self.operations = ClusterOperations(runtime, node, peers)
        self.administration = ClusterAdministration(node)
        self.history = ClusterHistory(runtime, node, self.group_home, self.operations)

    def is_peer(self, password: str) -> bool:
        """See Backend."""
        return self.node.is_broker(password)

    async def start(self, address: Address) -> None:
        """See Backend."""
        node = self.node
        if self._config.steward:
            node.begin(self.history.keep())
        node.begin(self.group_home.sweep())
        await node.start(str(address))
        self.secrets = Secrets(node.membership.registration.secret)
        go_by_cluster(node, self._access)
        self.ready = True
        node.begin(Growing(node, self._config.replication).run())
        node.begin(node.replication_factors.run())
        config = self._config
        automatic = AutomaticMoves(
            node,
            replica_timeout=config.replica_timeout,
            least_brokers=config.replica_min_brokers,
            rebalance=config.auto_rebalance,
        )
        node.begin(automatic.run())
        # A node has replicas and no steward. Damage that the scrubber finds is repaired from other brokers.
        self.operations.scrubber = Scrubber(node.store.open_partitions, node.store.defaults.steward, REAL_CLOCK)
        if self._config.steward:
            self.operations.scrubber.start()

    async def drain(self) -> None:
        """See Backend."""
        await self.node.drain()

    async def stop(self) -> None:
        """See Backend."""
        if self.operations.scrubber is not None:
            await asyncio.to_thread(self.operations.scrubber.stop)
        await self.node.leave()
