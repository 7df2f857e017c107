"""`python -m tests.support.forking_client ADDRESS DIRECTORY KIND`: fork while a broker's clients are in use or garbage.

At each fork a thread is in the middle of every call, as one of gRPC may be. The child opens an embedded store, appends,
reads, collects its garbage and ends. If it does not end, it prints its stacks. `KIND` says what the parent has at the
fork: `used` clients, which the child leaves alone; `closed` by the child, though they are the parent's; `dropped` by
the child; or `garbage`, which nobody has collected yet.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

import headwater as hw
from tests.support.patience import Patience

FORKS = 3
CLIENTS = 2
PATIENCE = 60.0


class Client:
    """A producer and a consumer behind a broker that are at work, in a circle of references."""

    def __init__(self, address: str) -> None:
        self.store = hw.open(f"hw://{address}")
        self.producer = self.store.producer("busy", linger=0.0)
        self.consumer = self.store.consumer("busy", group=f"group-{id(self)}")
        self.circle: Client | None = self
        self.consumer.poll(timeout=0.01)

    def work(self) -> None:
        """Have something on its way in both directions."""
        for _ in range(20):
            self.producer.send(b"x" * 100)
        self.consumer.poll(timeout=0)

    def close(self) -> None:
        for handle in (self.consumer, self.producer, self.store):
            handle.close()


@contextmanager
def in_the_middle_of_calls() -> Iterator[None]:
    """Have a thread that holds the lock of every call that there is, in use or garbage."""
    calls = [item for item in gc.get_objects() if isinstance(item, grpc.Call) and hasattr(item, "_state")]
    assert calls, "no call is under way"
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            while calls:
                stack.enter_context(calls.pop()._state.condition)
            holds.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def live(directory: Path) -> None:
    """In a child: use an embedded store, and collect what the parent left behind."""
    with hw.open(directory) as store:
        store.create_topic("own")
        with store.producer("own") as producer:
            receipt = producer.send(b"value")
            producer.sync()
            assert receipt.offset == 0
        gc.collect()
        assert [record.value for record in store.topic("own").recent()] == [b"value"]


def fork(directory: Path, clients: list[Client], kind: str) -> int:
    """The pid of a child that lives its life and ends."""
    parent = os.getpid()
    with in_the_middle_of_calls():
        pid = os.fork()
        if os.getpid() == parent:
            return pid
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        if kind == "closed":
            for client in clients:
                client.close()
        if kind == "dropped":
            while clients:
                clients.pop().circle = None
        live(directory)
        if kind == "garbage":
            os._exit(0)
        clients.clear()
        sys.exit(0)  # as a program ends, with all that the interpreter cleans up


def await_end(pid: int) -> int:
    """The exit code of a child, which is killed if it does not end."""

    def has_ended() -> bool:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    if not Patience(PATIENCE, pid).until(has_ended):
        os.kill(pid, signal.SIGUSR1)
        Patience(1.0).until(has_ended)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(address: str, directory: Path, kind: str) -> None:
    """Fork a few times, and fail if a child does."""
    gc.disable()
    with hw.open(f"hw://{address}") as store:
        store.create_topic("busy", partitions=2)
    for number in range(FORKS):
        clients = [Client(address) for _ in range(CLIENTS)]
        for client in clients:
            client.work()
        if kind == "garbage":
            del client
            clients = []
        code = await_end(fork(directory / str(number), clients, kind))
        if code:
            sys.exit(f"child {number} ended with {code}")
        for client in clients:
            client.work()  # the parent is not disturbed


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
