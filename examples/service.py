"""A web service with a log inside: POST appends to a topic, GET reads it, and the answer comes when it is durable.

It is one process, one event loop and a directory. `python -m examples.service [DIRECTORY]` runs it, and calls it.
"""

from __future__ import annotations

import asyncio
import json

import headwater as hw
from examples.directory import workplace


class Service:
    """Answers HTTP over a topic."""

    def __init__(self, store: hw.aio.Store, out: hw.aio.Producer) -> None:
        self._store = store
        self._out = out

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of one connection."""
        method, path, _ = (await reader.readline()).decode("latin-1").split()
        length = 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            length = int(value) if name.lower() == "content-length" else length
        status, document = await self._handle(method, path, await reader.readexactly(length))
        content = json.dumps(document).encode()
        writer.write(b"HTTP/1.1 %d .\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(content)))
        writer.write(content)
        await writer.drain()
        writer.close()

    async def _handle(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        if (method, path) == ("POST", "/events"):
            receipt = await self._out.send(body)
            return 201, {"offset": await receipt}  # durable by now
        if (method, path) == ("GET", "/events"):
            topic = await self._store.topic("events")
            values = [value async for batch in topic.scan(columns=["value"]) for value in batch.column(0).to_pylist()]
            return 200, [value.decode() for value in values]
        return 404, {"error": "unknown path: this service serves /events"}


async def call(port: int, method: str, path: str, body: bytes = b"") -> object:
    """Call the service, as anyone would."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%s %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (method.encode(), path.encode(), len(body)) + body)
    answer = await reader.read()
    writer.close()
    document: object = json.loads(answer.partition(b"\r\n\r\n")[2])
    return document


async def serve() -> None:
    """Serve, and be called."""
    with workplace() as directory:
        async with hw.aio.open(directory / "events") as store:
            await store.create_topic("events")
            async with store.producer("events") as out:
                server = await asyncio.start_server(Service(store, out).answer, "127.0.0.1", 0)
                port = server.sockets[0].getsockname()[1]
                answers = await asyncio.gather(*(call(port, "POST", "/events", b"event %d" % n) for n in range(3)))
                print(answers, sorted(await call(port, "GET", "/events")))  # type: ignore[call-overload]  # noqa: T201
                server.close()
                await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve())
