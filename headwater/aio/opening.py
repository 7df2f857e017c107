"""Opening: `async with store.producer("orders") as out`, or `out = await store.producer("orders")`, closed later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Closable(Protocol):
    """Something that is opened, and knows what to do at the end of a block."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


_Opened = TypeVar("_Opened", bound=Closable)


class Opening(Generic[_Opened]):
    """Something that is opened when it is awaited, or entered by `async with`, which closes it too."""

    def __init__(self, opens: Callable[[], Awaitable[_Opened]]) -> None:
        self._opens = opens
        self._opened: _Opened | None = None

    def __await__(self) -> Generator[Any, None, _Opened]:
        return self._opens().__await__()

    async def __aenter__(self) -> _Opened:
        self._opened = await self._opens()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None, "a block is entered before it is left"
        await self._opened.__aexit__(kind, error, trace)
