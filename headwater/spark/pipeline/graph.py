"""The graph of a pipeline: what is made of what, for people. As text in a terminal, for Graphviz and for Mermaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from headwater.spark.pipeline.declaration import (
    DEAD_LETTERS,
    ConsoleSink,
    Declaration,
    FileSource,
    Node,
    PipelineStep,
    Sink,
    Source,
    TableSink,
    TopicSink,
    TopicSource,
)

Kind = Literal["source", "step", "sink"]
_MARKS: Final[dict[Kind, str]] = {"source": "●", "step": "○", "sink": "▶"}
_DOT_SHAPES: Final[dict[Kind, str]] = {"source": "cylinder", "step": "box", "sink": "note"}
_MERMAID_SHAPES: Final[dict[Kind, tuple[str, str]]] = {"source": ("[(", ")]"), "step": ("[", "]"), "sink": ("([", "])")}


@dataclass(frozen=True, slots=True)
class Vertex:
    """A source, a step or a sink, and the names that it reads."""

    kind: Kind
    name: str
    detail: str
    inputs: tuple[str, ...]

    @property
    def key(self) -> str:
        """A name of its own: a sink may be called like what it writes."""
        return f"sink {self.name}" if self.kind == "sink" else self.name


class Graph:
    """The vertices of a pipeline. Each comes after those that it reads."""

    def __init__(self, declaration: Declaration) -> None:
        self.name = declaration.name
        self.vertices = [
            *(Vertex("source", source.name, _source(source), ()) for source in declaration.sources),
            *(Vertex("step", step.name, _step(step), step.inputs) for step in declaration.steps),
            *(Vertex("sink", sink.name, _sink(sink), (sink.input,)) for sink in declaration.sinks),
        ]
        if declaration.dead_letters is not None:
            dropping = tuple(node.name for node in declaration.nodes.values() if drops(node))
            self.vertices.append(Vertex("sink", DEAD_LETTERS, f"topic {declaration.dead_letters}", dropping))

    def consumers(self, name: str) -> list[Vertex]:
        """Return the vertices that read a name."""
        return [vertex for vertex in self.vertices if name in vertex.inputs]

    def upstream(self, name: str) -> set[str]:
        """A name, and all that it is made of."""
        by_name = {vertex.name: vertex for vertex in self.vertices if vertex.kind != "sink"}
        names: set[str] = set()
        waiting = [name]
        while waiting:
            reached = waiting.pop()
            if reached in by_name and reached not in names:
                names.add(reached)
                waiting += by_name[reached].inputs
        return names

    def ordered(self) -> list[Vertex]:
        """The vertices in the order in which they are drawn: each branch to its end, before the next one."""
        drawn: dict[str, Vertex] = {}

        def draw(vertex: Vertex) -> None:
            drawn[vertex.key] = vertex
            for consumer in () if vertex.kind == "sink" else self.consumers(vertex.name):
                if consumer.key not in drawn and all(name in drawn for name in consumer.inputs):
                    draw(consumer)

        for vertex in self.vertices:
            if vertex.key not in drawn:
                draw(vertex)
        return list(drawn.values())

    # Drawings.

    def text(self) -> list[tuple[str, Vertex]]:
        """A line for each vertex: lanes that lead from what is read to who reads it, and the vertex."""
        lanes: list[str | None] = []
        waiting = {vertex.name: len(self.consumers(vertex.name)) for vertex in self.vertices if vertex.kind != "sink"}
        lines = []
        for vertex in self.ordered():
            read = [at for at, name in enumerate(lanes) if name in vertex.inputs]
            for name in vertex.inputs:
                waiting[name] -= 1
            column = max(read, default=-1) + 1
            while column < len(lanes) and lanes[column] is not None:
                column += 1
            beyond = "".join(" │" if name is not None else "  " for name in lanes[column + 1 :])
            lines.append((self._line(lanes, read, column, waiting) + _MARKS[vertex.kind] + beyond, vertex))
            lanes = [name if name is not None and waiting[name] else None for name in lanes]
            lanes += [None] * (column + 1 - len(lanes))
            lanes[column] = vertex.name if vertex.kind != "sink" and waiting[vertex.name] else None
            while lanes and lanes[-1] is None:
                lanes.pop()
        return lines

    @staticmethod
    def _line(lanes: list[str | None], read: list[int], column: int, waiting: dict[str, int]) -> str:
        line = ""
        for at in range(column):
            name = lanes[at] if at < len(lanes) else None
            inside = bool(read) and at >= read[0]
            goes_on = name is not None and waiting[name] > 0
            if at in read:
                first = at == read[0]
                line += ("├" if first else "┼") if goes_on else ("└" if first else "┴")
            else:
                line += "│" if name is not None else "─" if inside else " "
            line += "─" if inside else " "
        return line

    def dot(self) -> str:
        """The graph for Graphviz."""
        lines = [f"digraph {_quoted(self.name)} {{", "  rankdir=LR;", "  node [fontname=Helvetica];"]
        for vertex in self.vertices:
            label = _quoted(f"{vertex.name}\n{vertex.detail}")
            lines.append(f"  {_quoted(vertex.key)} [label={label}, shape={_DOT_SHAPES[vertex.kind]}];")
        lines += [f"  {_quoted(name)} -> {_quoted(vertex.key)};" for vertex in self.vertices for name in vertex.inputs]
        return "\n".join([*lines, "}"])

    def mermaid(self) -> str:
        """The graph for Mermaid, as Markdown on many sites shows it."""
        numbers = {vertex.key: f"n{number}" for number, vertex in enumerate(self.vertices)}
        lines = ["flowchart LR"]
        for vertex in self.vertices:
            begin, end = _MERMAID_SHAPES[vertex.kind]
            label = f"{vertex.name}<br/>{vertex.detail}".replace('"', "#quot;")
            lines.append(f'  {numbers[vertex.key]}{begin}"{label}"{end}')
        lines += [f"  {numbers[name]} --> {numbers[vertex.key]}" for vertex in self.vertices for name in vertex.inputs]
        return "\n".join(lines)


def drops(node: Node) -> bool:
    """Return whether a rule of a node drops rows."""
    return any(expectation.otherwise == "drop" for expectation in node.expectations)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _rules(node: Node) -> list[str]:
    parts = [f"watermark {node.watermark.column}"] if node.watermark is not None else []
    return parts + [f"{expectation.otherwise} unless {expectation.name}" for expectation in node.expectations]


def _source(source: Source) -> str:
    if isinstance(source, TopicSource):
        start = source.start if isinstance(source.start, str) else "given offsets"
        parts = [f"topic {source.title}", *([] if source.static else [f"from {start}"])]
    else:
        assert isinstance(source, FileSource)
        parts = [f"{source.format} {source.path}"]
    return ", ".join([*parts, *["static"] * source.static, *_rules(source)])


def _step(step: PipelineStep) -> str:
    kind = "sql"
    if step.function is not None:
        name = step.function if isinstance(step.function, str) else getattr(step.function, "__name__", "function")
        kind = f"python {name}"
    return ", ".join([kind, *[f"unique {' '.join(step.unique)}"] * bool(step.unique), *_rules(step)])


def _sink(sink: Sink) -> str:
    if isinstance(sink, TopicSink):
        target = f"topic {sink.topic}" if sink.topic is not None else "topics that rows name"
    elif isinstance(sink, TableSink):
        target = f"{sink.format} {sink.path}"
    else:
        assert isinstance(sink, ConsoleSink)
        target = "console"
    return target if sink.mode == "append" else f"{target}, {sink.mode}"
