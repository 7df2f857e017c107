"""Spark's Python workers: what was imported is not looked at again and again for garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from headwater.spark.worker import begin, freeze_garbage


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    freeze_garbage.cache_clear()
    yield
    gc.unfreeze()
    freeze_garbage.cache_clear()


def test_a_worker_of_spark_settles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    freeze_garbage()
    settled = gc.get_freeze_count()
    assert settled
    more = [[number] for number in range(1000)]
    freeze_garbage()
    assert gc.get_freeze_count() <= settled, more  # some may be gone, as others work in this process


def test_a_worker_passes_over_what_is_imported_before_it_imports_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    begin()
    assert gc.get_freeze_count()


def test_a_program_of_the_user_is_left_alone() -> None:
    begin()
    freeze_garbage()
    assert gc.get_freeze_count() == 0
