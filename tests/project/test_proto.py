"""The broker's protocol: what is generated is what the proto file says, and that says what everything is for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "proto" / "headwater" / "v1" / "broker.proto"
SOURCES = (SOURCE, ROOT / "proto" / "headwater" / "cluster" / "etcd" / "etcd.proto")


def protoc(*arguments: str, source: Path = SOURCE) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *arguments, str(source.relative_to(ROOT))]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorProto:
    """The proto file, with its comments."""
    file = tmp_path_factory.mktemp("proto") / "broker.pb"
    protoc("--include_source_info", f"--descriptor_set_out={file}")
    return descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes()).file[0]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_what_is_generated_is_up_to_date(source: Path, tmp_path: Path) -> None:
    """When this fails: make proto."""
    protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", source=source)
    made = [file.relative_to(tmp_path) for file in tmp_path.rglob("*_pb2.py*")]
    assert len(made) == 2
    assert [name for name in made if (tmp_path / name).read_bytes() != (ROOT / name).read_bytes()] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_makefile_generates_the_same(source: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"grpc_tools.protoc -Iproto --python_out=. --pyi_out=. {source.relative_to(ROOT)}" in makefile


def test_names_are_as_the_style_guide_has_them(described: descriptor_pb2.FileDescriptorProto) -> None:
    camel, snake = re.compile(r"[A-Z][A-Za-z0-9]*"), re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
    messages = [message.name for message in described.message_type]
    fields = [field.name for message in described.message_type for field in message.field]
    methods = [method.name for service in described.service for method in service.method]
    assert [name for name in (*messages, *methods) if not camel.fullmatch(name)] == []
    assert [name for name in fields if not snake.fullmatch(name)] == []
    for enum in described.enum_type:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
        assert enum.value[0].name == f"{prefix}UNSPECIFIED"
        assert all(value.name.startswith(prefix) for value in enum.value)


def test_every_request_and_answer_is_a_message_of_this_package(described: descriptor_pb2.FileDescriptorProto) -> None:
    known = {f".headwater.v1.{message.name}" for message in described.message_type}
    for service in described.service:
        requests = [method.input_type for method in service.method]
        assert {*requests, *(method.output_type for method in service.method)} <= known


def test_methods_say_what_their_names_do_not(described: descriptor_pb2.FileDescriptorProto) -> None:
    """A method has a comment, unless a name such as ListTopics says it all."""
    commented = {tuple(place.path) for place in described.source_code_info.location if place.leading_comments.strip()}
    plain = re.compile(r"(List|Describe|Get|Leave|Drop)[A-Z][a-z]+s?")
    silent = [
        method.name
        for number, service in enumerate(described.service)
        for index, method in enumerate(service.method)
        if (6, number, 2, index) not in commented and not plain.fullmatch(method.name)
    ]
    assert silent == []


def test_numbers_that_were_used_are_not_used_again(described: descriptor_pb2.FileDescriptorProto) -> None:
    """Fields may be added; gaps are reserved or on purpose: 15 is for frames, which are packed by hand."""
    for message in described.message_type:
        numbers = sorted(field.number for field in message.field if field.name != "frames")
        reserved = {number for span in message.reserved_range for number in range(span.start, span.end)}
        assert set(range(1, (numbers or [0])[-1] + 1)) - set(numbers) - reserved - {15} == set(), message.name
