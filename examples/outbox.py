"""An outbox: what a program writes to SQLite reaches a topic exactly once, whatever dies in between.

The order and a line in the outbox are one transaction of SQLite. A relay moves the lines to the topic, under the number
of the last of them: when it dies before it has deleted them, it sends them again, and Headwater knows them.

`python -m examples.outbox [DIRECTORY]` runs it.
"""

from __future__ import annotations

import json
import sqlite3

import headwater as hw
from examples.directory import workplace

TABLES = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER);
    CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value TEXT);
"""


def order(database: sqlite3.Connection, customer: str, amount: int) -> None:
    """Take an order: both tables, or none."""
    with database:
        inserted = database.execute("INSERT INTO orders (customer, amount) VALUES (?, ?)", (customer, amount))
        event = json.dumps({"order": inserted.lastrowid, "customer": customer, "amount": amount})
        database.execute("INSERT INTO outbox (key, value) VALUES (?, ?)", (customer, event))


def relay(database: sqlite3.Connection, store: hw.Store, *, dies: bool = False) -> int:
    """Move what is in the outbox to the topic; how many lines were sent that were not there before."""
    rows = database.execute("SELECT id, key, value FROM outbox ORDER BY id LIMIT 1000").fetchall()
    if not rows:
        return 0
    last = rows[-1][0]
    with store.transaction(writer="outbox", sequence=last) as block:
        out = block.producer("orders")
        for _, key, value in rows:
            out.send(value.encode(), key=key.encode())
    if dies:
        return 0  # as if the process had been killed here: the lines are sent, and still in the outbox
    with database:
        database.execute("DELETE FROM outbox WHERE id <= ?", (last,))
    return 0 if block.state == "repeated" else len(rows)


def main() -> None:
    """Take orders, die in the middle of relaying them, and look."""
    with workplace() as directory, hw.open(directory / "events") as store:
        store.create_topic("orders")
        database = sqlite3.connect(directory / "shop.db")
        database.executescript(TABLES)
        for number in range(5):
            order(database, f"customer-{number % 2}", 10 * number)
        relay(database, store, dies=True)
        relay(database, store)
        order(database, "customer-7", 70)
        relay(database, store)
        database.close()
        orders = [json.loads(record.value)["order"] for record in store.topic("orders").partition(0).records()]
        print(f"orders in the topic: {orders}")  # noqa: T201 - it is what the example shows


if __name__ == "__main__":
    main()
