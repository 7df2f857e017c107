"""Contexts: stores that have been given names, in a file of the user's own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from headwater.core.errors import HeadwaterError, InvalidFile, InvalidName, Problem

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Context:
    """A store, and the files for connecting to it. Secrets stay in files of their own."""

    store: str
    token_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def credentials(self) -> dict[str, Any]:
        """Return the credentials as arguments of `headwater.open`."""
        said: dict[str, Any] = {name: getattr(self, name) for name in ("tls_ca", "tls_certificate", "tls_key")}
        arguments = {name: value for name, value in said.items() if value is not None}
        if self.tls:
            arguments["tls"] = True
        if self.token_file is not None:
            arguments["token"] = Path(self.token_file).read_text(encoding="utf-8").strip()
        return arguments


@dataclass(slots=True)
class Contexts:
    """Every context by its name, and which is used when nothing else is said."""

    file: Path
    current: str | None = None
    known: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Contexts:
        """Return the contexts of this user; none if there is no file."""
        home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or Path.home()) / ".config")
        file = Path(home) / "headwater" / "contexts.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            names = {context_field.name for context_field in fields(Context)}
            known = {
                name: Context(**{key: value for key, value in entry.items() if key in names})
                for name, entry in content["contexts"].items()
            }
            return cls(file, content["current"], known)
        except FileNotFoundError:
            return cls(file)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidFile([Problem(str(file), 1, "", f"this is not a file of contexts: {error}")]) from None

    def get(self, name: str) -> Context:
        """One of them; raises an error that names the others."""
        if name not in self.known:
            others = ", ".join(sorted(self.known)) or "none yet: hw context add NAME STORE"
            raise HeadwaterError(f"context {name!r:.100} does not exist; the contexts are {others}")
        return self.known[name]

    def add(self, name: str, context: Context) -> None:
        """Give a store a name."""
        if not _NAME.fullmatch(name):
            raise InvalidName(f"a context's name has letters, digits, '.', '_' and '-', not {name!r:.100}")
        self.known[name] = context

    def save(self) -> None:
        """Keep them: the file is there as it was or as it is now, and nobody else can read it."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"current": self.current, "contexts": {name: asdict(context) for name, context in self.known.items()}}
        unfinished = self.file.with_suffix(f".{os.getpid()}.tmp")
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.file)
