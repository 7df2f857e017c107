"""Records from this process to another one, and how long that takes until the other has acknowledged them all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from shutil import which
from time import perf_counter
from typing import Any, Final

PATIENCE: Final = 120
"""Seconds after which a process that does not answer has failed."""

spawn: Final = multiprocessing.get_context("spawn")

Consume = Callable[[Connection], None]
"""Runs in the other process: says "ready", reads everything, says "done"."""


def installed(package: str, program: str | None = None) -> bool:
    """Return whether a peer is there to be measured."""
    return find_spec(package) is not None and (program is None or which(program) is not None)


def transfer(number: int, produce: Callable[[], None], consume: Consume) -> float:
    """The seconds for each record, from the first one sent here until the other process has acknowledged them all."""
    receiver, sender = spawn.Pipe(duplex=False)
    consumer = spawn.Process(target=consume, args=(sender,))
    consumer.start()
    answer(receiver)
    started = perf_counter()
    produce()
    answer(receiver)
    seconds = perf_counter() - started
    consumer.join()
    return seconds / number


def answer(receiver: Connection) -> Any:
    """Return the next message of the other process."""
    if not receiver.poll(PATIENCE):
        raise TimeoutError("the other process does not answer")
    return receiver.recv()
