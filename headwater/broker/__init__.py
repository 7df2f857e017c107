"""The broker: a store served over gRPC."""
