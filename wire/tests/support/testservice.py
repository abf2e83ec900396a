"""`grpc.testing.TestService` of gRPC's interop tests, on a server of this transport."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

from ringmq_wire import CallStream, Code, Metadata, RpcError, RpcStatus, streaming, unary
from ringmq_wire.transport import Accept, WireCall

SERVICE = "/grpc.testing.TestService"
# A server sends this metadata back: one with the head of its answer, the other one with its end.
ECHOED_FIRST = "x-grpc-test-echo-initial"
ECHOED_LAST = "x-grpc-test-echo-trailing-bin"
PROTO = Path(__file__).with_name("testservice.proto")


@cache
def _classes() -> Mapping[str, Any]:
    """The classes of the messages, by name; made when the first test wants one."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO.parent}"]
        subprocess.run([*command, f"--descriptor_set_out={found}", PROTO.name], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes()).file
    classes = message_factory.GetMessages(list(files))
    return {name.rpartition(".")[2]: made for name, made in classes.items()}


def message(name: str, **fields: object) -> Any:
    return _classes()[name](**fields)


def parsed(name: str, data: bytes) -> Any:
    return _classes()[name].FromString(data)


def payload(size: int) -> Any:
    return message("Payload", body=bytes(size))


async def _empty_call(request: bytes, call: WireCall) -> bytes:
    parsed("Empty", request)
    return b""


async def _unary_call(stream: CallStream) -> None:
    request = parsed("SimpleRequest", await _only(stream))
    last = _echo_metadata(stream)
    if not request.response_status.code:
        await _write(stream, message("SimpleResponse", payload=payload(request.response_size)))
    _finish(stream, request.response_status, last)


async def _streaming_output_call(stream: CallStream) -> None:
    await _answer(stream, parsed("StreamingOutputCallRequest", await _only(stream)))


async def _streaming_input_call(stream: CallStream) -> None:
    size = 0
    while (data := await stream.read()) is not None:
        size += len(parsed("StreamingInputCallRequest", data).payload.body)
    await _write(stream, message("StreamingInputCallResponse", aggregated_payload_size=size))


async def _full_duplex_call(stream: CallStream) -> None:
    """Answers each request at once."""
    last = _echo_metadata(stream)
    status = message("EchoStatus")
    while not status.code and (data := await stream.read()) is not None:
        request = parsed("StreamingOutputCallRequest", data)
        status = request.response_status
        if not status.code:
            await _answer(stream, request)
    _finish(stream, status, last)


async def _only(stream: CallStream) -> bytes:
    request = await stream.read()
    if request is None or await stream.read() is not None:
        raise RpcError(RpcStatus(Code.INTERNAL, "this call has one request"))
    return request


async def _answer(stream: CallStream, request: Any) -> None:
    for wanted in request.response_parameters:
        await _write(stream, message("StreamingOutputCallResponse", payload=payload(wanted.size)))


async def _write(stream: CallStream, message: Any) -> None:
    await stream.write(message.SerializeToString())


def _echo_metadata(stream: CallStream) -> Metadata:
    """Begins the answer with the metadata for its head; returns the metadata for its end."""
    said = stream.call.metadata
    first = tuple(pair for pair in said if pair[0] == ECHOED_FIRST)
    if first:
        stream.call.respond(first)
    return tuple(pair for pair in said if pair[0] == ECHOED_LAST)


def _finish(stream: CallStream, status: Any, metadata: Metadata) -> None:
    stream.call.finish(RpcStatus(Code(status.code), status.message, metadata=metadata))


TEST_SERVICE: Mapping[str, Accept] = {
    f"{SERVICE}/EmptyCall": unary(_empty_call),
    f"{SERVICE}/UnaryCall": streaming(_unary_call),
    f"{SERVICE}/StreamingOutputCall": streaming(_streaming_output_call),
    f"{SERVICE}/StreamingInputCall": streaming(_streaming_input_call),
    f"{SERVICE}/FullDuplexCall": streaming(_full_duplex_call),
}
