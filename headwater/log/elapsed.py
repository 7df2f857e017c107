"""Elapsed time: how old something is, whatever the wall clock says at the moment.

Segments, positions and stages carry the wall-clock time at which they were made. That clock may be wrong, and anybody
may set it, so nothing is removed on its word alone. Here time is *observed*: it passes as the boot clock does, which
cannot be set. Every look at both clocks remembers by how much they differ, so that a time that was written under a
wrong clock is still read rightly later. The time for which a machine was off is known from the wall clock alone. It
counts once that clock has told the same for an hour.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headwater.log.clock import Clock
from headwater.log.files.disk import REAL_DISK, Disk, read_plain

CLOCK_FILE: Final = "__clock.json"
"""In a directory that somebody cleans: what the last look at the clocks has found."""
MARGIN_NS: Final = 60 * 10**9
"""Smaller differences between the clocks are nothing to speak of."""
SETTLING_NS: Final = 3600 * 10**9
"""For so long after a start the wall clock has to tell the same, until it is believed how long the machine was off."""
_EARLIEST_NS: Final = 1_577_836_800 * 10**9
"""A wall clock that is before 2020 was never set: it is not believed, however long it tells that."""
_MOST_SPANS: Final = 256
_MOST_MET: Final = 1000
_MOST_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)

Age = Callable[[int], int]
"""Returns the age in nanoseconds of something that carries this wall-clock time."""
IsOld = Callable[[int], bool]
"""Returns True if something that carries this wall-clock time is old enough to go."""


@dataclass(frozen=True, slots=True)
class ClockSpan:
    """While observed time was from `since` to `until`, the wall clock was ahead of it by `offset`. All nanoseconds."""

    offset: int
    since: int
    until: int

    def reads(self, written_ns: int) -> int | None:
        """When something was made, in observed time, if it may have been made in this span."""
        made = written_ns - self.offset
        return made if self.since - MARGIN_NS <= made <= self.until + MARGIN_NS else None

    def moved(self, by: int) -> ClockSpan:
        """The same stretch of the wall clock, at a later observed time."""
        return ClockSpan(self.offset - by, self.since + by, self.until + by)


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a look at the clocks. Times are observed ones, unless stated otherwise."""

    boot_id: str
    boot_ns: int
    """The time of the boot clock."""
    now: int
    """The observed time."""
    spans: tuple[ClockSpan, ...]
    """The differences of the wall clock, the present stretch last."""
    earlier: int
    """The number of spans from before the machine was started."""
    steady_since: int
    """The wall clock was not set since."""
    settled: bool = False
    """True if it is known, since the machine was started, how long it was off."""
    reference: int | None = None
    """The lead of the wall clock when it is right, as far as is known; None until the first hour is over."""
    met: dict[int, int] = field(default_factory=dict)
    """Wall-clock times that no clock is known to have told, each with when something was met that carries it."""

    @classmethod
    def first(cls, clock: Clock) -> Observation:
        """The first look of all: there is nothing to compare with."""
        now = clock.now_ns()
        return cls(clock.boot_id(), clock.boot_ns(), now, (ClockSpan(0, now, now),), 0, now)

    def next(self, clock: Clock) -> Observation:
        """The next look."""
        boot_id, boot_ns, wall = clock.boot_id(), clock.boot_ns(), clock.now_ns()
        started = boot_id != self.boot_id
        now = self.now + max(boot_ns if started else boot_ns - self.boot_ns, 0)
        observation = replace(self, boot_id=boot_id, boot_ns=boot_ns, now=now)
        if started:
            # Until the clock was once believed, nothing is sure of the time before either: it moves with the rest.
            earlier = 0 if self.reference is None else len(self.spans)
            observation = replace(observation, earlier=earlier, settled=False, steady_since=now)
        offset, last = wall - now, self.spans[-1]
        stepped = abs(offset - last.offset) > MARGIN_NS
        if not stepped:
            spans = (*self.spans[:-1], replace(last, until=now))
        else:
            # It was set at some time since the last look. In the time between, it may have told either.
            before = last if started else replace(last, until=now)
            spans = (*self.spans[:-1], before, ClockSpan(offset, self.now, now))
        observation = replace(observation, spans=spans, steady_since=now if stepped else observation.steady_since)
        return observation._settling()._shortened()

    def _settling(self) -> Observation:
        """Believe how long the machine was off, and how far the wall clock is ahead, once that one is steady."""
        offset = self.spans[-1].offset
        steady = self.now - self.steady_since >= SETTLING_NS and self.now + offset >= _EARLIEST_NS
        if self.settled:
            # Time passes by the boot clock alone. Setting the wall clock corrects it, or spoils it.
            known = self.reference or 0
            return replace(self, reference=offset if steady else max(known, offset))
        off = offset - (self.reference or 0)
        if not steady and (self.reference is None or abs(off) > MARGIN_NS):
            return self
        settled = replace(self, settled=True, reference=offset if abs(off) > MARGIN_NS else self.reference or 0)
        return settled if off <= MARGIN_NS else settled._was_off(off)

    def _was_off(self, off: int) -> Observation:
        """The machine was off for so long before its start: everything since has happened that much later."""
        spans = (*self.spans[: self.earlier], *(span.moved(off) for span in self.spans[self.earlier :]))
        if 0 < self.earlier < len(spans):
            before, after = spans[self.earlier - 1], spans[self.earlier]
            if abs(before.offset - after.offset) <= MARGIN_NS:
                joined = replace(before, until=after.until)
                spans = (*spans[: self.earlier - 1], joined, *spans[self.earlier + 1 :])
        now, reference = self.now + off, (self.reference or 0) - off
        return replace(self, now=now, spans=spans, reference=reference, steady_since=self.steady_since + off)

    def _shortened(self) -> Observation:
        gone = max(len(self.spans) - _MOST_SPANS, 0)
        return replace(self, spans=self.spans[gone:], earlier=max(self.earlier - gone, 0)) if gone else self

    def made(self, written_ns: int, now: int) -> int | None:
        """When something was made that carries this wall-clock time; None if it can be as late as now.

        If the wall clock told the same time more than once, the latest counts.
        """
        present = replace(self.spans[-1], until=now)
        fitting = [made for span in (*self.spans[:-1], present) if (made := span.reads(written_ns)) is not None]
        if fitting:
            return max(fitting)
        if self.reference is None:
            return None  # whether the clock is right is not known yet
        latest = written_ns - min(span.offset for span in self.spans)
        return latest if latest < self.spans[0].since else self.met.get(written_ns)

    def meeting(self, written: Iterable[int]) -> Observation:
        """The same, after something was met that carries these times, which no clock is known to have told."""
        known = self.met | {time_ns: self.now for time_ns in written if time_ns not in self.met}
        return replace(self, met=dict(list(known.items())[-_MOST_MET:]))

    @property
    def warning(self) -> str | None:
        """The oddity of the wall clock at the moment, and its consequence."""
        if self.reference is None:
            return None
        offset = self.spans[-1].offset - self.reference
        if self.settled and self.now - self.steady_since < SETTLING_NS and len(self.spans) > 1:
            offset = self.spans[-1].offset - self.spans[-2].offset
        if abs(offset) <= MARGIN_NS:
            return None
        seconds = f"{abs(offset) / 1e9:,.0f} s"
        if self.settled:
            way = "ahead" if offset > 0 else "back"
            return f"the wall clock was set {way} by {seconds}: ages count by the time that the machine runs"
        way = "ahead of" if offset > 0 else "behind"
        return (
            f"since the machine was started its wall clock is {seconds} {way} the time that was observed: ages count "
            f"by the time that the machine runs, until the clock has been steady for an hour"
        )


