"""Writing to a partition: the writer, group commits, syncing, and the producers that are known."""
