"""Recovery of a partition: what a crash or damage has left, found, reported and repaired."""