class Elapsed:
    """Tells how long ago something was, by the wall-clock time that it carries. Thread-safe."""

    def __init__(self, clock: Clock, directory: Path | None = None, disk: Disk = REAL_DISK) -> None:
        """With a `directory`, time goes on from what was kept there; else it begins now."""
        self._clock = clock
        self._path = None if directory is None else directory / CLOCK_FILE
        self._disk = disk
        kept = self._load()
        self.kept = kept is not None
        """True if there was a record to go on from."""
        self._last = Observation.first(clock) if kept is None else kept.next(clock)
        self._met: set[int] = set()
        self._deferred = False
        self._warned: str | None = None

    def look(self) -> None:
        """Compare the clocks, as every pass does that removes what is old; `keep` ends such a pass."""
        kept = self._load()
        last = self._last if kept is None or kept.now < self._last.now else kept
        met, self._met = self._met, set()
        self._last = last.next(self._clock).meeting(met)
        warning = self._last.warning
        if warning is not None and self._warned is None:
            _log.warning("%s: %s", self._path.parent if self._path is not None else "memory", warning)
        self._warned = warning

    def keep(self) -> None:
        """Keep what the last look has found, and what was met since, durably."""
        met, self._met = self._met, set()
        self._last = self._last.meeting(met)
        if self._path is not None:
            content = json.dumps(asdict(self._last)).encode()
            self._disk.replace(self._path, content + b"\n%08x\n" % crc32c(content))
            self.kept = True

    def now_ns(self) -> int:
        """The observed time. It never goes back."""
        last, boot_ns = self._last, self._clock.boot_ns()
        return last.now + max(boot_ns - last.boot_ns if self._clock.boot_id() == last.boot_id else boot_ns, 0)

    def age_ns(self, written_ns: int) -> int:
        """Return the age of something that carries this wall-clock time. If in doubt, it counts as younger."""
        now = self.now_ns()
        if abs(self._clock.now_ns() - now - self._last.spans[-1].offset) > MARGIN_NS:
            self._last = self._last.next(self._clock)  # it was set since the last look
        last = self._last
        made = last.made(written_ns, now)
        if made is not None:
            return max(now - made, 0)
        if not last.settled:
            self._deferred = True
        elif len(self._met) < _MOST_MET:
            self._met.add(written_ns)
        return 0

    def is_older(self, seconds: float) -> IsOld:
        """Return a test whether something is older than that, by the wall-clock time that it carries."""
        return lambda written_ns: self.age_ns(written_ns) > seconds * 1e9

    @property
    def warning(self) -> str | None:
        """The oddity of the wall clock, as of the last look, and its consequence; None if all is well."""
        if self._deferred and self._last.reference is None:
            return (
                "nobody has compared the clocks here for an hour yet: what was written before the first look counts as "
                "new until then"
            )
        return self._last.warning

    def _load(self) -> Observation | None:
        """Return the kept record. One that cannot be read is none: then ages begin anew, and nothing goes early."""
        if self._path is None:
            return None
        try:
            content, checksum, _ = read_plain(self._path, _MOST_BYTES).split(b"\n")
            if crc32c(content) != int(checksum, 16):
                return None
            document = json.loads(content)
            spans = tuple(ClockSpan(**span) for span in document["spans"])
            met = {int(written): seen for written, seen in document["met"].items()}
            return Observation(**document | {"spans": spans, "met": met})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
