"""Maintenance of a partition: retention, compaction, scrubbing and checks."""
