"""The client: a store behind a broker. `headwater.open("hw://host:6174")` gives one; this package needs gRPC."""
