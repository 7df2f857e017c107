"""A mistake on the command line that typer cannot see: a position that is none, a condition on no column."""

from __future__ import annotations

from headwater.core.errors import InvalidConfiguration


class Mistake(InvalidConfiguration):
    """What was typed cannot be meant. The exit code is 2, as for an option that there is not."""
