"""A pipeline in Python: declared by calls instead of a file, and run."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headwater.core.document import SUFFIXES, Document, Key, Kind, read_document
from headwater.core.errors import InvalidPipeline, Problem
from headwater.spark.pipeline.declaration import Declaration
from headwater.spark.pipeline.progress import Observer, Summary
from headwater.spark.pipeline.runner import run
from headwater.spark.pipeline.validation import declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KIND: Final = Kind(
    "a pipeline", "a mapping with the keys sources, steps and sinks", InvalidPipeline, (*SUFFIXES, ".py")
)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Pipeline:
    """Sources, steps and sinks, by the keys that files have too: `hw.spark.Pipeline("revenue", store="events")`.

    Nothing is checked before `declaration`, and nothing starts before `run`.
    """

    def __init__(self, name: str, **keys: Any) -> None:
        file, line = _caller()
        content = {"name": name, **keys, "sources": {}, "steps": {}, "sinks": {}}
        self._document = Document(file, Path(file).parent.absolute(), content, {(key,): line for key in content})

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """The pipeline that a file of YAML, TOML or Python declares. Raises InvalidPipeline."""
        path = Path(path)
        if path.suffix == ".py":
            return _from_python(path)
        pipeline = cls.__new__(cls)
        pipeline._document = read_document(path, _KIND)
        return pipeline

    def source(self, name: str, **keys: Any) -> None:
        """Declare a source: topics of a store, or files."""
        self._add(("sources", name), keys)

    def sql(self, name: str, query: str, **keys: Any) -> None:
        """Declare a step: a query over earlier names."""
        self._add(("steps", name), {"sql": query, **keys})

    def step(self, *inputs: str, name: str | None = None, **keys: Any) -> Callable[[_Function], _Function]:
        """Declare a step, as a decorator: the function gets the DataFrames of these names and gives another."""
        location = _caller()

        def declared(function: _Function) -> _Function:
            self._add(
                ("steps", name or function.__name__), {"python": function, "inputs": list(inputs), **keys}, location
            )
            return function

        return declared

    def sink(self, name: str, source: str, **keys: Any) -> None:
        """Declare a sink: where the rows of a name go."""
        self._add(("sinks", name), {"from": source, **keys})

    def _add(self, key: Key, keys: dict[str, Any], location: tuple[str, int] | None = None) -> None:
        file, line = _caller() if location is None else location
        if key[1] in self._document.content[key[0]]:
            raise InvalidPipeline([Problem(file, line, ".".join(key), "is declared already")])
        self._document.content[key[0]][key[1]] = keys
        self._document.lines[key] = line

    def declaration(self) -> Declaration:
        """All of it, checked. Raises InvalidPipeline, with everything that is wrong."""
        return declare(self._document)

    def run(
        self,
        *,
        spark: SparkSession | None = None,
        observers: Sequence[Observer] = (),
        stop: threading.Event | None = None,
    ) -> Summary:
        """Run it until it is done, or until SIGTERM, Ctrl-C or the event asks for its end; what it did."""
        return run(self.declaration(), spark=spark, observers=observers, stop=stop)


def _caller() -> tuple[str, int]:
    """Return the file and the line of the caller outside of this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return ("<python>", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _from_python(path: Path) -> Pipeline:
    """The one pipeline that a file of Python makes when it is executed, under a name that is not `__main__`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))
    sys.modules[path.stem] = module
    try:
        # As it is now: what Python keeps compiled beside it may be of the same second, and not the same.
        exec(compile(path.read_bytes(), str(module.__file__), "exec"), vars(module))
    except SyntaxError as error:
        raise InvalidPipeline(
            [Problem(str(path), error.lineno or 1, "", f"is not valid Python: {error.msg}")]
        ) from error
    pipelines = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(pipelines) != 1:
        message = f"must make exactly one Pipeline at its top level, not {len(pipelines)}"
        raise InvalidPipeline([Problem(str(path), 1, "", message)])
    _send_by_value(module)
    return next(iter(pipelines.values()))


def _send_by_value(module: Any) -> None:
    """Functions of the file go to Spark's workers as they are: these cannot import it."""
    if importlib.util.find_spec("pyspark") is not None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
