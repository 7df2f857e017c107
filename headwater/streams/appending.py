"""Prompt appending: the frame is where it belongs when `append` returns."""

from __future__ import annotations

from collections.abc import Callable


class PromptAppender:
    """An appender that never has a frame on its way. Its heirs have `identity`, `append` and `sync`."""

    prompt = True
    staging = False

    def room(self, partition: int, timeout: float) -> bool:  # noqa: ARG002 - nothing is ever on its way
        """There is always room."""
        return True

    @property
    def pending(self) -> int:
        """Nothing is ever on its way."""
        return 0

    def flush(self) -> None:
        """Nothing is ever on its way."""

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Nothing fails later: `append` raises."""

    def close(self) -> None:
        """Nothing to give back."""
