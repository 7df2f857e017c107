"""The programs that `cluster_transactions` kills: they write to several partitions in transactions, over a cluster.

`python -m tests.faults.moving mover DIRECTORY ADDRESS` moves each record of a topic to two others, as a member of a
group. `python -m tests.faults.moving counter DIRECTORY ADDRESS` writes numbers to two topics under a name of its own,
and begins each life with what it may have done already. Both end when the directory has a file `stop`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import headwater as hw

SOURCE: Final = "orders"
OUTPUTS: Final = {"invoices": 3, "shipments": 2}
COUNTED: Final = {"left": 2, "right": 1}
GROUP: Final = "movers"
COUNTER: Final = "counter"


def move(directory: Path, store: hw.Store) -> None:
    """Each record that it reads becomes one in each of the outputs."""
    with store.consumer(SOURCE, group=GROUP, refresh_interval=0.2) as inbox:
        while not (directory / "stop").exists():
            with suppress(hw.StaleMember), store.transaction(inbox) as block:
                outputs = [block.producer(name) for name in OUTPUTS]
                for record in inbox.poll(40, timeout=0.05):
                    for output in outputs:
                        output.send(record.value, key=record.key)
                    inbox.ack(record)


def count(directory: Path, store: hw.Store) -> None:
    """Numbers in their order, each in a transaction of its number, which counts once however often it is tried."""
    noted = directory / "counted"
    number = int(noted.read_text() or 0) if noted.exists() else 0
    while not (directory / "stop").exists():
        with store.transaction(writer=COUNTER, sequence=number) as block:
            for name, partitions in COUNTED.items():
                block.producer(name).send(b"%d" % number, partition=number % partitions)
        number += 1
        noted.write_text(str(number))


if __name__ == "__main__":
    _, kind, where, address = sys.argv
    with hw.open(address, client=hw.ClientConfig(heartbeat=0.5)) as opened:
        {"mover": move, "counter": count}[kind](Path(where), opened)
