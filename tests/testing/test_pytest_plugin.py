"""The fixtures that programs test with, in a run of pytest of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROGRAM = """
import headwater as hw

def test_a_store(headwater_store):
    headwater_store.create_topic("orders")
    with headwater_store.producer("orders") as out:
        out.send(b"two teas")
    with hw.open(str(headwater_store)) as another:
        assert [record.value for record in another.topic("orders").partition(0).records()] == [b"two teas"]

def test_each_test_has_a_store_of_its_own(headwater_store):
    assert headwater_store.topics() == []

def test_a_broker(headwater_broker):
    with hw.open(headwater_broker) as store:
        store.create_topic("orders")
        assert store.topics() == ["orders"]

def test_each_test_has_a_broker_of_its_own(headwater_broker):
    with hw.open(headwater_broker) as store:
        assert store.topics() == []
"""


def test_stores_and_brokers_for_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROGRAM)
    pytester.runpytest_subprocess().assert_outcomes(passed=4)


def test_the_document_shows_a_test_that_passes(pytester: pytest.Pytester) -> None:
    document = Path(__file__).parents[2] / "docs" / "testing.md"
    programs = re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    pytester.makepyfile("\n".join(programs))
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plugin_imports_nothing_before_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_light():\n    assert 'pyarrow' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
