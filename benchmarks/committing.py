"""A process that commits: consumers of one topic, each the only member of its group, each in a thread of its own."""

from __future__ import annotations

import sys
import threading
import time

import headwater as hw


def main(number: str, address: str, topic: str, groups: str, seconds: str) -> None:
    """Say that it is ready, wait for the word, commit for so long, and say how often that was."""
    ready, go = threading.Barrier(int(groups) + 1), threading.Event()
    counts: list[int] = []

    def commit(store: hw.Store, group: str) -> None:
        with store.consumer(topic, group=group) as inbox:
            while not inbox.poll_batches(timeout=1.0):
                pass
            ready.wait()
            go.wait()
            count, until = 0, time.perf_counter() + float(seconds)
            while time.perf_counter() < until:
                count += 1
                inbox.ack_range(topic, 0, 0, count)
                inbox.commit()
            counts.append(count)

    with hw.open(address) as store:
        threads = [
            threading.Thread(target=commit, args=(store, f"{topic}-{number}-{group}")) for group in range(int(groups))
        ]
        for thread in threads:
            thread.start()
        ready.wait()
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        go.set()
        for thread in threads:
            thread.join()
    print(sum(counts))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
