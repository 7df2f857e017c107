"""Server-sent events: a stream of texts to a browser, in threads that may wait, for as long as someone listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

from headwater.core.errors import HeadwaterError

_RETRY_MS: Final = 1000


class ServerEvent(NamedTuple):
    """One event. A browser that reconnects sends the last event id."""

    name: str
    data: str
    event_id: str = ""

    def encode(self) -> bytes:
        """Return the event as it is sent. The data is JSON, without line breaks."""
        event_id = f"id: {self.event_id}\n" if self.event_id else ""
        return f"event: {self.name}\n{event_id}data: {self.data}\n\n".encode()


def event_stream(
    request: Request,
    take: Callable[[], list[ServerEvent]],
    close: Callable[[], None],
    limiter: CapacityLimiter,
    failure: Callable[[HeadwaterError], ServerEvent],
) -> StreamingResponse:
    """Send the events that `take` finds, until the browser goes; `close` is called in any case, maybe twice.

    `take` may wait, for a second or so: it is called in a thread. It is not called before the events that it found
    were taken by the network, so that a slow reader is not sent more than it can take.
    """

    async def stream() -> AsyncIterator[bytes]:
        try:
            yield f"retry: {_RETRY_MS}\n\n".encode()
            while not await request.is_disconnected():
                try:
                    events = await anyio.to_thread.run_sync(take, limiter=limiter)
                except HeadwaterError as error:
                    yield failure(error).encode()
                    return
                if events:
                    yield b"".join(event.encode() for event in events)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(close, limiter=limiter)

    # A browser that has gone before the first event has begun no stream that could end.
    ended = BackgroundTask(close)
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers, background=ended)
