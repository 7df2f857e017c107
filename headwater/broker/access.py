"""Access: who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

Right = Literal["read", "write", "admin"]
Kind = Literal["topic", "group", "broker"]


class Caller(NamedTuple):
    """Someone who calls: `anonymous`, the name of a token, or that of a certificate."""

    name: str


ANONYMOUS: Final = Caller("anonymous")


class Access:
    """Decides who may do what. This one lets everyone do everything."""

    def caller(
        self,
        metadata: Sequence[tuple[str, str | bytes]],  # noqa: ARG002
        peer: str,  # noqa: ARG002
        identities: Iterable[bytes],  # noqa: ARG002
    ) -> Caller:
        """Who calls; raises Unauthenticated."""
        return ANONYMOUS

    def check(self, caller: Caller, right: Right, kind: Kind, name: str) -> None:
        """Raise PermissionDenied unless the caller has the right."""

    def sees(self, caller: Caller, topic: str) -> bool:  # noqa: ARG002
        """Whether the caller may know that there is such a topic."""
        return True


OPEN: Final = Access()
"""For brokers that only this machine can reach."""
