"""`kill -9` of a broker under load: producers and consumers go on when it is back, and nothing is lost or doubled.

The broker dies at any moment, or right before, within or after a write or a sync that it makes: then what was appended
is in the log and nobody was answered, so producers send it again. Its clients are not told of anything, and none of
them may fail. In half of the runs nothing is sent for being small: frames are read from the files of the broker, and
reach it by memory that it lends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import headwater as hw
from headwater.log.files.disk import REAL_DISK
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, SignallingDisk, failures
from tests.faults.kill_senders import send
from tests.faults.kill_writers import THREADS
from tests.faults.streams import STORE, TOPIC, Reader, verify
from tests.support.patience import Patience
from tests.support.ports import free_port

SENDERS = 2
READERS = 2
PARTITIONS = 3
PATIENCE = 60.0
"""Everyone has so many seconds to go on after the last kill."""


def as_usual() -> None:
    """Change nothing before a process begins, in half of the runs."""


def nothing_is_small() -> None:
    """In the other half, have small frames shared too, which would be sent otherwise."""
    from headwater.broker import arrivals
    from headwater.client import sender

    vars(arrivals)["SMALL"] = vars(sender)["_WORTH_BORROWING"] = 0


def serve(directory: Path, port: int, moment: tuple[int, str] | None) -> None:
    """A broker, until it is killed; at a moment of its own choosing if one is given."""
    from headwater.broker import Broker
    from headwater.core.address import Address
    from headwater.core.config import BrokerConfig
    from headwater.embedded.directory_store import DirectoryStore

    disk = REAL_DISK if moment is None else SignallingDisk(*moment, signal.SIGKILL, lambda: None)
    store = DirectoryStore(directory / STORE, disk=disk, exclusive=True)
    Broker(store, BrokerConfig(session_timeout=2.0), listen=Address("127.0.0.1", port)).start()
    while True:
        time.sleep(1)


def read(directory: Path, name: str, address: str, seed: str) -> None:
    """A consuming process, the only member of its group."""
    reader = Reader(hw.open(address, client=hw.ClientConfig(heartbeat=0.5)), name, directory, Random(seed))
    while True:
        reader.poll(timeout=0.1)


def crew_of(run: Run, address: str, before: Callable[[], None] = as_usual) -> dict[str, Child]:
    """Senders and readers, started, each of which does something before it begins."""
    roles = {f"sender{number}": send for number in range(SENDERS)} | {
        f"reader{number}": read for number in range(READERS)
    }
    crew: dict[str, Child] = {}
    for name, role in roles.items():
        seed = str(run.random.random())
        body = _Role(before, role, run.directory, name, address, seed)
        crew[name] = Child(body, run.directory / f"{name}.error")
    return crew


class _Role:
    def __init__(self, before: Callable[[], None], role: object, *arguments: object) -> None:
        self._before = before
        self._role = role
        self._arguments = arguments

    def __call__(self) -> None:
        assert callable(self._role)
        self._before()
        self._role(*self._arguments)


def all_go_on(directory: Path) -> Iterator[Violation]:
    """Check that everyone gets something done from now on, or begins at all."""
    names = [f"sender{number}{thread}.sent" for number in range(SENDERS) for thread in range(THREADS)]
    names += [f"reader{number}.read" for number in range(READERS)]
    before = {name: _size(directory / name) for name in names}
    patience = Patience(PATIENCE)
    waiting = set(names)
    while waiting and not patience.exhausted() and not list(directory.glob("*.error")):
        time.sleep(0.02)
        waiting = {name for name in waiting if _size(directory / name) <= before[name]}
    for name in sorted(waiting):
        yield Violation(Kind.BLOCKED, f"{name} did not grow for {PATIENCE:g} s although the broker served")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 1  # a journal begins with the end of a line


@proof(
    row=15,
    title="a broker is killed, between append and answer too, while producers retry and consumers go on",
    runs=1000,
    quick=2,
    timeout=300.0,
)
def broker_kills(run: Run) -> Iterator[Violation]:
    """Serve, kill and serve again while everyone works, kill everyone, and read the topic."""
    with hw.open(run.directory / STORE) as store:
        mode = run.random.choice(("always", "never", 0.05))
        store.create_topic(TOPIC, partitions=PARTITIONS, sync=mode, segment_bytes=256 * 1024, index_interval=1024)
    port = free_port()
    kills = 2 if run.quick else 5
    before = nothing_is_small if run.random.random() < 0.5 else as_usual

    def broker(moment: tuple[int, str] | None) -> Child:
        body = _Role(before, serve, run.directory, port, moment)
        return Child(body, run.directory / "broker.error")

    serving = broker(None)
    crew = crew_of(run, f"hw://127.0.0.1:{port}", before)
    try:
        yield from all_go_on(run.directory)
        for kill in range(kills):
            serving.kill()
            last = kill == kills - 1
            moment = (run.random.randint(5, 300), run.random.choice(("before", "within", "after")))
            serving = broker(None if last else moment)
            if not last:
                serving.ended_within(
                    run.random.uniform(1.0, 6.0)
                )  # if it does not get so far, it is killed where it is
        yield from all_go_on(run.directory)
    finally:
        for child in crew.values():
            child.kill()
        serving.kill()
    yield from failures(run.directory)
    yield from verify(run.directory)
