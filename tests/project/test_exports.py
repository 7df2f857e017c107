"""Public names are exported in one place, documented, and complete."""

from __future__ import annotations

import enum
import importlib
import inspect
import typing
from types import ModuleType

import pytest

import headwater
import headwater.aio
import headwater.log
import headwater.spark
import headwater.testing
from headwater.core import errors
from tests.project.test_tidy import is_documented

PACKAGES = [headwater, headwater.aio, headwater.log, headwater.spark, headwater.testing]
INTERNAL = {"IndexDamaged", "SegmentListDamaged"}
"""Errors that never reach a user."""


def rank(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each in the order of the alphabet."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_what_is_exported_is_there(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_exports_are_sorted_and_named_once(package: ModuleType) -> None:
    assert package.__all__ == sorted(set(package.__all__), key=rank)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_what_is_exported_is_documented(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not is_documented(getattr(package, name))] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_public_methods_are_documented(package: ModuleType) -> None:
    bad = []
    for name in package.__all__:
        item = getattr(package, name)
        for method, value in vars(item).items() if inspect.isclass(item) else ():
            public = not method.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
            if public and not inspect.getdoc(getattr(item, method)):
                bad.append(f"{name}.{method}")
    assert bad == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_nothing_public_is_missing(package: ModuleType) -> None:
    public = {name for name, item in vars(package).items() if name[0] != "_" and not inspect.ismodule(item)}
    assert public - set(package.__all__) == set()


def test_every_error_is_exported() -> None:
    defined = {
        name for name, item in vars(errors).items() if inspect.isclass(item) and item.__module__ == errors.__name__
    }
    assert defined - set(headwater.__all__) == INTERNAL


def test_every_error_is_one_of_headwaters() -> None:
    exported = [getattr(headwater, name) for name in headwater.__all__]
    raised = [item for item in exported if inspect.isclass(item) and issubclass(item, BaseException)]
    assert len(raised) > 10
    assert all(issubclass(error, headwater.HeadwaterError) for error in raised)


@pytest.mark.parametrize("package", [headwater, headwater.aio, headwater.log], ids=lambda package: package.__name__)
def test_the_types_in_public_signatures_are_public(package: ModuleType) -> None:
    exported = {id(getattr(owner, name)) for owner in PACKAGES for name in owner.__all__}
    missing = set()
    for name in package.__all__:
        item = getattr(package, name)
        members = [item] if inspect.isfunction(item) else []
        if inspect.isclass(item) and not issubclass(item, enum.Enum):
            members = [value for key, value in vars(item).items() if inspect.isfunction(value) and key[0] != "_"]
        for member in members:
            for kind in parts(typing.get_type_hints(member, vars(importlib.import_module(member.__module__)))):
                if not isinstance(kind, type) or not kind.__module__.startswith("headwater"):
                    continue
                if id(kind) not in exported:
                    missing.add(f"{kind.__module__}.{kind.__name__} in {name}")
    assert missing == set()


def parts(hint: object) -> list[object]:
    """A type and all the types that it is put together from."""
    if isinstance(hint, dict):
        return [part for value in hint.values() for part in parts(value)]
    if isinstance(hint, list | tuple):
        return [part for value in hint for part in parts(value)]
    return [hint, *(part for value in typing.get_args(hint) for part in parts(value))]
