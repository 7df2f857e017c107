"""The audit log: who was denied what. One line for each, and not more lines than anyone can read.

A client that is denied usually tries again, and one that means harm tries everything. So the same denial is told once a
minute, with how often it has happened meanwhile, and all together are limited.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from headwater.serving.sources import source_of_peer

_LOG: Final = logging.getLogger("headwater.broker.security.audit")
_AGAIN_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1024
_MAX_PER_SECOND: Final = 20


class Audit:
    """Tells of denials. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._mutex = threading.Lock()
        self._seen: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        self._second = 0
        self._told = 0
        self._left_out = 0
        self.denials = 0
        """The number of denials, told or not."""

    def denied(self, who: str, right: str, kind: str, name: str, peer: str) -> None:
        """A caller lacks a right."""
        self._tell("denied", (who, right, kind, name), peer, {"who": who, "right": right, "kind": kind, "name": name})

    def unauthenticated(self, why: str, peer: str) -> None:
        """A caller could not say who it is."""
        self._tell("unauthenticated", (why, source_of_peer(peer)), peer, {"why": why})

    def _tell(self, event: str, key: tuple[str, ...], peer: str, facts: dict[str, str]) -> None:
        now = self._now()
        with self._mutex:
            self.denials += 1
            since, repeated = self._seen.pop(key, (-_AGAIN_SECONDS, 0))
            if now < since + _AGAIN_SECONDS:
                self._seen[key] = (since, repeated + 1)
                return
            if int(now) != self._second:
                self._second, self._told = int(now), 0
            if self._told >= _MAX_PER_SECOND:
                self._left_out += 1
                return
            self._told += 1
            left_out, self._left_out = self._left_out, 0
            self._seen[key] = (now, 0)
            while len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)
        details = facts | {"peer": unquote(peer), "repeated": repeated, "left_out": left_out}
        _LOG.warning(event, extra={"facts": {name: value for name, value in details.items() if value != 0}})
