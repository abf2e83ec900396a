"""How the services speak gRPC: raw bytes in and out, errors as `google.rpc.Status`.

Handlers take bytes, so that a stream on a queue that is mastered elsewhere is relayed without
being parsed and built again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ringmq_node.broker.caller import Caller
from ringmq_node.doors.grpc.status import CODES, status_details, told
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import CALL_DEADLINE_S
from ringmq_wire import (
    Accept,
    CallStream,
    Code,
    RpcError,
    RpcStatus,
    WireCall,
    WireMessage,
    streaming,
)

# Proves that the caller is a node: see `node_key`, which has checked it before a handler is called.
NODE_KEY = "ringmq-node"
# Marks calls that another node has forwarded.
RELAYED_KEY = "ringmq-relayed"
RELAYED_METADATA = ((RELAYED_KEY, "1"),)
# Beside it: the address of the client whose stream is relayed.
RELAYED_PEER_KEY = "ringmq-relayed-peer"
# Names the caller's connection; see `model.connections`.
CONNECTION_KEY = "ringmq-connection"
# A caller that takes nothing for so long has its browse ended, which it can begin again where it
# is, or its get.
TAKING_S = 30.0

# A call, as its handler reads and answers it.
Context = CallStream
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]
UnaryStreamHandler = Callable[[bytes, Context], Awaitable[None]]
StreamHandler = Callable[[Context], Awaitable[None]]

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """Raises `BrokerError` if the bytes aren't a message of this kind."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise bad_request(f"these bytes are no {kind.DESCRIPTOR.name}", field="") from error


def parse_request(kind: type[M], data: bytes) -> M:
    """As `parse`, for what a client asks. Raises `BrokerError` also for fields that this node
    doesn't know: what they ask for would not be done, and nobody would be told."""
    request = parse(kind, data)
    size = request.ByteSize()
    request.DiscardUnknownFields()
    if request.ByteSize() != size:
        for unknown in unknown_fields(kind.FromString(data)):
            raise unknown.refusal()
        raise bad_request(f"this node doesn't know a part of this {kind.__name__}", field="")
    return request


@dataclass(frozen=True, slots=True)
class UnknownField:
    """Bytes that protobuf has kept without a meaning: a field that this node doesn't know, or one
    that it knows with a wire type which isn't its own."""

    kind: Any  # A descriptor, of which protobuf has two classes.
    number: int
    wire_type: int

    @property
    def is_mistyped(self) -> bool:
        return self.number in self.kind.fields_by_number

    def refusal(self) -> BrokerError:
        """Names the field, if it has a name here."""
        place = f"field {self.number} of {self.kind.name}"
        if not self.is_mistyped:
            return bad_request(
                f"this node doesn't know {place}: it may be older than its client", field=""
            )
        name = self.kind.fields_by_number[self.number].name
        return bad_request(
            f"{place}, {name!r}, has wire type {self.wire_type}, which isn't its own", field=name
        )


def unknown_fields(message: Message) -> Iterator[UnknownField]:
    """All of them, at any depth."""
    unknown = UnknownFieldSet(message)
    for at in range(len(unknown)):
        yield UnknownField(message.DESCRIPTOR, unknown[at].field_number, unknown[at].wire_type)
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inner: Iterable[Any] = value if field.is_repeated else (value,)
        if field.message_type.GetOptions().map_entry:
            inner = value.values()
        for each in inner:
            if isinstance(each, Message):
                yield from unknown_fields(each)


async def write_in_time(context: Context, answer: WireMessage) -> None:
    """Returns once the connection has taken the answer, so that a budget can count it until then.
    The call of a caller that doesn't take it is reset: a status would go behind the answer, which
    stays in memory until somebody reads it."""
    try:
        async with asyncio.timeout(TAKING_S):
            await context.write_taken(answer)
    except TimeoutError:
        context.cancel()


def failure(error: BrokerError) -> RpcError:
    """The end of a call: the error's status and details."""
    return RpcError(RpcStatus(CODES[error.reason], told(error.message), status_details(error)))


def caller_of(context: Context) -> Caller:
    """A call without a deadline gets `CALL_DEADLINE_S`."""
    forwarded, connection = False, ""
    for key, value in context.call.metadata:
        if key == RELAYED_KEY:
            forwarded = True
        elif key == CONNECTION_KEY:
            connection = value if isinstance(value, str) else ""
    deadline_s = context.call.time_remaining() or CALL_DEADLINE_S
    return Caller(deadline_s, forwarded=forwarded, connection=connection)


def is_node(call: WireCall) -> bool:
    """Whether another node has made this call, for itself or for a client."""
    return any(key == NODE_KEY for key, _ in call.metadata)


def routes(
    service: str,
    *,
    unary: Mapping[str, UnaryHandler],
    streams: Mapping[str, StreamHandler] | None = None,
    unary_stream: Mapping[str, UnaryStreamHandler] | None = None,
) -> dict[str, Accept]:
    """The methods of one gRPC service, by path."""
    serve: dict[str, StreamHandler] = dict(streams or {})
    serve |= {name: _one_answer(handler) for name, handler in unary.items()}
    serve |= {name: _one_request(handler) for name, handler in (unary_stream or {}).items()}
    return {f"/{service}/{name}": streaming(_guarded(handler)) for name, handler in serve.items()}


def _one_answer(handler: UnaryHandler) -> StreamHandler:
    async def answer(request: bytes, context: Context) -> None:
        await context.write(await handler(request, context))

    return _one_request(answer)


def _one_request(handler: UnaryStreamHandler) -> StreamHandler:
    async def serve(context: Context) -> None:
        request = await context.read()
        if request is None:
            raise RpcError(RpcStatus(Code.INTERNAL, "the call has no request"))
        try:
            await handler(request, context)
        except TimeoutError as error:
            raise BrokerError(Reason.TIMEOUT, "no answer in time; it may have been done") from error

    return serve


def _guarded(handler: StreamHandler) -> StreamHandler:
    """A write to a caller who has gone raises `RpcError`: nobody is told, and nothing is wrong."""

    async def serve(context: Context) -> None:
        try:
            await handler(context)
        except BrokerError as error:
            raise failure(error) from error

    return serve
