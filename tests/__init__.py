"""The tests. A package, so that `python -m tests.faults` works from the root of the repository."""

import os
from pathlib import Path

# For every Spark that a test starts, by itself or through a program.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))
