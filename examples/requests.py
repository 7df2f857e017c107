"""A log of web requests: each line is parsed and counted, and what cannot be parsed is set aside with its error.

`python -m examples.requests [DIRECTORY]` runs it.
"""

from __future__ import annotations

import re
from collections import Counter
from threading import Event

import headwater as hw
from examples.directory import workplace

LINE = re.compile(rb'(?P<host>\S+) \S+ \S+ \[[^]]+\] "(?P<method>[A-Z]+) (?P<path>\S+) [^"]*" (?P<status>\d{3}) \d+')
LINES = [
    b'10.0.0.1 - - [05/Jan/2026:09:30:00 +0000] "GET / HTTP/1.1" 200 512',
    b'10.0.0.2 - - [05/Jan/2026:09:30:01 +0000] "POST /orders HTTP/1.1" 201 64',
    b"\x16\x03\x01 somebody speaks TLS to a port that does not",
    b'10.0.0.1 - - [05/Jan/2026:09:30:02 +0000] "GET /nothing HTTP/1.1" 404 0',
    b'10.0.0.3 - - [05/Jan/2026:09:30:03 +0000] "GET / HTTP/1.1" 200 512',
]


def main() -> None:
    """Write the lines, count them, and show what was set aside."""
    with workplace() as directory, hw.open(directory / "events") as store:
        store.create_topic("requests", partitions=2)
        store.create_topic("requests.unreadable")
        with store.producer("requests") as out:
            for line in LINES:
                out.send(line, key=line.split(maxsplit=1)[0])
        counts: Counter[str] = Counter()
        seen = Counter[str]()
        enough = Event()

        def handle(request: hw.ConsumedRecord) -> None:
            seen["attempts"] += 1
            if seen["attempts"] == len(LINES) + 1:  # one of them is tried twice
                enough.set()
            match = LINE.match(request.value)
            if match is None:
                raise ValueError("this is not a line of an access log")
            counts[match["status"].decode()] += 1

        with store.consumer("requests", group="statistics") as inbox:
            inbox.process(handle, retries=1, retry_delay=0.01, dead_letter="requests.unreadable", stop=enough)
        print("by status:", dict(sorted(counts.items())))  # noqa: T201 - it is what the example shows
        for letter in store.topic("requests.unreadable").partition(0).records():
            print("set aside:", letter.value, letter.headers["dead-letter-error"])  # noqa: T201


if __name__ == "__main__":
    main()
