"""`hw produce` and `hw consume`, on stores in directories and behind brokers."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headwater.cli.records.record_json import moment_of, written_moment
from headwater.cli.records.span import parse_span
from headwater.core.errors import InvalidConfiguration
from headwater.log import Disk
from headwater.streams.start import Time, time
from tests.support.command import Command, hw, local_hw

__all__ = ["hw", "local_hw"]


def values(records: list[Any]) -> list[Any]:
    return [record["value"] for record in records]


# Producing.


def test_lines_become_records(hw: Command) -> None:
    hw("topic", "create", "orders")
    assert hw.json("produce", "orders", stdin="two teas\n\nlast")["records"] == 3
    records = hw.lines("consume", "orders")
    assert values(records) == ["two teas", "", "last"]
    assert [record["offset"] for record in records] == [0, 1, 2]


def test_lines_have_keys_headers_and_delete_markers(hw: Command) -> None:
    hw("topic", "create", "users")
    hw("produce", "users", "-K", ":", "--delete-empty", "-H", "by=me", stdin="ann:1\nann:\nno key\n")
    records = hw.lines("consume", "users")
    assert [(record["key"], record["value"]) for record in records] == [("ann", "1"), ("ann", None), (None, "no key")]
    assert records[0]["headers"] == {"by": "me"}


def test_a_million_lines_need_few_frames(local_hw: Command) -> None:
    local_hw("topic", "create", "orders")
    local_hw("produce", "orders", stdin="".join(f"{number}\n" for number in range(300_000)))
    with local_hw.open() as store:
        statistics = store.topic("orders").partition(0).statistics()
    assert (statistics.total_records, statistics.total_frames < 20) == (300_000, True)


def test_all_is_synced_when_it_returns_also_where_syncs_are_rare(
    hw: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, int] = {}

    def watched(disk: Disk, fd: int) -> None:
        status = os.fstat(fd)
        sync(disk, fd)
        synced[status.st_ino] = status.st_size

    sync = Disk.sync
    monkeypatch.setattr(Disk, "sync", watched)
    hw("topic", "create", "orders", "--partitions", "2", "--set", "sync=1h")  # so only the command itself syncs
    for options, stdin in (["-K", ":"], "a:1\nb:2\nc:3\nd:4\n"), (["-p", "1", "-H", "h=1"], "5\n"):
        hw("produce", "orders", *options, stdin=stdin)
        logs = [log.stat() for log in (tmp_path / "events").glob("orders/*/*.log")]
        assert len(logs) == 2
        assert {log.st_ino: log.st_size for log in logs}.items() <= synced.items()


def test_json_objects_fill_columns_and_give_keys(hw: Command) -> None:
    hw("topic", "create", "trades", "-p", 2, "-c", "symbol:string!,price:float64,at:timestamp[us, UTC]")
    lines = '{"symbol": "A", "price": 1.5}\n\n{"symbol": "B", "at": "2026-01-01T00:00:00Z"}\n'
    assert hw.json("produce", "trades", "-k", "symbol", stdin=lines)["records"] == 2
    records = sorted(hw.lines("consume", "trades"), key=lambda record: str(record["key"]))
    assert [record["key"] for record in records] == ["A", "B"]
    assert records[0]["value"] == {"symbol": "A", "price": 1.5, "at": None}
    assert records[1]["value"]["at"] == "2026-01-01T00:00:00+00:00"
    hw.refused("produce", "trades", stdin='{"symbol": "A"}\n\n{"price": "x"}\n', text="standard input:3: ")
    hw.refused("produce", "trades", stdin='{"price": 1}\n', text="required field")
    hw.refused("produce", "trades", stdin='{"symbol": "A", "prize": 1}\n', text="unexpected field")
    hw.refused("produce", "trades", "-i", "lines", stdin="x", text="the topic is typed")


def test_json_in_a_raw_topic_stays_as_it_is(hw: Command) -> None:
    hw("topic", "create", "orders")
    line = '{"customer": {"id": 7}, "at": "2026-01-01T00:00:00.000000001Z"}'
    hw("produce", "orders", "-i", "json", "-k", "customer.id", "--timestamp", "at", stdin=line + "\n")
    (record,) = hw.lines("consume", "orders")
    assert (record["key"], record["value"], record["timestamp"]) == ("7", line, "2026-01-01T00:00:00.000000001Z")
    hw.refused("produce", "orders", "-i", "json", stdin="{}\n{]\n", text="standard input:2: this is not JSON")
    assert len(hw.lines("consume", "orders")) == 2, "what came before the wrong line is there"


@pytest.mark.parametrize("format", ["csv", "csv.gz", "parquet", "arrow", "arrows"])
def test_files_with_columns_become_typed_topics(hw: Command, tmp_path: Path, format: str) -> None:
    table = pa.table({"symbol": ["A", "B", None], "size": [1, 2, 3]})
    file = tmp_path / f"trades.{format}"
    if format.startswith("csv"):
        sink = io.BytesIO()
        pa.csv.write_csv(table, sink)
        file.write_bytes(gzip.compress(sink.getvalue()) if format.endswith("gz") else sink.getvalue())
    elif format == "parquet":
        pa.parquet.write_table(table, file)
    else:
        make = pa.ipc.new_file if format == "arrow" else pa.ipc.new_stream
        with make(file, table.schema) as sink:
            sink.write_table(table)
    hw.refused(
        "produce",
        "trades",
        file,
        text="give --create" if hw.store.startswith("hw") else "does not exist: hw topic create",
    )
    assert hw.json("produce", "trades", file, file, "--create", "-k", "size")["records"] == 6
    records = hw.lines("consume", "trades")
    assert values(records)[:2] == [{"symbol": "A", "size": 1}, {"symbol": "B", "size": 2}]
    assert records[0]["key"] == "1"
    with hw.open() as store:
        assert store.topic("trades").statistics().partitions[0].total_frames == 2, "a frame for each file"


def test_rows_become_json_in_a_raw_topic(hw: Command, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,x\n2,y\n")
    hw("topic", "create", "rows")
    hw("produce", "rows", tmp_path / "rows.csv")
    assert [json.loads(value) for value in values(hw.lines("consume", "rows"))] == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]


HOSTILE = b"\x1b]0;owned\x07[red]\xff"


@pytest.mark.parametrize("format", ["records", "parquet", "arrow", "csv"])
def test_what_is_consumed_can_be_produced(hw: Command, format: str) -> None:
    hostile = (
        HOSTILE if format != "csv" else HOSTILE.removesuffix(b"\xff")
    )  # of bytes, CSV has only those that are text
    with hw.open() as store:
        store.create_topic("raw")
        columns = [("x", pa.int64()), ("at", pa.timestamp("ns")), ("text", pa.string())]
        store.create_topic("typed", schema=pa.schema(columns))
        with store.producer("raw") as out:
            out.send(hostile, hostile, {"h": HOSTILE}, timestamp=-5)
            out.send(b"plain", timestamp=7)
            for text in (b"007", b"1e3", b"true", b"2026-01-01", b"NA", b"null", b"", b'a,"b"\r\nc', b" x "):
                out.send(text, text, timestamp=9)
            out.send(None, b"deleted", timestamp=10)
        with store.producer("typed") as out:
            out.send({"x": 1, "at": 1_000_000_001, "text": ""}, b"k", timestamp=8)
            out.send({"x": None, "at": 1_000_000_001, "text": "NA"}, b"007", {"h": HOSTILE}, timestamp=9)
            out.send({"x": 2, "at": None, "text": None}, b"", timestamp=9)
    for name in ("raw", "typed"):
        flags = [] if format == "records" else ["--format", format]
        content = hw.binary("consume", name, *flags)
        hw("topic", "copy", name, "again", "--to", "start")
        hw("produce", "again", "--input", format, stdin=content)
        with hw.open() as store:
            before, after = (list(store.topic(topic).partition(0).records()) for topic in (name, "again"))
            assert after == before
        hw("topic", "delete", "again", "--yes")


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
def test_a_file_of_a_raw_topic_makes_a_raw_topic(hw: Command, tmp_path: Path, format: str) -> None:
    hw("topic", "create", "orders")
    hw("produce", "orders", "-K", ":", "-H", "h=1", stdin="007:1\n")
    file = tmp_path / f"orders.{format}"
    file.write_bytes(hw.binary("consume", "orders", "--format", format))
    hw("produce", "again", file, "--create")
    (before,), (after,) = hw.lines("consume", "orders"), hw.lines("consume", "again")
    assert after == before | {"topic": "again"}


def test_what_is_empty_has_columns_all_the_same(hw: Command) -> None:
    hw("topic", "create", "trades", "-c", "symbol:string", "-c", "price:float64")
    assert hw("consume", "trades", "-c", "symbol,price", "-o", "csv") == "symbol,price\n"
    assert hw("sql", "SELECT symbol FROM trades", "-o", "csv") == "symbol\n"


@pytest.mark.parametrize("columns", [[], ["-c", "n:int64"]], ids=["raw", "typed"])
def test_what_was_before_a_bad_line_is_kept(local_hw: Command, columns: list[str]) -> None:
    local_hw("topic", "create", "orders", *columns)
    good = "".join(f'{{"n": {number}}}\n' for number in range(110_000))
    told = "standard input:110001: "
    local_hw.refused("produce", "orders", "-i", "json", stdin=good + "bad\n" + good, text=told)
    assert len(local_hw.lines("consume", "orders", "--columns", "n" if columns else "offset")) == 110_000


def test_an_atomic_produce_writes_all_of_its_input_or_nothing(hw: Command) -> None:
    hw("topic", "create", "orders", "--partitions", "2")
    good = "".join(f'{{"n": {number}}}\n' for number in range(100))
    options = ("-i", "json", "-k", "n", "--atomic")
    hw.refused("produce", "orders", *options, stdin=good + "bad\n", text="nothing was written to orders")
    assert hw.lines("consume", "orders") == []
    assert hw.json("produce", "orders", *options, stdin=good)["records"] == 100
    assert len(hw.lines("consume", "orders")) == 100


def test_an_object_is_as_large_as_a_value_may_be(local_hw: Command) -> None:
    local_hw("topic", "create", "texts", "-c", "text:string")
    large = "x" * 5_000_000
    local_hw("produce", "texts", stdin=json.dumps({"text": large}) + '\n{"text": "y"}\n')
    assert [record["value"]["text"] for record in local_hw.lines("consume", "texts")] == [large, "y"]


WRONG_INPUT: list[tuple[list[str], bytes, int, str]] = [
    (["-i", "records"], b'{"value": "x", "headers": 7}', 1, "standard input:1: headers are names and values, not 7"),
    (["-i", "records"], b'{"value": "x", "timestamp": "soon"}', 1, "standard input:1: 'soon' is no time"),
    (["-i", "records"], b"[" * 100_000, 1, "standard input:1: this is not JSON"),
    (["-i", "json", "--timestamp", "at"], b'{"at": 99999999999999999999}', 1, "nanoseconds in 64 bits"),
    (["-i", "json", "--timestamp", "at"], b'{"at": "9999-01-01"}', 1, "nanoseconds in 64 bits"),
    (["-i", "json", "--timestamp", "at"], '{"at": "\u00b2"}'.encode(), 1, "is no time in ISO 8601"),
    (["-i", "csv"], b'value,headers\nx,"[1, 2]"\n', 1, "headers are names and values"),
    (["-K", "\\"], b"a:b", 2, "--key-separator"),
    (["-K", ""], b"a:b", 2, "--key-separator"),
    (["-H", "\udcff=x"], b"a", 2, "a header's name is text"),
    (["-i", "xml"], b"a", 2, "unknown format 'xml'"),
]


def test_input_that_is_wrong_is_refused_in_one_line(local_hw: Command, tmp_path: Path) -> None:
    local_hw("topic", "create", "orders")
    for flags, content, code, says in WRONG_INPUT:
        local_hw.refused("produce", "orders", *flags, stdin=content, code=code, text=says)
    for name in ("orders.txt.gz", "orders.csv.zst"):
        (tmp_path / name).write_bytes(b"this is not compressed")
        local_hw.refused("produce", "orders", tmp_path / name, text=name)
        local_hw.refused("topic", "create", "more", "--like", tmp_path / name, text=name)
    local_hw("produce", "orders", "-H", "h=\udcff", stdin="x\n")
    assert local_hw.lines("consume", "orders")[-1]["headers"] == {"h": {"hex": "ff"}}


# Consuming.


@pytest.fixture
def filled(hw: Command) -> Command:
    """Two partitions with 10 records each, a second apart."""
    with hw.open() as store:
        store.create_topic("orders", 2)
        for partition in range(2):
            with store.producer("orders") as out:
                for number in range(10):
                    key = b"k%d" % (number % 3)
                    out.send(
                        b'{"n": %d, "who": {"id": "c%d"}}' % (number, number),
                        key,
                        {"trace": b"%d" % number},
                        partition=partition,
                        timestamp=(100 * partition + number) * 1_000_000_000,
                    )
    return hw


CHOSEN: list[tuple[list[str], list[int]]] = [
    ([], [*range(10), *range(10)]),
    (["--from", "7"], [7, 8, 9, 7, 8, 9]),
    (["--from", "-1"], [9, 9]),
    (["--from", "end"], []),
    (["--to", "2"], [0, 1, 0, 1]),
    (["--from", "3:5", "-p", "1"], [3, 4]),
    (["--from", ":-9"], [0, 0]),
    (["--from", "-2:"], [8, 9, 8, 9]),
    (["--from", "@1970-01-01T00:00:08Z", "-p", "0"], [8, 9]),
    (["--from", "@1970-01-01T00:00:08+00:00:@1970-01-01T00:00:09Z", "-p", "0"], [8]),
    (["--from", "@-1h"], []),
    (["--limit", "3"], [0, 1, 2]),
    (["--limit", "0"], []),
    (["--limit", "11"], [*range(10), 0]),
    (["--where", "key = 'k0'"], [0, 3, 6, 9, 0, 3, 6, 9]),
    (["--where", "key != 'k0'", "--where", "offset<2"], [1, 1]),
    (["--where", "value.n >= 8"], [8, 9, 8, 9]),
    (["--where", "value.who.id = 'c4'"], [4, 4]),
    (["--where", "value ~ 'c[12]'"], [1, 2, 1, 2]),
    (["--where", "value !~ 'c[0-8]'"], [9, 9]),
    (["--where", "headers.trace = '5'", "--where", "partition = 1"], [5]),
    (["--where", "timestamp >= '1970-01-01T00:01:45Z'"], [5, 6, 7, 8, 9]),
    (["--where", "value.nothing = 1"], []),
    (["--where", "value.n in (1, 8) and header('trace') like '_' or offset = 0 and partition = 1"], [1, 8, 0, 1, 8]),
]


def test_a_range_and_conditions_choose_records(filled: Command) -> None:
    for flags, offsets in CHOSEN:
        consumed = [record["offset"] for record in filled.lines("consume", "orders", *flags)]
        assert consumed == offsets, flags


def test_columns_are_chosen(filled: Command) -> None:
    records = filled.lines("consume", "orders", "--columns", "offset,partition,key", "-n", "1", "-w", "value.n = 2")
    assert records == [{"offset": 2, "partition": 0, "key": "k2"}]
    lines = filled("consume", "orders", "--columns", "key,offset", "--format", "csv", "-n", "2").splitlines()
    assert lines == ["key,offset", "k0,0", "k1,1"]
    table = pa.parquet.read_table(
        io.BytesIO(filled.binary("consume", "orders", "-c", "partition,offset", "-o", "parquet"))
    )
    assert table.schema.names == ["partition", "offset"]
    assert table.num_rows == 20


def test_a_format_says_what_is_written(filled: Command) -> None:
    flags = ["consume", "orders", "-n", "1", "--from", "3"]
    told = filled(*flags, "-o", r"%p %o %t %k %h %n %s%%\t[\x41]")
    assert told == "0 3 1970-01-01T00:00:03.000000000Z k0 trace=3 orders 29%\t[A]\n"
    assert filled(*flags, "--format", r"%k\c") == "k0"
    filled.refused(*flags, "--format", "jsn", code=2, text="unknown format 'jsn'; the formats are json, csv")
    filled("topic", "create", "typed", "-c", "x:int64,y:string")
    filled("produce", "typed", stdin='{"x": 1, "y": "why"}')
    assert filled("consume", "typed", "-o", "%{y} %{x} %v") == 'why 1 {"x": 1, "y": "why"}\n'


def test_a_group_that_retention_has_overtaken_chooses_what_to_do(hw: Command) -> None:
    flags = ["consume", "orders", "--group", "billing", "--format", "%v"]
    with hw.open() as store:
        store.create_topic("orders")
        with store.producer("orders") as out:
            out.send(b"read")
    assert hw(*flags).split() == ["read"]
    with hw.open() as store:
        with store.producer("orders") as out:
            out.send(b"lost")
            out.flush()
            store.topic("orders").partition(0).roll()
            out.send(b"kept")
        store.topic("orders").partition(0).delete_before(2)
    hw.refused(*flags, text="offsets 1 to 2 (exclusive) are gone")
    assert hw(*flags, "--on-loss", "skip").split() == ["kept"]


def test_a_group_goes_on_where_it_was(filled: Command) -> None:
    flags = ["consume", "orders", "--group", "billing"]
    first = filled.lines(*flags, "--limit", "7")
    rest = filled.lines(*flags)
    assert (len(first), len(rest)) == (7, 13)
    assert filled.lines(*flags) == []
    positions = [(record["partition"], record["offset"]) for record in first + rest]
    assert sorted(positions) == [(partition, offset) for partition in range(2) for offset in range(10)]
    assert filled.json("topic", "describe", "orders")["groups"] == {"billing": 0}


def test_following_ends_with_its_limit(filled: Command) -> None:
    records = filled.lines("consume", "orders", "--follow", "--from", "-3", "--limit", "6")
    assert sorted((record["partition"], record["offset"]) for record in records) == [
        (p, o) for p in (0, 1) for o in (7, 8, 9)
    ]
    assert len(filled.lines("consume", "orders", "-f", "-p", "1", "--from", "start", "-n", "10")) == 10


REFUSED = [
    (["orders", "--from", "bogus"], "'bogus' is not a position"),
    (["orders", "--from", "5:bogus"], "'5:bogus' is not a position"),
    (["orders", "--from", "1:2", "--to", "3"], "--from '1:2' has an end of its own: leave out --to"),
    (["orders", "-p", "7"], "has partitions 0 to 1, not 7"),
    (["orders", "--where", "bogus = 1"], "there is no column 'bogus'"),
    (["orders", "--where", "bogus"], "--where: there is no column 'bogus'"),
    (["orders", "--where", "key = cust-7"], "text and times are written in single quotes, at character 11"),
    (["orders", "--where", "value ~ '('"], "--where: '(' is no regular expression"),
    (["orders", "--where", "offset > x"], "--where: there is no column 'x'"),
    (["orders", "--columns", "bogus"], "unknown columns bogus; the columns are partition, offset"),
    (["orders", "--where", "timestamp > 'yesterday'"], "'yesterday' is no time"),
    (["orders", "--format", "%q"], "unknown field %q"),
    (["orders", "--format", "%v\\xZZ"], "unknown escape \\x"),
    (["orders", "--format", "%v", "--columns", "key"], "--columns is for json, csv, arrow and parquet"),
    (["typed", "--format", "%{bogus}"], "column 'bogus' does not exist; the columns are n"),
    (["orders", "--limit", "-1"], "'--limit' / '-n'"),
    (["orders", "--format", "%{x}"], "is for typed topics"),
    (["orders", "--to", "5", "--follow"], "leave out --follow"),
    (["orders", "--group", "g", "--format", "parquet"], "use --format arrow"),
]


def test_what_cannot_be_read_is_refused_in_one_line(filled: Command) -> None:
    filled("topic", "create", "typed", "-c", "n:int64")
    filled("produce", "typed", stdin='{"n": 1}\n')
    for flags, says in REFUSED:
        filled.refused("consume", *flags, code=2, text=says)
    filled.refused("consume", "nope", text="there is no topic 'nope'")
    filled.refused("consume", "orders", "--from", "99", "-p", "0", text="is not there yet")


# Positions and times.


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("start", "earliest", "latest"),
        ("end", "latest", "latest"),
        ("17", 17, "latest"),
        ("-5:-2", -5, -2),
        ("start:17", "earliest", 17),
        ("earliest:latest", "earliest", "latest"),
        (":", "earliest", "latest"),
        ("@2026-01-01T10:30Z", time("2026-01-01T10:30Z"), "latest"),
        ("@2026-01-01T10:30:15Z:@2026-01-01T11:00:00Z", time("2026-01-01T10:30:15Z"), time("2026-01-01T11:00Z")),
        ("5:@2026-01-01T11:00Z", 5, time("2026-01-01T11:00Z")),
    ],
)
def test_ranges_are_read_as_people_write_them(text: str, start: Any, end: Any) -> None:
    span = parse_span(text, None)
    assert (span.start, span.end) == (start, end)


@pytest.mark.parametrize("text", ["", "@", "x", "1:2:3", "@tomorrow", "--5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="is not a position"):
        parse_span(text, None)


def test_a_time_that_was_written_is_read_to_the_nanosecond() -> None:
    for moment in (0, 1, -1, 1_767_225_600_123_456_789, -(10**18) - 7, (1 << 63) - 1, -(1 << 63)):
        assert moment_of(written_moment(moment)) == moment
    assert isinstance(parse_span("@-1h", None).start, Time)
