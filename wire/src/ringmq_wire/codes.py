"""Numbers of HTTP/2 and of gRPC, and how the ones are told as the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# What a call carries beside its messages. Values of names that end with `-bin` are bytes.
Metadata = tuple[tuple[str, str | bytes], ...]


class ErrorCode(IntEnum):
    """RFC 9113, section 7: why a stream was reset, or a connection closed."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Code(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """How a call ended. `details` is a serialized `google.rpc.Status`, or empty."""

    code: Code
    message: str = ""
    details: bytes = b""
    # The trailing metadata, without what gRPC itself keeps there.
    metadata: Metadata = ()
    # The peer has done nothing for this call: it may be sent again, whatever it asks for.
    unprocessed: bool = False


OK = RpcStatus(Code.OK)

# gRPC over HTTP/2, "Errors". A code that isn't listed means UNKNOWN.
_OF_RESET = {
    ErrorCode.NO_ERROR: Code.INTERNAL,
    ErrorCode.PROTOCOL_ERROR: Code.INTERNAL,
    ErrorCode.INTERNAL_ERROR: Code.INTERNAL,
    ErrorCode.FLOW_CONTROL_ERROR: Code.INTERNAL,
    ErrorCode.SETTINGS_TIMEOUT: Code.INTERNAL,
    ErrorCode.FRAME_SIZE_ERROR: Code.INTERNAL,
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.COMPRESSION_ERROR: Code.INTERNAL,
    ErrorCode.CONNECT_ERROR: Code.INTERNAL,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
# "HTTP to gRPC Status Code Mapping", for answers of proxies that know no gRPC.
_OF_HTTP = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


def code_name(code: int) -> str:
    """The name of an error code of HTTP/2, or its number if RFC 9113 has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code:#x}"


def status_of_reset(code: int) -> RpcStatus:
    """The status of a call whose stream the peer has reset."""
    found = _OF_RESET.get(code, Code.UNKNOWN)  # type: ignore[call-overload]
    return RpcStatus(
        found,
        f"the peer reset the stream: {code_name(code)}",
        unprocessed=code == ErrorCode.REFUSED_STREAM,
    )


def status_of_http(status: int) -> RpcStatus:
    """The status of a call that an HTTP answer ended which isn't gRPC's."""
    return RpcStatus(_OF_HTTP.get(status, Code.UNKNOWN), f"the peer answered with HTTP {status}")


def code_of(text: str) -> Code:
    """The code in a `grpc-status`; UNKNOWN if it is none of gRPC's."""
    try:
        return Code(int(text))
    except ValueError:
        return Code.UNKNOWN
