"""Validation: a document becomes a declaration, or an error that has everything that is wrong with it, line by line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headwater.core.document import Document
from headwater.core.errors import HeadwaterError, InvalidPipeline
from headwater.core.section import Section, parse_seconds, suggestion
from headwater.spark.options import SourceOptions
from headwater.spark.pipeline.declaration import (
    FORMATS,
    MODES,
    SEVERITIES,
    ConsoleSink,
    Declaration,
    Expectation,
    FileSource,
    PipelineStep,
    Retries,
    Sink,
    Source,
    TableSink,
    TopicSink,
    TopicSource,
    Trigger,
    Watermark,
)
from headwater.spark.pipeline.sql import read_names

CHECKPOINTS: Final = "__checkpoints"
"""The folder of pipelines' checkpoints in a store, so that they are copied, moved and restored with its topics."""
_TOPICS: Final = {"topic": "topic", "topics": "topics", "pattern": "topicPattern"}
_IMPORT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TABLES: Final = ("parquet", "delta", "iceberg")


def declare(document: Document) -> Declaration:
    """The pipeline that a document declares. Raises InvalidPipeline."""
    whole = Section.whole(document)
    declaration = _DeclarationReader(whole).read()
    if whole.problems:
        raise InvalidPipeline(sorted(whole.problems, key=lambda problem: problem.line))
    return declaration


