"""What a connection tells its shell. Pure.

For each call: `CallOpened` (server) or nothing, then `CallHead` (client), `CallMessages`, and
`CallHalfClosed` (server), and `CallEnded` last. A server's call that the application has finished
has no `CallEnded`, and nothing after the finish.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringmq_wire.codes import Metadata, RpcStatus
from ringmq_wire.heads import RequestHead
from ringmq_wire.streams import WireStream


@dataclass(slots=True)
class CallMessages:
    """Messages of one stream, in order. Not frozen: one is made for each batch."""

    stream: WireStream
    messages: list[bytes] = field(default_factory=list)
    # With their prefixes: so much is given to `Connection.consumed` once they are consumed.
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CallOpened:
    stream: WireStream
    head: RequestHead


@dataclass(frozen=True, slots=True)
class CallHead:
    """The answer has begun, with this metadata."""

    stream: WireStream
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class CallHalfClosed:
    """The client sends no more."""

    stream: WireStream


@dataclass(frozen=True, slots=True)
class CallEnded:
    stream: WireStream
    status: RpcStatus


@dataclass(frozen=True, slots=True)
class ConnectionReady:
    """The peer has sent its SETTINGS: this is HTTP/2, and its limits are known. Told again when it
    takes more calls at once than before."""


@dataclass(frozen=True, slots=True)
class ConnectionDraining:
    """The peer takes no new calls on this connection."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """Nothing goes on here. What `take` still has is to be written, then the transport closed."""

    reason: str


WireEvent = (
    CallMessages
    | CallOpened
    | CallHead
    | CallHalfClosed
    | CallEnded
    | ConnectionReady
    | ConnectionDraining
    | ConnectionClosed
)
