"""`hw tour`."""
