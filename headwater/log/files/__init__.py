"""The files of a partition: segments, indexes, the list of segments, the state, locks and mappings."""
