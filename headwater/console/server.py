"""The server: the page's files, the answers that it asks for, and streams of events, by HTTP.

Calls to the store run in threads, so a slow disk or a broker that is away holds up nobody else.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import iterate_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headwater.console import (
    browsing,
    charts,
    cluster,
    groups,
    overview,
    pipelines,
    segments,
    stewarding,
    topics,
)
from headwater.console.download import FORMATS, Download
from headwater.console.events import ServerEvent, event_stream
from headwater.console.page_request import NotFound, PageRequest, status_of
from headwater.console.security import MAX_BODY, Security
from headwater.console.sessions import ConsoleSession, ConsoleSessions
from headwater.core.errors import HeadwaterError, InvalidConfiguration, StoreClosed, Unauthenticated
from headwater.core.version import __version__
from headwater.serving.sources import source_of

_log = logging.getLogger(__name__)
MAX_STRANGERS_BODY: Final = 4096
"""The largest request of callers who have not signed in yet: a token."""
_STREAMS: Final = 64
"""So many streams of events at a time; each holds a thread."""
_CALLS: Final = 16
_SIGNING_IN: Final = 4
"""So many callers sign in at a time, and the next ones wait; each may wait for a broker, and holds a thread."""
_SIGNING_IN_OF_SOURCE: Final = 2
_BEAT: Final = 5.0
_WAIT: Final = 0.5
Answer = Callable[[PageRequest], dict[str, Any]]
_Answered = TypeVar("_Answered")
_Parts = TypeVarTuple("_Parts")


class _Call(NamedTuple):
    method: str
    path: str
    answer: Answer
    writes: bool = False


_CALLS_ANSWERED: Final = (
    _Call("GET", "/api/overview", overview.overview),
    _Call("GET", "/api/history", charts.history),
    _Call("GET", "/api/topics", topics.listed),
    _Call("GET", "/api/topic-defaults", topics.defaults),
    _Call("POST", "/api/topics", topics.create, writes=True),
    _Call("GET", "/api/topics/{topic}", topics.shown_topic),
    _Call("PATCH", "/api/topics/{topic}", topics.alter, writes=True),
    _Call("DELETE", "/api/topics/{topic}", topics.delete, writes=True),
    _Call("GET", "/api/topics/{topic}/producers", topics.producers),
    _Call("GET", "/api/topics/{topic}/messages", browsing.page),
    _Call("POST", "/api/topics/{topic}/messages", topics.produce, writes=True),
    _Call("GET", "/api/topics/{topic}/messages/{partition:int}/{offset:int}", browsing.message),
    _Call("GET", "/api/topics/{topic}/segments/{partition:int}", segments.listed),
    _Call("GET", "/api/topics/{topic}/segments/{partition:int}/{base:int}", segments.mapped),
    _Call("GET", "/api/groups", groups.listed),
    _Call("GET", "/api/groups/{group}", groups.shown_group),
    _Call("POST", "/api/groups/{group}/plan", groups.planned_reset),
    _Call("POST", "/api/groups/{group}/reset", groups.reset, writes=True),
    _Call("GET", "/api/cluster", cluster.shown_cluster),
    _Call("GET", "/api/pipelines", pipelines.listed),
    _Call("GET", "/api/steward", stewarding.shown_steward),
    _Call("GET", "/api/steward/plan", stewarding.plan),
    _Call("POST", "/api/steward/run", stewarding.clean, writes=True),
)


class Console:
    """Answers the requests of pages, for callers who may make them."""

    def __init__(self, sessions: ConsoleSessions, *, write: bool = False, names: tuple[str, ...] | None = ()) -> None:
        """Read-only unless `write`. `names` are what requests may call this host; see Security."""
        self._sessions = sessions
        self._write = write
        self._streams = CapacityLimiter(_STREAMS)
        self._threads = CapacityLimiter(_CALLS)
        self._doors = CapacityLimiter(_SIGNING_IN)
        self._signing_in: Counter[str] = Counter()
        self._listening: set[object] = set()
        self._closing = threading.Event()
        self.secure = False
        """True if the console is reached by TLS only."""
        routes = [
            Route("/api/session", self._begin, methods=["POST"]),
            Route("/api/session", self._look, methods=["GET"]),
            Route("/api/session", self._end, methods=["DELETE"]),
            Route("/api/events", self._events, methods=["GET"]),
            Route("/api/topics/{topic}/tail", self._tail, methods=["GET"]),
            Route("/api/topics/{topic}/download", self._download, methods=["GET"]),
            *(Route(call.path, self._answering(call), methods=[call.method]) for call in _CALLS_ANSWERED),
            *(Route(path, file.answer, methods=["GET"]) for path, file in _static_files().items()),
        ]
        self.app = Starlette(
            routes=routes,
            middleware=[Middleware(Security, names=names)],
            exception_handlers={
                HeadwaterError: self._told,
                TooLarge: _too_large,
                OSError: self._told,
                404: _nothing_here,
                405: _nothing_here,
            },
        )

    # Sessions.

    async def _begin(self, request: Request) -> Response:
        body = await _body(request, MAX_STRANGERS_BODY)
        token = body.get("token")
        if not isinstance(token, str) or not 0 < len(token) < 1000 or not token.isascii():
            raise Unauthenticated("a token is needed")
        source = source_of(request.client.host) if request.client is not None else ""
        if self._signing_in[source] >= _SIGNING_IN_OF_SOURCE:
            raise Unauthenticated(
                f"at most {_SIGNING_IN_OF_SOURCE} sign-ins of an address run at the same time: try again"
            )
        self._signing_in[source] += 1
        try:
            value = await anyio.to_thread.run_sync(self._sessions.begin, token.strip(), source, limiter=self._doors)
        finally:
            self._signing_in[source] -= 1
            if not self._signing_in[source]:
                del self._signing_in[source]
        response = JSONResponse({"ok": True})
        response.set_cookie(
            _cookie_name(request), value, httponly=True, samesite="strict", secure=self.secure, path="/"
        )
        return response

    async def _look(self, request: Request) -> Response:
        """Answer who is asking; callers who have not signed in are told how to."""
        document: dict[str, Any] = {"by_token": self._sessions.by_token, "version": __version__}
        try:
            session = self._session(request)
        except Unauthenticated:
            return JSONResponse(document | {"known": False})
        store = session.watch.store
        kind = "broker" if str(store).startswith("hw://") else "embedded"
        return JSONResponse(
            document
            | {"known": True, "store": str(store), "kind": kind, "write": self._write, "user": session.user}
            | {"msgpack": find_spec("msgpack") is not None}
        )

    async def _end(self, request: Request) -> Response:
        self._sessions.end(_cookie(request))
        response = JSONResponse({"ok": True})
        response.delete_cookie(_cookie_name(request), httponly=True, samesite="strict", path="/")
        return response

    def _session(self, request: Request) -> ConsoleSession:
        return self._sessions.find(_cookie(request))

    # Answers.

    def _answering(self, call: _Call) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            page_request = await self._page_request(request, self._session(request))
            if call.writes and not self._write:
                return JSONResponse({"error": "this console is read-only: start it with --write to change things"}, 403)
            return JSONResponse(await self._ask(request, call.answer, page_request))

        return answer

    async def _ask(self, request: Request, answer: Callable[[*_Parts], _Answered], *page_request: *_Parts) -> _Answered:
        """Return the store's answer, waited for in a thread."""
        try:
            return await anyio.to_thread.run_sync(answer, *page_request, limiter=self._threads)
        except Unauthenticated:
            self._sessions.end(_cookie(request))  # not only once the watch has seen it
            raise

    async def _page_request(self, request: Request, session: ConsoleSession) -> PageRequest:
        body = await _body(request) if request.method not in ("GET", "HEAD") else {}
        return PageRequest(session.watch, request.path_params, request.query_params, body)

    async def _told(self, _: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, NotFound) else status_of(error)
        if status == 500:
            _log.warning("the console could not answer: %s", error)
        return JSONResponse({"error": str(error), "kind": type(error).__name__}, status)

    # Streams.

    async def _events(self, request: Request) -> Response:
        """Tell pages that there is a new survey; they then ask for their content."""
        watch = self._session(request).watch
        last, told = -1, 0.0

        def take() -> list[ServerEvent]:
            nonlocal last, told
            self._check_open(request)
            seen = watch.wait(last, _WAIT)
            if seen == last and time.monotonic() - told < _BEAT:
                return []
            changed, last, told = seen != last, seen, time.monotonic()
            return [ServerEvent("looked" if changed else "quiet", json.dumps({"version": seen, "error": watch.error}))]

        return await self._streaming(request, take, lambda: None)

    async def _tail(self, request: Request) -> Response:
        """The live tail of a topic."""
        page_request = await self._page_request(request, self._session(request))
        last_event_id = request.headers.get("last-event-id", "")
        tail = await self._ask(request, browsing.tail, page_request, last_event_id)

        def take() -> list[ServerEvent]:
            self._check_open(request)
            return tail.events()

        return await self._streaming(request, take, tail.close)

    async def _streaming(
        self, request: Request, take: Callable[[], list[ServerEvent]], close: Callable[[], None]
    ) -> Response:
        if len(self._listening) >= _STREAMS:
            await anyio.to_thread.run_sync(close, limiter=self._threads)
            return JSONResponse({"error": f"{_STREAMS} pages are open already: close some"}, 429)
        listener = object()
        self._listening.add(listener)

        def closed() -> None:
            if listener in self._listening:
                self._listening.discard(listener)
                close()

        def failure(error: HeadwaterError) -> ServerEvent:
            return ServerEvent("failed", json.dumps({"error": str(error), "kind": type(error).__name__}))

        return event_stream(request, take, closed, self._streams, failure)

    async def _download(self, request: Request) -> Response:
        page_request = await self._page_request(request, self._session(request))
        download = await self._ask(request, Download, page_request)
        kind = FORMATS[download.format]
        headers = {"Content-Disposition": f'attachment; filename="{download.filename}"'}
        if download.format == "ndjson":
            return StreamingResponse(iterate_in_threadpool(download.lines()), media_type=kind, headers=headers)
        path = await self._ask(request, download.parquet)
        return FileResponse(path, media_type=kind, headers=headers, background=BackgroundTask(_remove, path))

    def _check_open(self, request: Request) -> None:
        """Raise StoreClosed or Unauthenticated when a stream has to end: with the console, and with its session."""
        if self._closing.is_set():
            raise StoreClosed("the console")
        self._session(request)

    def sweep(self) -> None:
        """Forget sessions that are over."""
        self._sessions.sweep()

    def end_streams(self) -> None:
        """Tell all listeners that it is over."""
        self._closing.set()

    def close(self) -> None:
        """End the streams, and close the stores."""
        self.end_streams()
        self._sessions.close()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _cookie_name(request: Request) -> str:
    """One for each port: a browser sends the cookies of a host to all of its ports."""
    return f"headwater-{request.url.port or 0}"


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")


