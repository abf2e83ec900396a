"""gRPC over HTTP/2 without a poller thread: for streams on which every microsecond counts.

What goes over the wire is gRPC as any stock peer speaks it. What it isn't: a framework. It knows
neither protobuf nor services' definitions, neither proxies nor load balancing; messages are bytes.

`connection` is one end of a connection as a pure state machine; the modules that call themselves
pure are its parts. This package knows nothing of RingMQ.
"""

from ringmq_wire.channel import WireChannel
from ringmq_wire.codes import OK, Code, Metadata, RpcStatus
from ringmq_wire.errors import CallClosedError, RpcError, SendQueueFullError
from ringmq_wire.handler import CallHandler
from ringmq_wire.options import WireOptions
from ringmq_wire.parts import WireMessage, message_of
from ringmq_wire.server import WireServer, streaming, unary
from ringmq_wire.streaming import CallStream
from ringmq_wire.transport import Accept, WireCall

__all__ = [
    "OK",
    "Accept",
    "CallClosedError",
    "CallHandler",
    "CallStream",
    "Code",
    "Metadata",
    "RpcError",
    "RpcStatus",
    "SendQueueFullError",
    "WireCall",
    "WireChannel",
    "WireMessage",
    "WireOptions",
    "WireServer",
    "message_of",
    "streaming",
    "unary",
]
