"""The client's own thread for what is to be done in a while: looks at what is on its way, wakes after pauses."""

from __future__ import annotations

from headwater.log.delayed_calls import DelayedCalls

DELAYED = DelayedCalls("headwater-client")
