"""The cluster: its brokers, who leads what, who is in sync, and how far the others are behind."""

from __future__ import annotations

from typing import Any

from headwater.console.asked import Asked
from headwater.errors import HeadwaterError
from headwater.store.directory_store import DirectoryStore


def shown_cluster(asked: Asked) -> dict[str, Any]:
    """What `hw cluster status` shows, `hw broker status` for a broker on its own, or that there is no broker."""
    store = asked.store
    if isinstance(store, DirectoryStore) or not str(store).startswith("hw://"):
        return {"kind": "embedded", "where": str(store)}
    from headwater.cli.cluster_status import look
    from headwater.client.store import RemoteStore
    from headwater.v1 import broker_pb2 as pb

    assert isinstance(store, RemoteStore)
    connection = store.leaders.connection
    if store.leaders.clustered:
        return {"kind": "cluster"} | look(connection.addresses, connection.credentials)
    document: dict[str, Any] = {"kind": "broker", "where": str(store), "problem": None, "status": None}
    try:
        found = connection.call("GetStatus", pb.GetStatusRequest())
    except HeadwaterError as error:
        document["problem"] = str(error)
    else:
        document["status"] = {
            field.name: getattr(found, field.name) for field in found.DESCRIPTOR.fields if field.name != "unhealthy"
        } | {"unhealthy": list(found.unhealthy), "started": found.started_ns / 1e6}
    return document
