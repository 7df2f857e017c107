"""The gRPC calls of a broker, a module for each part of the service."""
