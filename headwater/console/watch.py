"""A watch: a store that is looked at again and again while someone has the console open, so that no page waits for it.

Pages are made of the last survey. The samples since the watch began are kept for charts; earlier ones are in the
store's own history, if a steward keeps one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Final

from headwater.console.rates import Rates
from headwater.core.errors import HeadwaterError, StoreClosed, Unauthenticated
from headwater.streams.history import Sample
from headwater.streams.store import Store
from headwater.streams.survey import Survey

_log = logging.getLogger(__name__)
INTERVAL: Final = 2.0
_SHARE: Final = 0.1
"""Such a part of its time is spent looking, if need be: a store of many topics is looked at less often."""
_LONGEST: Final = 15.0
"""But so often at least. The first look takes long, because everything is opened, and says nothing about the next."""
_ABANDONED: Final = 60.0
"""When nobody has asked for so long, nobody is looking."""
_REMEMBERED: Final = 2400
"""So many samples are kept; of older ones every second is forgotten."""


def rest_after(took: float, interval: float) -> float:
    """Return the seconds to rest after a look that took so long, if there is to be one every `interval`."""
    return max(interval, min(took / _SHARE, _LONGEST))


class StoreWatch:
    """Looks at a store in a thread of its own, until it is closed. Thread-safe."""

    def __init__(self, store: Store, interval: float = INTERVAL) -> None:
        self.store = store
        self.began_ns = time.time_ns()
        self._interval = interval
        self._changed = threading.Condition()
        self._survey: Survey | None = None
        self._error: str | None = None
        self._version = 0
        self._asked = time.monotonic()
        self._hurry = False
        self._closed = False
        self.refused = False
        """True if the broker no longer accepts the caller."""
        self._samples: deque[Sample] = deque()
        self._thread = threading.Thread(target=self._work, name="headwater-console-watch", daemon=True)
        self._thread.start()

    @property
    def survey(self) -> Survey | None:
        """Return the last survey; None before the first look is over."""
        self._asked = time.monotonic()
        return self._survey

    @property
    def error(self) -> str | None:
        """Why the last look failed, if it did."""
        return self._error

    @property
    def version(self) -> int:
        """A number that rises with each look."""
        return self._version

    def samples(self) -> list[Sample]:
        """Return the samples since the watch began, the oldest first."""
        with self._changed:
            return list(self._samples)

    def rates(self) -> Rates:
        """Return the present rates of the topics."""
        with self._changed:
            return Rates.of(self._samples)

    def wait(self, version: int, timeout: float) -> int:
        """The number of the last look, as soon as it is another one than `version`."""
        self._asked = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._closed, timeout)
            return self._version

    def look_now(self) -> None:
        """Something was changed: look at it before long."""
        with self._changed:
            self._asked = time.monotonic()
            self._hurry = True
            self._changed.notify_all()

    def _work(self) -> None:
        while not self._closed:
            begun = time.monotonic()
            try:
                survey = Survey.of(self.store, time.time_ns())
            except StoreClosed:
                return
            except (HeadwaterError, OSError) as error:
                self.refused = isinstance(error, Unauthenticated)  # first: who is told of the error is out by then
                self._error = str(error)
            else:
                self._error = None
                with self._changed:
                    self._survey = survey
                    self._remember(Sample.of(survey))
            with self._changed:
                self._version += 1
                self._changed.notify_all()
                took = time.monotonic() - begun
                abandoned = time.monotonic() - self._asked > _ABANDONED
                rest = rest_after(took, _LONGEST if abandoned else self._interval)
                self._changed.wait_for(lambda: self._closed or self._hurry, rest)
                self._hurry = False

    def _remember(self, sample: Sample) -> None:
        self._samples.append(sample)
        if len(self._samples) > _REMEMBERED:
            # The older half at half the resolution: so it reaches back ever further with the same memory.
            samples = list(self._samples)
            half = len(samples) // 2
            self._samples = deque(samples[:half:2] + samples[half:])

    def close(self) -> None:
        """Stop looking, and close the store."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5.0)
        self.store.close()
