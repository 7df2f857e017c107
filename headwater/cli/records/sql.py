"""`hw sql`: ask topics in SQL, by DuckDB over Arrow.

Topics are tables, read as they were when the question was asked. The question can come from anywhere: unless it is
asked for, SQL reaches no file and no network, and cannot change that.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import typer

from headwater.cli.arguments import Mistake
from headwater.cli.output import Json, console, printable, shown, table
from headwater.cli.records.record_json import plain
from headwater.cli.records.writing import ArrowWriter, CsvWriter, JsonColumns, RecordWriter, values_of
from headwater.cli.target import StoreOption, opened
from headwater.core.errors import HeadwaterError
from headwater.core.schema import RAW

if TYPE_CHECKING:
    import duckdb

    from headwater.streams import Store, Topic

app = typer.Typer(add_completion=False)

_FORMATS: Final = ("json", "csv", "arrow", "parquet")
_ROWS: Final = 10_000
_SHOWN: Final = 100
_WIDEST: Final = 60
_INTERRUPTING: Final = 2.0
"""Seconds that DuckDB has to end an interrupted query."""
_ALWAYS: Final = {"python_enable_replacements": "false"}
"""The variables of this program are no tables."""
_CLOSED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}
_TEXT: Final = (
    'SELECT partition, "offset", timestamp, TRY(decode(key)) AS key, headers, TRY(decode(value)) AS value, '
    "key AS key_bytes, value AS value_bytes FROM {source}"
)
_TYPED: Final = "SELECT * REPLACE (TRY(decode(_key)) AS _key) FROM {source}"


@app.command(
    epilog="[bold]Examples[/]\n\n"
    '  hw sql "SELECT symbol, max(price) FROM trades GROUP BY ALL"\n'
    "  hw sql \"SELECT value->>'customer' AS who, count(*) FROM orders GROUP BY ALL\"    JSON in a raw topic\n"
    "  hw sql 'SELECT * FROM \"orders.eu\" JOIN customers USING (customer)'                names with dots\n"
    "  hw sql --files \"SELECT * FROM trades JOIN 'symbols.parquet' USING (symbol)\"\n"
    "  hw sql --format parquet 'FROM trades' > trades.parquet",
)
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query; - reads it from standard input.")],
    files: Annotated[
        bool, typer.Option("--files", help="Let the query read and write files, and reach the network.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--format", "-o", metavar="FORMAT", help=f"{', '.join(_FORMATS)}.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, metavar="N", help="Rows to show on a terminal; 0 is all.")
    ] = _SHOWN,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Query topics in SQL, by DuckDB. Each topic is a table of the records that it had when the query began.

    A raw topic has the columns partition, offset, timestamp, key, headers and value. Key and value are text; key_bytes
    and value_bytes are the bytes. A typed topic has its columns, and Headwater's own with an underscore.
    """
    if output is not None and output not in _FORMATS:
        raise Mistake(f"unknown format {output!r:.60}; the formats are {', '.join(_FORMATS)}")
    duck = _duckdb()
    text = sys.stdin.read() if query == "-" else query
    with opened(store) as opened_store:
        connection = duck.connect(":memory:", config=_ALWAYS if files else _ALWAYS | _CLOSED)
        try:
            tables = [
                _table(connection, opened_store, number, name) for number, name in enumerate(_named(opened_store, text))
            ]
            connection.execute("SET lock_configuration = true")
            with _ended_by_ctrl_c(connection):
                result = connection.sql(text)
                if result is not None:
                    _write(result.to_arrow_reader(_ROWS), output, limit, as_json)
                del result, tables
        except duck.InterruptException:
            raise KeyboardInterrupt from None
        except RuntimeError as error:  # DuckDB has more than one way to say that it was interrupted
            if "interrupted" not in str(error).lower():
                raise
            raise KeyboardInterrupt from None
        except duck.Error as error:
            raise HeadwaterError(_explained(str(error), files)) from None
        finally:
            connection.close()


