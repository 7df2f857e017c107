"""The service's methods, as its description lists them.

Handlers and stubs are made from the description itself. So a method has one place where it is declared, and messages
that are worth it can be packed by hand: see `packing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headwater.v1 import broker_pb2
from headwater.wire.packing import pack_framed, pack_response, unpack_produce, unpack_stage

SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["Broker"]

FOLLOWS_LEADERS: Final = ("headwater-follows-leaders", "1")
"""The metadata of clients that find leaders by themselves: brokers tell them who leads, and carry no call for them."""

Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]


class Method(NamedTuple):
    """One method: its name, whether each side streams, and how its messages become bytes and back."""

    name: str
    request_streams: bool
    response_streams: bool
    pack_request: Serialize
    unpack_request: Deserialize
    pack_response: Serialize
    unpack_response: Deserialize

    @property
    def path(self) -> str:
        """The name of the method in gRPC."""
        return f"/{SERVICE.full_name}/{self.name}"


_UNPACKED_BY_HAND: Final[dict[str, Deserialize]] = {"ProduceRequest": unpack_produce, "StageRequest": unpack_stage}


def _methods() -> Iterator[Method]:
    for method in SERVICE.methods:
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        by_hand = _UNPACKED_BY_HAND.get(method.input_type.name)
        yield Method(
            method.name,
            method.client_streaming,
            method.server_streaming,
            request.SerializeToString if by_hand is None else pack_framed,
            by_hand or request.FromString,
            pack_response if method.output_type.name == "FetchResponse" else response.SerializeToString,
            response.FromString,
        )


METHODS: Final[tuple[Method, ...]] = tuple(_methods())


def handler(service: object) -> grpc.GenericRpcHandler:
    """gRPC's handler for an object that has the methods of the service, by their names.

    A request that cannot be read reaches the method all the same, as the DecodeError that says why.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in METHODS:
        kind = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[method.request_streams, method.response_streams]
        handlers[method.name] = kind(
            getattr(service, method.name), _readable(method.unpack_request), method.pack_response
        )
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _readable(unpack: Deserialize) -> Deserialize:
    def read(content: bytes) -> Any:
        try:
            return unpack(content)
        except DecodeError as error:
            return error

    return read


class Stub:
    """The methods of the service, by their names, on a channel of either kind: gRPC's own or that for asyncio.

    Answers are protobuf's messages, unless it is said how those of a method are read.
    """

    def __init__(self, channel: Any, read_by_hand: Mapping[str, Deserialize] | None = None) -> None:
        for method in METHODS:
            kind = {
                (False, False): channel.unary_unary,
                (False, True): channel.unary_stream,
                (True, False): channel.stream_unary,
                (True, True): channel.stream_stream,
            }[method.request_streams, method.response_streams]
            unpack = (read_by_hand or {}).get(method.name, method.unpack_response)
            setattr(self, method.name, kind(method.path, method.pack_request, unpack))

    def __getattr__(self, name: str) -> Any:  # for the type checker: they are all there
        raise AttributeError(name)