class TooLarge(Exception):
    """A request has more bytes than are taken."""


async def _body(request: Request, most: int = MAX_BODY) -> Mapping[str, Any]:
    """The JSON object in a request; raises TooLarge as soon as that has more bytes than `most`."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise TooLarge
    try:
        document = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise InvalidConfiguration("the request is not JSON") from None
    if not isinstance(document, dict):
        raise InvalidConfiguration("the request is not a JSON object")
    return document


def _too_large(_: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"error": "the request is too large"}, 413)


def _nothing_here(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"error": "there is nothing here" if status == 404 else "not in this way"}, status)


# The page's own files.


class _StaticFile(NamedTuple):
    """A file of the page, read once: no path of a request ever reaches the file system."""

    content: bytes
    kind: str
    tag: str

    async def answer(self, request: Request) -> Response:
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.kind, headers=headers)


def _static_files() -> dict[str, _StaticFile]:
    files: dict[str, _StaticFile] = {}

    def add(directory: Traversable, above: str) -> None:
        for entry in directory.iterdir():
            if entry.is_dir():
                add(entry, f"{above}{entry.name}/")
            else:
                content = entry.read_bytes()
                kind = "text/javascript" if entry.name.endswith(".js") else mimetypes.guess_type(entry.name)[0]
                tag = f'"{sha256(content).hexdigest()[:16]}"'
                files[f"{above}{entry.name}"] = _StaticFile(content, kind or "text/plain", tag)

    add(resources.files("headwater.console") / "static", "/")
    files["/"] = files["/index.html"]
    return files
