"""The tests. A package, so that `python -m tests.faults` works from the root of the repository."""

import os

from tests.support.spark_classes import environment

# For every Spark that a test starts, by itself or through a program.
for name, value in environment().items():
    os.environ.setdefault(name, value)
