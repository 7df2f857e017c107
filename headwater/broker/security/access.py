"""Access: who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from headwater.broker.security.access_file import Rights
    from headwater.broker.security.tokens import Token

Right = Literal["read", "write", "admin"]
Kind = Literal["topic", "group", "broker"]
Rules: TypeAlias = "tuple[Mapping[str, Rights], Mapping[str, Token]]"
"""Users with their rights, and tokens by their ids."""


class Caller(NamedTuple):
    """Someone who calls: `anonymous`, the user of a token, or the name of a certificate; and from where."""

    name: str
    peer: str = ""


ANONYMOUS: Final = Caller("anonymous")
OTHER_BROKER: Final = Caller("another broker of the cluster")
BROKER: Final = ""
"""The name that stands for the broker, in place of a topic's or a group's."""


class TooManyAttempts(Exception):
    """Too many wrong tokens came from where the caller is: it may try again in a moment."""


class Access:
    """Decides who may do what. This one lets everyone do everything."""

    @property
    def denials(self) -> int:
        """The number of calls that were denied."""
        return 0

    @property
    def enforced(self) -> bool:
        """True if callers have rights at all, and do not all see and do everything."""
        return False

    def caller(
        self,
        metadata: Sequence[tuple[str, str | bytes]],  # noqa: ARG002
        peer: str,  # noqa: ARG002
        identities: Iterable[bytes],  # noqa: ARG002
    ) -> Caller:
        """The caller; raises Unauthenticated, or TooManyAttempts."""
        return ANONYMOUS

    def hashes(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:  # noqa: ARG002
        """Return whether `caller` has to hash a token, which takes too long for an event loop."""
        return False

    def check(self, caller: Caller, right: Right, kind: Kind, name: str) -> None:
        """Raise PermissionDenied unless the caller has the right; UnknownTopic where it may not even know that.

        It is asked before anything is looked up: so the answer tells nothing about what there is. A pattern in place of
        a topic's name stands for all that it can match.
        """

    def check_seen(self, caller: Caller, topic: str) -> None:
        """Raise UnknownTopic unless the caller may know that there is such a topic, whether there is one or not."""

    def sees(self, caller: Caller, name: str, kind: Kind = "topic") -> bool:  # noqa: ARG002
        """Return whether the caller may know that there is such a topic, or such a group."""
        return True

    @property
    def own(self) -> Rules:
        """The rules of this broker alone. There are none."""
        return {}, {}

    def share(self, users: Mapping[str, Rights], tokens: Mapping[str, Token]) -> None:
        """Go by these rules as well, which a cluster keeps for all its brokers."""


OPEN: Final = Access()
"""For brokers that only this machine can reach."""
