"""The errors of the transport.

    RpcError               for callers: a call has ended with another status than OK
    CallClosedError        a bug of the caller: it goes on with what has ended
    SendQueueFullError     a bug of the caller: it sends although it was told to pause

The others never leave the package. Each is a fault of the peer, and says what it costs:

    ConnectionFault        the connection, with a GOAWAY of this code
    StreamFault            one stream, with an RST_STREAM of this code
    CallRefusal            one call, with this status
"""

from __future__ import annotations

from ringmq_wire.codes import ErrorCode, RpcStatus


class RpcError(Exception):
    """A call that has ended with `status`, which isn't OK."""

    def __init__(self, status: RpcStatus) -> None:
        super().__init__(f"{status.code.name}: {status.message}")
        self.status = status


class CallClosedError(Exception):
    """This call, channel or server has ended, or this half of the call is closed."""


class SendQueueFullError(Exception):
    """More bytes would wait on a stream than its hard limit allows. Nothing was queued."""


class ConnectionFault(Exception):
    """The connection is of no use any more; the peer is told with a GOAWAY of this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFault(Exception):
    """The stream is reset with this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class CallRefusal(Exception):
    """The call ends with this status, by this side's decision."""

    def __init__(self, status: RpcStatus, *, http_status: int = 200) -> None:
        super().__init__(status.message)
        self.status = status
        self.http_status = http_status
