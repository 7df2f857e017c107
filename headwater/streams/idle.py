"""The idle thread: writes the last records of producers that have gone quiet.

Busy producers write by themselves. This is for the rest: it looks at each producer once its linger has passed, and
writes what nobody has written by then. It holds on to the producer meanwhile: one that is dropped with records in its
buffer still gets them written.
"""

from __future__ import annotations

from headwater.log.delayed_calls import DelayedCalls

IDLE = DelayedCalls("headwater-idle")
