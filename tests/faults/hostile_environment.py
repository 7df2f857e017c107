"""Hostile environments and presets: strange values in variables, misspelt variables, strange values in presets.

A store that opens with them works: what is sent comes back. Impossible values are refused by one of Headwater's own
errors, which names the variable or the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import headwater as hw
from headwater.core.environment import PREFIX, VARIABLES, overridden
from headwater.core.options import options_of
from headwater.core.presets import nouns
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.memory_store import MemoryStore
from tests.faults import Kind, Run, Violation, proof
from tests.faults.hostile_files import VALUES
from tests.support.patience import Patience

PATIENCE = 30.0
RECORDS = 20
TEXTS = (
    *("0", "1", "-1", "0.5", "1e3", "nan", "inf", "0x10", "1_000", "9" * 20, "9" * 10_000, "1" + "0" * 400, "٣", "½"),
    *("1ms", "20 ms", "1MS", "5min", "1h", "7d", "1.5d", "1KiB", "64 kib", "1GiB", "1EiB", "1MB", "4K", "1.0000001KiB"),
    *("always", "NEVER", "none", "None", "null", "true", "False", "yes", "off", "zstd", "lz4", "gzip"),
    *("", " ", "\t", "\n1", "1\n", "\x00", "\udcff", "{}", "${HOME}", "'always'", "always never", "=", "a" * 5000),
)


@proof(row=22, title="hostile environments and presets of a store", runs=5000, quick=100)
def hostile_environment(run: Run) -> Iterator[Violation]:
    """Set some variables and some options of a preset: they are refused by name, or the store works with them."""
    environment = dict(_variable(run.random) for _ in range(run.random.choice((0, 1, 1, 2, 4, 12))))
    values = [_option(run.random) for _ in range(run.random.choice((0, 1, 1, 3)))]
    told = f"with {environment!r:.2000} and {values!r:.2000}"
    try:
        defaults = overridden(_preset(values, run.random), environment)
    except hw.InvalidConfiguration as error:
        named = [*environment, *(name for _, name, _ in values)]
        if not any(name in str(error) for name in named):
            yield Violation(Kind.CRASH, f"{error} does not say which, {told}")
        return
    kind: Any = run.random.choice((MemoryStore, lambda **options: DirectoryStore(run.directory / "s", **options)))
    try:
        with kind(defaults=defaults) as store:
            for violation in _used(store):
                yield Violation(violation.kind, f"{violation.detail}, {told}")
    except hw.HeadwaterError:
        pass
    except Exception as error:
        error.add_note(told)
        raise


def _variable(random: Random) -> tuple[str, str]:
    """A variable, at times misspelt, with a text that may be right."""
    name = random.choice(list(VARIABLES))
    if random.random() < 0.1:
        at = random.randrange(len(PREFIX), len(name))
        name = name[:at] + random.choice(("", "_", "X", name[at].lower(), name[at] * 2)) + name[at + 1 :]
    return name, random.choice(TEXTS)


def _option(random: Random) -> tuple[str, str, Any]:
    noun, kind = random.choice(list(nouns().items()))
    option = random.choice(options_of(kind))
    value = random.choice(VALUES)
    if option.range is not None and random.random() < 0.5:
        value = random.choice((option.range.least, option.range.most))
    return noun, option.name, value


def _preset(values: list[tuple[str, str, Any]], random: Random) -> hw.Preset:
    """A preset with these options, or one that was sized."""
    if not values and random.random() < 0.5:
        return hw.presets.sized(partitions=random.choice((1, 3)), memory=random.choice((3 << 16, 1 << 20, 1 << 40)))
    by_noun: dict[str, dict[str, Any]] = {noun: {} for noun in nouns()}
    for noun, name, value in values:
        by_noun[noun][name] = value
    return hw.Preset(**{noun: kind(**by_noun[noun]) for noun, kind in nouns().items()})


def _used(store: hw.Store) -> Iterator[Violation]:
    """Send, read and clean: what was sent comes, and nothing else."""
    store.create_topic("t", partitions=3)
    sent = {b"value of %d" % number for number in range(RECORDS)}
    with store.producer("t") as out:
        for number, value in enumerate(sorted(sent)):
            out.send(value, key=b"%d" % number)
        out.flush()
    read: set[bytes] = set()
    patience = Patience(PATIENCE)
    with store.consumer("t", group="g") as inbox:
        while not sent <= read and not patience.exhausted():
            with suppress(hw.StaleMember):  # a `max_poll_interval` shorter than a poll takes
                for record in inbox.poll(timeout=0.1):
                    read.add(record.value)
                    inbox.ack(record)
    if read != sent:
        yield Violation(Kind.LOST_WRITE, f"{len(sent - read)} records did not come, {len(read - sent)} were not sent")
    store.steward().run_once()
    store.statistics()
