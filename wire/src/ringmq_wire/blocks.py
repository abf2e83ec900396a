"""A header block that comes in several frames. Pure.

Between HEADERS and the last CONTINUATION no other frame may come (RFC 9113, section 6.10). The
peer could go on for ever (CVE-2024-27316), so the bytes and the frames of one block are bounded.
"""

from __future__ import annotations

from ringmq_wire.codes import ErrorCode
from ringmq_wire.errors import ConnectionFault
from ringmq_wire.frames import CONTINUATION, END_HEADERS, END_STREAM, HAS_PRIORITY, unpadded

CONTINUATIONS_MAX = 32


class HeaderBlock:
    """The block that is being received."""

    __slots__ = ("_bytes_max", "_continuations", "_data", "ends_stream", "on_itself", "stream_id")

    def __init__(
        self, kind: int, flags: int, stream_id: int, payload: bytes, bytes_max: int
    ) -> None:
        self.stream_id = stream_id
        self.ends_stream = bool(flags & END_STREAM)
        # It depends on itself: an error of the stream (section 5.3.1), once the block is read.
        self.on_itself = False
        self._bytes_max = bytes_max
        self._continuations = 0
        payload = unpadded(kind, flags, payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of {len(payload)} bytes with a priority"
                )
            self.on_itself = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream_id
            payload = payload[5:]
        self._data = bytearray(payload)
        self._check()

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes) -> bytes | None:
        """A CONTINUATION; returns the block if it was the last one."""
        if kind != CONTINUATION or stream_id != self.stream_id:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR,
                f"frame {kind} of stream {stream_id} within the headers of {self.stream_id}",
            )
        self._data += payload
        self._continuations += 1
        self._check()
        return self.data() if flags & END_HEADERS else None

    def data(self) -> bytes:
        return bytes(self._data)

    def _check(self) -> None:
        if len(self._data) > self._bytes_max or self._continuations > CONTINUATIONS_MAX:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block of more than {self._bytes_max} bytes "
                f"or {CONTINUATIONS_MAX} continuations",
            )
