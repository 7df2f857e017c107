"""The broker: serves a store over gRPC, to any number of clients."""

from headwater.broker.broker import Broker
from headwater.broker.security.access import OPEN, Access, Caller

__all__ = ["OPEN", "Access", "Broker", "Caller"]
