"""Security: the checks of a request before the store is asked anything, and the headers of each answer.

A request must pass the check of Host and Origin (`headwater.serving.cross_site`), and a change must come as JSON, which
pages of other origins cannot send unasked. Answers forbid everything that the page does not need: scripts, styles and
connections from elsewhere, scripts in markup, frames, and guesses about content.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.serving.cross_site import cross_site_refusal

MAX_BODY: Final = 16 * 1024 * 1024
"""Larger requests are refused: a value of 10 MiB, twice as long in hexadecimal, would be too many for a browser."""
_MAX_TARGET: Final = 8 * 1024
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


class Security:
    """Refuses what does not come from the console's own page, and guards every answer. A middleware."""

    def __init__(self, app: ASGIApp, names: Collection[str] | None) -> None:
        """`names` are those that requests may call this host by, besides its addresses and `localhost`; None is any.

        Any name will do if people bring tokens of their own: a site whose name points here has none of their cookies.
        """
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers["Server"] = "headwater"
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        refusal = cross_site_refusal(headers, self._names, may_be_linked=_opens_the_page(scope, headers))
        if refusal is not None:
            return _refused(refusal.status, refusal.message)
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > _MAX_TARGET:
            return _refused(414, "the address is too long")
        if scope["method"] not in ("GET", "HEAD"):
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return _refused(415, "what changes something is sent as application/json")
            length = headers.get("content-length", "")
            if length.isdigit() and int(length) > MAX_BODY:
                return _refused(413, f"a request has at most {MAX_BODY:,} bytes")
        return None


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Return whether someone follows a link to the console, as in a terminal that is itself a web page.

    They get the page in a window of its own. It holds nothing yet, and its own requests are checked like any.
    """
    asked = (scope["method"], scope["path"], headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return asked == ("GET", "/", "navigate", "document")


def _refused(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
