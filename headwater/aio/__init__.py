"""Headwater for asyncio: the nouns of `headwater`, with `await`.

    async with hw.aio.open("events") as store:
        async with store.producer("orders") as out:
            receipt = await out.send(b"two teas")
            offset = await receipt

The event loop waits for no disk and no lock. Sending and acknowledging do not change threads.
"""

from headwater.aio.consumer import Consumer
from headwater.aio.group import Group
from headwater.aio.opening import Opening
from headwater.aio.processing import ProcessOptions
from headwater.aio.producer import Producer
from headwater.aio.receipt import Receipt
from headwater.aio.scan import Scan
from headwater.aio.steward import Steward
from headwater.aio.store import Store
from headwater.aio.store import open_async as open
from headwater.aio.topic import Topic
from headwater.aio.transaction import Transaction

__all__ = [
    "Consumer",
    "Group",
    "Opening",
    "ProcessOptions",
    "Producer",
    "Receipt",
    "Scan",
    "Steward",
    "Store",
    "Topic",
    "Transaction",
    "open",
]
