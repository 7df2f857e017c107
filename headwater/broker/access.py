"""Access: who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from headwater.errors import UnknownTopic

Right = Literal["read", "write", "admin"]
Kind = Literal["topic", "group", "broker"]


class Caller(NamedTuple):
    """Someone who calls: `anonymous`, the user of a token, or the name of a certificate; and from where."""

    name: str
    peer: str = ""


ANONYMOUS: Final = Caller("anonymous")
BROKER: Final = "broker"
"""What the broker is called where a topic or a group has its name."""


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
        """Raise PermissionDenied unless the caller has the right; UnknownTopic where it may not even know that.

        It is asked before anything is looked up: so the answer tells nothing about what there is.
        """

    def sees(self, caller: Caller, name: str, kind: Kind = "topic") -> bool:  # noqa: ARG002
        """Whether the caller may know that there is such a topic, or such a group."""
        return True

    def worded(self, caller: Caller, error: UnknownTopic) -> UnknownTopic:  # noqa: ARG002
        """How the caller is told that there is no such topic: as it is told of one that it may not know of."""
        return error


OPEN: Final = Access()
"""For brokers that only this machine can reach."""
