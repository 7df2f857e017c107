"""The tests. A package, so that `python -m tests.faults` works from the root of the repository."""
