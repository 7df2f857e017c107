"""`hw pipeline`: check, run and look at declared pipelines."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.descriptors import silenced_children
from headwater.cli.output import Json, Yes, confirm, console, done, printable, shown, wants_json, write_json
from headwater.core.errors import InvalidPipeline, PipelineRunning

app = typer.Typer(
    no_args_is_help=True,
    help="Run pipelines: topics and files through SQL and Python to topics and tables, from one file.",
    epilog="[bold]Examples[/]\n\n"
    "  hw pipeline validate revenue.yaml     is it right? Spark is not needed\n"
    "  hw pipeline explain revenue.yaml      the graph\n"
    "  hw pipeline run revenue.yaml          up to the present end, or for ever: as it says\n"
    "  hw pipeline status revenue.yaml       its progress, and its last runs",
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A declaration: YAML, TOML or Python.")]


def _load(file: Path) -> Any:
    """Return the declaration in a file. Its problems go to standard error, a line for each."""
    from headwater.spark.pipeline import Pipeline

    try:
        return Pipeline.load(file).declaration()
    except InvalidPipeline as error:
        _refuse(error)


def _refuse(error: InvalidPipeline) -> None:
    for problem in error.problems:
        sys.stderr.write(printable(" ".join(str(problem).split())) + "\n")
    raise typer.Exit(1)


@app.command(epilog="[bold]Examples[/]\n\n  hw pipeline validate revenue.yaml && echo ok")
def validate(file: _File, as_json: Json = False) -> None:
    """Check a declaration without starting Spark, and name everything that is wrong, by file, line and key."""
    declaration = _load(file)
    if wants_json(as_json):
        parts_of = {"sources": declaration.sources, "steps": declaration.steps, "sinks": declaration.sinks}
        write_json({"pipeline": declaration.name} | {kind: [part.name for part in parts_of[kind]] for kind in parts_of})
        return
    parts = f"{len(declaration.sources)} sources, {len(declaration.steps)} steps, {len(declaration.sinks)} sinks"
    done(f"{declaration.name}: {parts}")


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw pipeline explain revenue.yaml\n"
    "  hw pipeline explain --dot revenue.yaml | dot -Tsvg > revenue.svg\n"
    "  hw pipeline explain --mermaid revenue.yaml"
)
def explain(
    file: _File,
    dot: Annotated[bool, typer.Option("--dot", help="For Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="For Mermaid, as in Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Draw the graph: sources, steps and sinks."""
    from headwater.spark.pipeline.graph import Graph

    declaration = _load(file)
    graph = Graph(declaration)
    if dot or mermaid:
        sys.stdout.write((graph.dot() if dot else graph.mermaid()) + "\n")
        return
    if as_json:
        write_json({"pipeline": graph.name, "parts": [asdict(vertex) for vertex in graph.ordered()]})
        return
    people = console()
    people.print(Text.assemble((printable(graph.name), "bold"), (f"  {declaration.trigger}", "dim")))
    lines = graph.text()
    width = max(len(gutter) + len(vertex.name) for gutter, vertex in lines) + 2
    for gutter, vertex in lines:
        space = " " * (width - len(gutter) - len(vertex.name))
        name = Text.assemble((gutter, "cyan"), " ", (printable(vertex.name), "bold"), space)
        people.print(Text.assemble(name, (printable(vertex.detail), "dim")), soft_wrap=True)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw pipeline run revenue.yaml\n"
    "  hw pipeline run --trigger continuous --metrics-port 9400 revenue.yaml\n"
    "  hw pipeline run revenue.yaml | jq      a line of JSON for everything that happens"
)
def run(
    file: _File,
    trigger: Annotated[
        str | None, typer.Option(metavar="WHEN", help="available-now, continuous, or a length of time such as 10s.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Serve metrics for Prometheus here.")
    ] = None,
    metrics_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write metrics for Prometheus to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline: resume where it was and write each row once, until it is done, Ctrl-C or SIGTERM.

    The exit code is 1 when a sink failed for good.
    """
    from headwater.cli.spark.pipeline_display import JsonLines, LiveTable
    from headwater.spark.pipeline.metrics import Metrics, MetricsFile, MetricsServer
    from headwater.spark.pipeline.progress import Observer
    from headwater.spark.pipeline.runner import run as run_pipeline

    declaration = _load(file)
    display = JsonLines() if wants_json(as_json) else LiveTable(declaration.name)
    observers: list[Observer] = []
    with ExitStack() as stack:
        if metrics_port is not None:
            metrics = Metrics(declaration.name)
            observers.append(metrics)
            stack.callback(MetricsServer(metrics.text, metrics_port).close)
        if metrics_file is not None:
            observers.append(MetricsFile(declaration.name, metrics_file))
        observers.append(display)  # the last: who sees a batch finds it in the metrics
        try:
            with silenced_children():  # a worker of Spark that Ctrl-C ends would show its stack
                run_pipeline(declaration, trigger=_trigger(trigger), observers=observers, show=display.show)
        except InvalidPipeline as error:
            _refuse(error)


def _trigger(text: str | None) -> Any:
    from headwater.core.document import Document
    from headwater.core.section import Section
    from headwater.spark.pipeline.validation import parse_trigger

    if text is None:
        return None
    section = Section.whole(Document("--trigger", Path(), {"trigger": text}))
    trigger = parse_trigger(section)
    if section.problems:
        raise typer.BadParameter(section.problems[0].message, param_hint="--trigger")
    return trigger


@app.command(
    epilog="[bold]Examples[/]\n\n  hw pipeline status revenue.yaml\n  hw pipeline status revenue.yaml | jq .lag"
)
def status(file: _File, as_json: Json = False) -> None:
    """Show a pipeline's progress, whether it runs, and its last run. Spark is not needed."""
    from headwater.spark.pipeline.status import PipelineStatus

    declaration = _load(file)
    pipeline_status = PipelineStatus.of(declaration)
    if wants_json(as_json):
        write_json(pipeline_status.document())
        return
    people = console()
    state = Text("running", "bold green") if pipeline_status.running else Text("not running", "dim")
    people.print(
        Text.assemble((printable(pipeline_status.pipeline), "bold"), "  ", state, f"  lag {pipeline_status.lag:,}")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sink")
    for heading in ("batch", "rows", "rows/s", "at"):
        table.add_column(heading, justify="right")
    for sink, batch in pipeline_status.sinks.items():
        last = pipeline_status.last_batches.get(sink, {})
        table.add_row(
            shown(sink),
            "none" if batch is None else f"{batch:,}",
            f"{last.get('rows', 0):,}",
            f"{last.get('rows_per_second', 0):,.0f}",
            shown(str(last.get("at", ""))),
        )
    people.print(table)
    if pipeline_status.last_error:
        people.print(Text.assemble(("✗ ", "bold red"), printable(pipeline_status.last_error)))


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw pipeline reset revenue.yaml                  begin anew, after asking\n"
    "  hw pipeline reset --tables --yes revenue.yaml   and remove the content of its Parquet and Delta tables"
)
def reset(
    file: _File,
    tables: Annotated[bool, typer.Option("--tables", help="Remove the tables of Parquet and Delta too.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Forget a pipeline's progress: the next run begins where its sources say, and writes its results again.

    The rows in its topics stay, so they will be there twice. The state of windows and joins is forgotten.
    """
    from headwater.spark.pipeline.declaration import TableSink
    from headwater.spark.pipeline.position import PipelinePosition
    from headwater.spark.pipeline.staging import private_directory
    from headwater.spark.pipeline.state import PipelineState
    from headwater.spark.pipeline.status import streamed_stores

    declaration = _load(file)
    state = PipelineState(declaration)
    if state.is_running():
        raise PipelineRunning(declaration.name, declaration.checkpoint)
    removed = [
        Path(sink.path)
        for sink in declaration.sinks
        if tables and isinstance(sink, TableSink) and sink.format != "iceberg" and "://" not in sink.path
    ]
    more = f", and remove {', '.join(map(str, removed))}" if removed else ""
    confirm(f"Forget the progress of pipeline {declaration.name}{more}?", yes)
    state.reset()
    position = PipelinePosition(declaration.group, streamed_stores(declaration))
    try:
        position.rewind()
    finally:
        position.close()
    for path in removed:
        # The table goes before the record of what it has: in between, a run is refused instead of writing rows twice.
        for directory in (path, private_directory(path)):
            shutil.rmtree(directory, ignore_errors=True)
    if wants_json(as_json):
        write_json({"reset": declaration.name, "removed": list(map(str, removed))})
    else:
        done(f"the next run of {declaration.name} begins anew")
