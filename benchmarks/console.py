"""The console at 1,000 topics beside the same page at 10: how soon it is drawn, and what it takes of memory.

Both are measured in a real Chromium, the system's: from the start of the navigation to the first rows of the list of
topics, with numbers in them; and the memory of the page's scripts and of the console's process when that is done.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import headwater as hw
from benchmarks.report import Row, at_most

_PATIENCE: Final = 120.0
_ROWS: Final = (
    "return [...document.querySelectorAll('.vt-row')].filter(row => /\\d/.test(row.children[2].textContent)).length"
)


class _Seen(NamedTuple):
    """The cost of one look at the page."""

    milliseconds: float
    page_bytes: float
    process_bytes: float


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    many, repeats = (200, 2) if quick else (1000, 5)
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return
    few_seen, many_seen = (_looks(scratch, count, repeats) for count in (10, many))
    for work, unit, field, goal in (
        ("the list of topics is drawn", "ms", "milliseconds", 4.0),
        ("memory of the page's scripts", "bytes", "page_bytes", 4.0),
        ("memory of the console's process", "bytes", "process_bytes", 4.0),
    ):
        ours, theirs = (median(getattr(look, field) for look in seen) for seen in (many_seen, few_seen))
        yield Row(
            work=f"{work} ({many:,} topics)",
            unit=unit,
            ours=ours,
            peer_name="10 topics",
            peer=theirs,
            goal=at_most(goal),
        )


def _looks(scratch: Path, topics: int, repeats: int) -> list[_Seen]:
    directory = scratch / f"topics-{topics}"
    with hw.open(directory) as store:
        for number in range(topics):
            with_records = store.create_topic(f"topic-{number:04d}", sync="never")
            with store.producer(with_records.name) as out:
                out.send(b"x" * 100)
    with _console(directory) as (link, process), _browser() as browser:
        browser.get(link)
        _until(lambda: browser.execute_script("return document.querySelector('.figure') !== null"))
        return [_look(browser, link, process) for _ in range(repeats)]


def _look(browser: Any, link: str, process: subprocess.Popen[str]) -> _Seen:
    browser.get("about:blank")
    begun = time.perf_counter()
    browser.get(link.partition("#")[0] + "#/topics")
    _until(lambda: browser.execute_script(_ROWS) >= 10)
    took = (time.perf_counter() - begun) * 1000
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    used = browser.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    return _Seen(took, float(used), float(resident[1]) * 1024)


@contextmanager
def _console(directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [
        sys.executable,
        "-m",
        "headwater.cli",
        "console",
        str(directory),
        "--listen",
        "127.0.0.1:0",
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()


@contextmanager
def _browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield browser
    finally:
        browser.quit()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
