"""The broker: serves a store over gRPC, to any number of clients."""

from headwater.broker.access import OPEN, Access, Caller
from headwater.broker.broker import Broker

__all__ = ["OPEN", "Access", "Broker", "Caller"]
