"""The cluster, first of all as a model."""
