"""Logs: lines of JSON for machines, or text for people. They are written by a thread, so that nothing waits for them.

Values that belong to a message go with it as `extra={"facts": {...}}`.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final, Literal

from headwater.core.printable import printable

Format = Literal["auto", "json", "text"]
_MAX_WAITING: Final = 10_000
"""So many lines wait for a standard error that is stuck; more are dropped rather than held in memory."""


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(record, "facts", {})
    return facts


class JsonFormatter(logging.Formatter):
    """One JSON object for each line, in ASCII: no data can break a line or speak to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: value for name, value in _facts(record).items() if name not in document}
        if record.exc_info:
            document["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """A line for people; control characters are spelled out."""

    def format(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        facts = "".join(f"  {name}={_shown(value)}" for name, value in _facts(record).items())
        line = printable(f"{moment} {record.levelname.lower():7} {record.getMessage()}{facts}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _shown(value: Any) -> str:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f'"{text}"' if " " in text else text


class Logs:
    """The log of a process, on standard error, until it is closed."""

    def __init__(self, level: str, form: Format) -> None:
        as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
        target = logging.StreamHandler(sys.stderr)
        target.setFormatter(TextFormatter() if as_text else JsonFormatter())
        waiting: queue.Queue[Any] = queue.Queue(_MAX_WAITING)
        self._handler = _Unformatted(waiting)
        self._listener = QueueListener(waiting, target)
        self._listener.start()
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(level.upper())

    def close(self) -> None:
        """Write what is waiting, and stop."""
        logging.getLogger().removeHandler(self._handler)
        self._listener.stop()


class _Unformatted(QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is: it changes no process, and the formatter wants all of it."""
        return record

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Drop it: the queue is full."""