class _DeclarationReader:
    def __init__(self, whole: Section) -> None:
        self._whole = whole
        self._directory = whole.document.directory
        self._store: str | None = None
        self._nodes: dict[str, Source | PipelineStep] = {}
        self._later: list[str] = []

    def read(self) -> Declaration:
        whole = self._whole
        name = whole.named("name", "pipeline", default=Path(whole.document.file).stem)
        self._store = self._address(whole)
        sources = [self._add(self._source(section), section) for section in whole.sections("sources", "sources")]
        content = whole.document.content.get("steps")
        self._later = list(content) if isinstance(content, dict) else []
        steps = [self._add(self._step(section), section) for section in whole.sections("steps", "steps")]
        sinks = [self._sink(section) for section in whole.sections("sinks", "sinks")]
        for key, declared in (("sources", sources), ("sinks", sinks)):
            if not declared and not any(problem.key.startswith(key) for problem in whole.problems):
                whole.wrong(f"{key} is missing: a pipeline reads something and writes something")
        declaration = Declaration(
            name=name,
            file=whole.document.file,
            directory=self._directory,
            store=self._store,
            sources=tuple(source for source in sources if isinstance(source, TopicSource | FileSource)),
            steps=tuple(step for step in steps if isinstance(step, PipelineStep)),
            sinks=tuple(sink for sink in sinks if sink is not None),
            trigger=parse_trigger(whole),
            checkpoint=self._checkpoint(name),
            retries=self._retries(),
            dead_letters=self._dead_letters(),
            group=whole.named("group", "group", default=name),
            spark=whole.scalars("spark"),
            master=whole.text("master"),
        )
        whole.finish()
        if not whole.problems:
            self._check_streams(declaration)
        return declaration

    # The whole.

    def _address(self, section: Section) -> str | None:
        """The address of a store: the section's own, else that of the pipeline."""
        address = section.text("store", noun="the directory of a store")
        if address is None:
            return self._store
        if address == "memory:":
            section.wrong("Spark's processes cannot see a store in memory: use a directory", "store")
        if address.startswith("file:"):
            address = unquote(urlsplit(address).path)
        return address if "://" in address else self._path(address)

    def _path(self, path: str) -> str:
        """A path, which is relative to the declaration: it means the same from wherever it is run."""
        return str((self._directory / Path(path).expanduser()).absolute())

    def _checkpoint(self, name: str) -> Path:
        path = self._whole.text("checkpoint", noun="a directory on this machine")
        if path is not None:
            if "://" in path:
                self._whole.wrong("must be a directory on this machine, not a URL", "checkpoint")
            return Path(self._path(path))
        if self._store is not None and "://" not in self._store:
            return Path(self._store, CHECKPOINTS, name)
        self._whole.wrong("checkpoint is missing: without a store in a directory, say where to keep it")
        return self._directory

    def _retries(self) -> Retries:
        section = self._whole.section("retries")
        if section is None:
            return Retries()
        usual = Retries()
        times = section.number("times", usual.times, least=0, most=1_000_000)
        backoff = section.duration("backoff", usual.backoff)
        longest = section.duration("longest", usual.longest)
        section.finish()
        return Retries(times=times or 0, backoff=backoff, longest=longest)

    def _dead_letters(self) -> str | None:
        topic = self._whole.named("dead_letters", "topic") or None
        drops = any(rule.otherwise == "drop" for node in self._nodes.values() for rule in node.expectations)
        if topic is not None and not drops:
            self._whole.wrong("no row is ever dropped: no expectation has else: drop", "dead_letters")
        if topic is not None and self._store is None:
            self._whole.wrong("store is missing: the one that has the topic for dead letters", "dead_letters")
        return topic

    def _add(self, node: Source | PipelineStep | None, section: Section) -> Source | PipelineStep | None:
        if node is not None:
            if node.name in self._nodes:
                section.wrong("another source or step has this name already")
            self._nodes[node.name] = node
        return node

    # Sources.

    def _source(self, section: Section) -> Source | None:
        kinds = [kind for kind in (*_TOPICS, *FORMATS) if kind in section]
        if len(kinds) != 1:
            section.wrong(_one_of((*_TOPICS, *FORMATS), kinds))
            return None
        source = self._topics(section, kinds[0]) if kinds[0] in _TOPICS else self._files(section, kinds[0])
        section.finish()
        return source

    def _topics(self, section: Section, kind: str) -> TopicSource:
        store = self._address(section)
        if store is None:
            section.wrong("store is missing: give one here, or one for the whole pipeline")
        topics = section.names("topics") if kind == "topics" else (section.text(kind) or "",)
        options = {_TOPICS[kind]: ",".join(topics)}
        limit = section.number("limit", None)
        columns = section.names("columns")
        static = section.flag("static")
        options |= {"maxOffsetsPerTrigger": str(limit)} if limit is not None else {}
        options |= {"columns": ",".join(columns)} if columns else {}
        options |= {"includeHeaders": "true"} if section.flag("headers") else {}
        options |= {"failOnDataLoss": "false"} if section.word("data_loss", ("fail", "warn"), "fail") == "warn" else {}
        start = section.anything("start")
        source = TopicSource(
            name=section.name,
            line=section.line,
            watermark=self._watermark(section),
            expectations=self._expectations(section),
            store=store or "",
            options=options,
            start="earliest" if start is None else start,
            static=static,
            title=", ".join(topics),
        )
        self._check_options(section, source)
        return source

    def _check_options(self, section: Section, source: TopicSource) -> None:
        if not source.store:
            return
        try:
            SourceOptions.parse({"store": source.store, **source.options, **start_options(source.start)})
        except HeadwaterError as error:
            where = "start" if "starting" in str(error) else None
            section.wrong(str(error).replace("option startingTimestamp", "a start"), where)

    def _files(self, section: Section, kind: str) -> FileSource:
        path = self._path(section.text(kind) or "")
        schema = section.text("schema", noun="columns and types such as 'id bigint, name string'")
        static = section.flag("static")
        if schema is None and kind != "parquet":
            section.wrong(f"schema is missing: columns and types of the {kind} files, such as 'id bigint, name string'")
        return FileSource(
            name=section.name,
            line=section.line,
            watermark=self._watermark(section),
            expectations=self._expectations(section),
            format=next(known for known in FORMATS if known == kind),
            path=path,
            schema=schema,
            options=section.scalars("options"),
            limit=section.number("limit", None),
            static=static,
        )

    # Steps.

    def _step(self, section: Section) -> PipelineStep | None:
        self._later.remove(section.name)
        kinds = [kind for kind in ("sql", "python") if kind in section]
        if len(kinds) != 1:
            section.wrong(_one_of(("sql", "python"), kinds))
            return None
        sql, function = section.text("sql") if kinds == ["sql"] else None, None
        inputs = section.names("inputs")
        if kinds == ["python"]:
            function = self._function(section)
            if not inputs:
                section.wrong("inputs is missing: the names whose rows the function gets, in its order")
        elif inputs:
            section.wrong("is only for python steps: a query names what it reads itself", "inputs")
        inputs = inputs or tuple(read_names(sql or ""))
        for name in inputs:
            self._known(section, name, kinds[0] if sql else "inputs")
        step = PipelineStep(
            name=section.name,
            line=section.line,
            watermark=self._watermark(section),
            expectations=self._expectations(section),
            sql=sql,
            function=function,
            inputs=inputs,
            unique=section.names("unique"),
        )
        section.finish()
        return step

    def _function(self, section: Section) -> Any:
        function = section.anything("python")
        if callable(function):
            return function
        name = section.text("python", noun="module:function")
        if name is not None and not _IMPORT.fullmatch(name):
            section.wrong(f"must be module:function, not {name!r}", "python")
        return name

    def _known(self, section: Section, name: str, key: str) -> None:
        if name in self._nodes:
            return
        if name == section.name:
            section.wrong("a step cannot read itself", key)
        elif name in self._later:
            section.wrong(f"{name} is declared later: move this below it", key)
        else:
            section.wrong(f"no source or step is named {name}: {suggestion(name, list(self._nodes))}", key)

    def _watermark(self, section: Section) -> Watermark | None:
        below = section.section("watermark")
        if below is None:
            return None
        column = below.text("column", required=True, noun="the column that has the time") or ""
        delay = below.text("delay", required=True, noun="how late a row may be, such as '10 minutes'") or ""
        seconds = parse_seconds(delay)
        below.finish()
        return Watermark(column=column, delay=delay if seconds is None else f"{round(seconds * 1000)} milliseconds")

    def _expectations(self, section: Section) -> tuple[Expectation, ...]:
        expectations = []
        for below in section.sections("expect", "rules"):
            rule = below.text("rule", required=True, noun="a condition in SQL, which good rows meet")
            otherwise = below.word("else", SEVERITIES, "warn")
            below.finish()
            severity = next(word for word in SEVERITIES if word == otherwise)
            expectations.append(Expectation(name=below.name, rule=rule or "", otherwise=severity))
        return tuple(expectations)

    # Sinks.

    def _sink(self, section: Section) -> Sink | None:
        kinds = [kind for kind in ("topic", "by_topic", *_TABLES, "console") if kind in section]
        if len(kinds) != 1:
            section.wrong(_one_of(("topic", "by_topic", *_TABLES, "console"), kinds))
            return None
        name = section.text("from", noun="the name of a source or a step")
        if name is None and "from" not in section:
            section.wrong("from is missing: the name of the source or the step whose rows go here")
        elif name is not None:
            self._known(section, name, "from")
        word = section.word("mode", MODES, "append")
        mode = next(known for known in MODES if known == word)
        common: dict[str, Any] = {"name": section.name, "line": section.line, "input": name or "", "mode": mode}
        sink: Sink
        if kinds[0] in ("topic", "by_topic"):
            sink = self._topic_sink(section, kinds[0], common)
        elif kinds[0] in _TABLES:
            sink = self._table(section, kinds[0], common)
        else:
            section.flag("console")
            sink = ConsoleSink(rows=section.number("rows", 20) or 20, **common)
        if mode == "complete" and not isinstance(sink, ConsoleSink):
            section.wrong(f"cannot be complete: a {kinds[0]} can only be appended to", "mode")
        section.finish()
        return sink

    def _topic_sink(self, section: Section, kind: str, common: dict[str, Any]) -> TopicSink:
        store = self._address(section)
        if store is None:
            section.wrong("store is missing: give one here, or one for the whole pipeline")
        topic = section.named("topic", "topic") or None
        if kind == "by_topic":
            section.flag("by_topic")
        partitions = section.number("partitions", None, most=10_000)
        if partitions is not None and kind == "by_topic":
            section.wrong("is only for a sink with the key topic", "partitions")
        return TopicSink(store=store or "", topic=topic, partitions=partitions, **common)

    def _table(self, section: Section, kind: str, common: dict[str, Any]) -> TableSink:
        where = section.text(kind) or ""
        catalog = section.scalars("catalog") if kind == "iceberg" else {}
        if kind == "iceberg" and where.count(".") != 1:
            section.wrong(f"must be namespace.table, not {where!r}", kind)
        if kind == "iceberg" and not catalog:
            section.wrong("catalog is missing: how pyiceberg finds the table, such as {warehouse: lake}")
        if kind == "iceberg" and "warehouse" in catalog and "://" not in catalog["warehouse"]:
            catalog = {"type": "sql"} | catalog | {"warehouse": self._path(catalog["warehouse"])}
            catalog.setdefault("uri", f"sqlite:///{catalog['warehouse']}/catalog.db")
        if common["mode"] == "update":
            section.wrong(
                f"cannot be update: rows of a {kind} table are not replaced; use append with a watermark", "mode"
            )
        return TableSink(
            format="parquet" if kind == "parquet" else "delta" if kind == "delta" else "iceberg",
            path=where if kind == "iceberg" or "://" in where else self._path(where),
            partition_by=section.names("partition_by") if kind == "parquet" else (),
            catalog=catalog,
            **common,
        )

    # Checks of the declaration as a whole.

    def _check_streams(self, declaration: Declaration) -> None:
        """Every sink needs a source that goes on."""
        streams = {source.name for source in declaration.sources if not source.static}
        for step in declaration.steps:
            if streams & set(step.inputs) or not step.inputs:
                streams.add(step.name)
        for sink in declaration.sinks:
            if sink.input in self._nodes and sink.input not in streams:
                self._whole.problems.append(
                    self._whole.document.problem(
                        ("sinks", sink.name, "from"),
                        f"every source of {sink.input} is static: at least one must be a stream",
                    )
                )


def parse_trigger(section: Section) -> Trigger:
    """When batches begin, as text: `available-now`, `once`, `continuous`, or a length of time."""
    value = section.anything("trigger")
    if value is None or value in ("available-now", "once"):
        return Trigger(interval=None)
    if value == "continuous":
        return Trigger(interval=0.0)
    seconds = parse_seconds(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if seconds is None:
        section.wrong(f"must be available-now, continuous, or a length of time such as 10s, not {value!r}", "trigger")
    return Trigger(interval=seconds)


def start_options(start: Any) -> dict[str, str]:
    """Return the options of a source that begins at `start`."""
    if isinstance(start, dict):
        return {"startingOffsets": json.dumps(start)}
    if start in ("earliest", "latest"):
        return {"startingOffsets": start}
    return {"startingTimestamp": str(start)}


def _one_of(kinds: tuple[str, ...], given: list[str]) -> str:
    mistake = f"not {' and '.join(given)} together" if given else "none of them is given"
    return f"needs one of the keys {', '.join(kinds)}: {mistake}"
