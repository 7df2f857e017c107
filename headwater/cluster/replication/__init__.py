"""Replication of a partition: leading, following, and the repair of damaged replicas."""
