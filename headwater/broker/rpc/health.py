"""gRPC's health service, whose watches end with the broker."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1 import health, health_pb2


class Health(health.aio.HealthServicer):
    """As gRPC has it, but for one thing: who watches would do so until the last second of a drain."""

    def __init__(self) -> None:
        super().__init__()
        self._over = asyncio.Event()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - gRPC's name
        """Tell each change, until the broker leaves."""
        watching = asyncio.create_task(super().Watch(request, context))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({watching, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            over.cancel()

    def end_watches(self) -> None:
        """Nothing will change any more."""
        self._over.set()