@contextmanager
def _ended_by_ctrl_c(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C end the query at once: Python's own handler would wait until DuckDB comes back."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)  # as the interpreter wants it
    done = threading.Event()

    def watch() -> None:
        while number := receiver.recv(1):
            if number[0] == signal.SIGINT:
                connection.interrupt()
                if not done.wait(_INTERRUPTING):
                    os._exit(128 + signal.SIGINT)

    before = signal.set_wakeup_fd(sender.fileno())
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        sender.close()
        watching.join()
        receiver.close()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise HeadwaterError("hw sql needs DuckDB: run pip install 'headwater[sql]'") from None
    return duckdb


def _explained(message: str, files: bool) -> str:
    message = message.partition(". Detail: Python exception:")[0].strip()  # what follows is where, in this program
    if "file system operations" in message and not files:
        return f"{message}; --files lets SQL reach files and the network"
    if message.startswith("Catalog Error: Table"):
        return f"{message}; hw topic list shows the topics"
    return message


def _named(store: Store, text: str) -> list[str]:
    """Return the topics whose names are in the text. A few too many cost nothing."""
    lowered = text.lower()
    return [name for name in store.topics() if name.lower() in lowered]


def _table(connection: duckdb.DuckDBPyConnection, store: Store, number: int, name: str) -> TopicTable:
    """A topic as a table of its name."""
    source = f"__topic_{number}"
    topic = TopicTable(store.topic(name))
    connection.register(source, topic)
    select = (_TEXT if topic.raw else _TYPED).format(source=source)
    quoted = name.replace('"', '""')
    connection.execute(f'CREATE TEMP VIEW "{quoted}" AS {select}')
    return topic


class TopicTable:
    """A topic up to where it ends now, which can be read any number of times: a table may be joined with itself."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._schema = topic.schema
        self._ranges = {number: (bounds.start, bounds.end) for number, bounds in topic.bounds().items()}
        self.raw = self._schema.raw

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Arrow's own protocol between libraries: a new stream each time."""
        reader = self._topic.scan(0, 0) if not self._ranges else self._reader()
        return reader.__arrow_c_stream__(requested_schema)

    def _reader(self) -> pa.RecordBatchReader:
        column = self._schema.system("partition")
        output = pa.schema([pa.field(column, pa.int32(), nullable=False), *self._schema.full])
        return pa.RecordBatchReader.from_batches(output, self._batches(output))

    def _batches(self, output: pa.Schema) -> Any:
        for number, (start, end) in self._ranges.items():
            if start >= end:
                continue
            for batch in self._topic.partition(number).scan(start, end, schema=self._schema):
                partition = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                yield pa.RecordBatch.from_arrays([partition, *batch.columns], schema=output)


def _write(reader: pa.RecordBatchReader, output: str | None, limit: int, as_json: bool) -> None:
    terminal = sys.stdout.isatty()
    if output is None and terminal and not as_json:
        _show(reader, limit)
        return
    if output in ("arrow", "parquet") and terminal:
        raise HeadwaterError(f"{output} is not for terminals: redirect it to a file, such as > rows.{output}")
    writer: RecordWriter = JsonColumns()
    if output == "csv":
        writer = CsvWriter(reader.schema)
    elif output in ("arrow", "parquet"):
        writer = ArrowWriter(reader.schema, parquet=output == "parquet")
    for batch in reader:
        writer.write("", 0, batch, RAW)
    writer.close()


def _show(reader: pa.RecordBatchReader, limit: int) -> None:
    """A table for people, up to so many rows."""
    numbers = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in reader.schema]
    listed = table(
        *(
            f"{'>' if number else ''}{printable(field.name)}"
            for field, number in zip(reader.schema, numbers, strict=True)
        )
    )
    rows = 0
    for batch in reader:
        for row in zip(*map(values_of, batch.columns), strict=True):
            rows += 1
            if not limit or rows <= limit:
                listed.add_row(*(shown("" if value is None else str(plain(value)), limit=_WIDEST) for value in row))
    people = console()
    people.print(listed)
    hidden = rows - limit if limit and rows > limit else 0
    people.print(shown(f"{rows:,} rows" + (f", {hidden:,} of them not shown: --limit 0" if hidden else ""), "dim"))
