"""The command `hw`. Each command is a module of its own; `app` puts them together, `main` runs them."""

from headwater.cli.app import main

__all__ = ["main"]
