"""`hw broker` and `hw console`."""
