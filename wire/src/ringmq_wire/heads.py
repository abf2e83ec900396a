"""What opens, answers and ends a call: header blocks as values, and values as header blocks. Pure.

Two kinds of faults. A block that breaks HTTP (RFC 9113, section 8) is malformed: the stream is
reset with PROTOCOL_ERROR. A block that is HTTP, but not gRPC, is answered: `CallRefusal` says how.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringmq_wire.codes import Code, ErrorCode, Metadata, RpcStatus, code_of, status_of_http
from ringmq_wire.compression import Headers
from ringmq_wire.errors import CallRefusal, StreamFault
from ringmq_wire.metadata import (
    decode_binary,
    encode_binary,
    message_of_header,
    message_to_header,
    metadata_of_headers,
    metadata_to_headers,
    timeout_of_header,
    timeout_to_header,
)

# RFC 9113, section 8.2.1: no upper case, no controls, a colon only in front.
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]")
# Section 8.2.2.
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_REQUEST_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_RESPONSE_PSEUDO = frozenset({b":status"})
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPT = (b"grpc-accept-encoding", b"identity")
_RESPONSE: Headers = ((b":status", b"200"), _CONTENT_TYPE, _ACCEPT)
_DETAILS = b"grpc-status-details-bin"
USER_AGENT = b"grpc-python-ringmq/0.1"
# A status message longer than this is cut: it has to fit into the peer's limit for a header list.
STATUS_MESSAGE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The beginning of a call, as a server gets it."""

    path: str
    authority: str
    metadata: Metadata
    # None: the call has no deadline.
    timeout_s: float | None
    content_length: int | None


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The beginning of an answer, as a client gets it; `status` if it is the end as well."""

    metadata: Metadata
    status: RpcStatus | None
    content_length: int | None
    # 1xx: another head follows (RFC 9110, section 15.2).
    informational: bool = False


# --- writing ---


def request_headers(
    path: str, authority: str, scheme: str, metadata: Metadata, timeout_s: float | None
) -> tuple[Headers, Headers]:
    """The headers that are the same for each call of a method, and the others.

    Raises ValueError if the path or metadata can't travel.
    """
    if not path.startswith("/") or not path.isascii() or not path.isprintable():
        raise ValueError(f"{path!r} can't be the path of a method")
    same = (
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        _CONTENT_TYPE,
        (b"user-agent", USER_AGENT),
        _ACCEPT,
    )
    changing = metadata_to_headers(metadata)
    if timeout_s is not None:
        changing = ((b"grpc-timeout", timeout_to_header(timeout_s)), *changing)
    return same, changing


def response_headers(metadata: Metadata) -> tuple[Headers, Headers]:
    return _RESPONSE, metadata_to_headers(metadata)


def trailers(status: RpcStatus, *, alone: bool, http_status: int = 200) -> tuple[Headers, Headers]:
    """The end of an answer; `alone` if nothing of it was sent before."""
    headers: Headers = ((b"grpc-status", b"%d" % status.code),)
    if alone:
        headers = ((b":status", b"%d" % http_status), _CONTENT_TYPE, *headers)
    changing = metadata_to_headers(status.metadata)
    if status.message:
        text = message_to_header(status.message)
        if len(text) > STATUS_MESSAGE_BYTES_MAX:
            # Not within an escape, which has three bytes.
            text = re.sub(rb"%.?$", b"", text[:STATUS_MESSAGE_BYTES_MAX])
        changing += ((b"grpc-message", text),)
    if status.details:
        changing += ((_DETAILS, encode_binary(status.details)),)
    return headers, changing


# --- reading ---


def read_request(headers: Headers) -> RequestHead:
    pseudo, rest = _split(headers, _REQUEST_PSEUDO)
    if b":method" not in pseudo or b":scheme" not in pseudo or not pseudo.get(b":path"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "request without method, scheme or path")
    if pseudo[b":method"] != b"POST":
        raise CallRefusal(
            RpcStatus(Code.UNIMPLEMENTED, "gRPC's calls are POST requests"), http_status=405
        )
    fields = dict(rest)
    if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
        raise CallRefusal(
            RpcStatus(Code.UNKNOWN, "content-type isn't application/grpc"), http_status=415
        )
    timeout = fields.get(b"grpc-timeout")
    return RequestHead(
        path=pseudo[b":path"].decode("latin-1"),
        authority=(pseudo.get(b":authority") or fields.get(b"host", b"")).decode("latin-1"),
        metadata=metadata_of_headers(rest),
        timeout_s=None if timeout is None else timeout_of_header(timeout),
        content_length=_content_length(fields),
    )


def read_response(headers: Headers, *, last: bool) -> ResponseHead:
    pseudo, rest = _split(headers, _RESPONSE_PSEUDO)
    try:
        http_status = int(pseudo[b":status"])
    except (KeyError, ValueError) as error:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "answer without a status") from error
    if 100 <= http_status < 200:
        if last:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"HTTP {http_status} ends the stream")
        return ResponseHead((), None, None, informational=True)
    fields = dict(rest)
    is_grpc = fields.get(b"content-type", b"").startswith(b"application/grpc")
    if last and b"grpc-status" in fields:
        return ResponseHead((), _status(rest), None)
    if http_status != 200 or not is_grpc:
        status = status_of_http(http_status)
        if http_status == 200:
            status = RpcStatus(Code.UNKNOWN, "the answer's content-type isn't application/grpc")
        raise CallRefusal(status)
    if last:
        return ResponseHead((), RpcStatus(Code.UNKNOWN, "the answer has no grpc-status"), None)
    return ResponseHead(metadata_of_headers(rest), None, _content_length(fields))


def read_trailers(headers: Headers) -> RpcStatus:
    _, rest = _split(headers, frozenset())
    if not any(name == b"grpc-status" for name, _ in rest):
        return RpcStatus(Code.UNKNOWN, "the answer ended without a grpc-status")
    return _status(rest)


def check_request_trailers(headers: Headers) -> None:
    """Clients of gRPC send none; of any other, they must be fields."""
    _split(headers, frozenset())


def _status(rest: Headers) -> RpcStatus:
    fields = dict(rest)
    details = fields.get(_DETAILS, b"")
    return RpcStatus(
        code_of(fields[b"grpc-status"].decode("latin-1")),
        message_of_header(fields.get(b"grpc-message", b"")),
        decode_binary(_DETAILS.decode(), details) if details else b"",
        metadata_of_headers(rest),
    )


def _split(headers: Headers, known: frozenset[bytes]) -> tuple[dict[bytes, bytes], Headers]:
    """The pseudo headers and the fields; raises `StreamFault` if they are malformed."""
    pseudo: dict[bytes, bytes] = {}
    at = 0
    for at, (name, value) in enumerate(headers):  # noqa: B007
        if not name.startswith(b":"):
            break
        if name not in known or name in pseudo:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"unexpected pseudo header {name[:40]!r}")
        _check_value(name, value)
        pseudo[name] = value
    else:
        return pseudo, ()
    rest = headers[at:]
    for name, value in rest:
        if name.startswith(b":") or not _NAME.fullmatch(name) or name in _OF_A_CONNECTION:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"header {name[:40]!r} can't be here")
        if name == b"te" and value != b"trailers":
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"te is {value[:40]!r}")
        _check_value(name, value)
    return pseudo, rest


def _check_value(name: bytes, value: bytes) -> None:
    if _BAD_VALUE.search(value):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the value of {name[:40]!r} has a control")


def _content_length(fields: dict[bytes, bytes]) -> int | None:
    text = fields.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"content-length is {text[:20]!r}")
    return int(text)
