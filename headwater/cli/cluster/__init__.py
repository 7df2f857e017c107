"""`hw cluster`."""
