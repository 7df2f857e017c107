"""The cluster: brokers, leaders, in-sync replicas (ISR) and the lag of the others; or a broker on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.console.page_request import PageRequest
from headwater.core.errors import HeadwaterError
from headwater.streams.store import Store

if TYPE_CHECKING:
    from headwater.client.store import RemoteStore


def shown_cluster(request: PageRequest) -> dict[str, Any]:
    """Answer with `hw cluster status`, with `hw broker status` for a broker on its own, or that there is no broker."""
    store = _remote(request.store)
    if store is None:
        return {"kind": "embedded", "where": str(request.store)}
    from headwater.client.cluster_status import look
    from headwater.v1 import broker_pb2 as pb

    connection = store.leaders.connection
    if store.leaders.clustered:
        return {"kind": "cluster"} | look(connection.addresses, connection.credentials)
    document: dict[str, Any] = {"kind": "broker", "where": str(store), "problem": None, "status": None}
    try:
        status = connection.call("GetStatus", pb.GetStatusRequest())
    except HeadwaterError as error:
        document["problem"] = str(error)
    else:
        document["status"] = {
            field.name: getattr(status, field.name) for field in status.DESCRIPTOR.fields if field.name != "unhealthy"
        } | {"unhealthy": list(status.unhealthy), "started": status.started_ns / 1e6}
    return document


def clustered(store: Store) -> bool:
    """Return whether several brokers keep the store. Raises the error of a broker that cannot tell."""
    remote = _remote(store)
    return remote is not None and remote.leaders.clustered


def standing(store: Store) -> dict[str, Any] | None:
    """Return the brokers that are away and the partitions that lack a leader or replicas; None without a cluster."""
    remote = _remote(store)
    if remote is None or not remote.leaders.clustered:
        return None
    from headwater.client.cluster_status import standing_of
    from headwater.v1 import broker_pb2 as pb

    return standing_of(remote.leaders.connection.call("GetMetadata", pb.GetMetadataRequest()))


def _remote(store: Store) -> RemoteStore | None:
    """Return the store if it is behind a broker. An embedded store needs no packages for the network."""
    if not str(store).startswith("hw://"):
        return None
    from headwater.client.store import RemoteStore

    return store if isinstance(store, RemoteStore) else None
