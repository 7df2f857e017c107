"""Arrow's functions, imported when the first of them is used: that takes as long as half of Arrow itself.

So a command that lists topics, or the process in which Spark plans a stream, need not wait for them.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    function = globals()[name] = getattr(pyarrow.compute, name)
    return function
