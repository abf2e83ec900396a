"""The limits and time-outs of a connection, each with its unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_wire.codes import Metadata

KIB = 1024
MIB = 1024 * 1024
# Both ends of a connection start with this window, on the connection and on every stream.
WINDOW_BYTES_INITIAL = 65_535
WINDOW_BYTES_MAX = 2**31 - 1
FRAME_BYTES_MIN = 16_384
# A frame is never larger than this, whatever the peer allows: a small frame waits behind no more.
FRAME_BYTES_MAX = 64 * KIB


@dataclass(frozen=True, slots=True)
class WireOptions:
    """What one end of a connection allows.

    Received bytes in memory, per connection: `connection_window_bytes` of whole messages and up to
    half of `unread_bytes_max` more, and `unfinished_bytes_max` of others, or a single one of
    `message_bytes_max`. Bytes to be sent: `send_bytes_max` for each stream.
    """

    # A message above this ends its call with RESOURCE_EXHAUSTED, before a byte of it is kept.
    message_bytes_max: int = 16 * MIB
    # The peer may send so much ahead of what the application has consumed.
    stream_window_bytes: int = 1 * MIB
    connection_window_bytes: int = 16 * MIB
    # Whole messages that aren't consumed, of a client's connection; a server has one such budget
    # for all of its connections. Messages above it hold their connection's window: see `unread`.
    unread_bytes_max: int = 128 * MIB
    # Messages larger than a stream's window are taken so many bytes at a time, or one by one.
    assembly_bytes_max: int = 64 * MIB
    # The beginnings of messages on all streams together; what would pass it, ends with UNAVAILABLE.
    unfinished_bytes_max: int = 128 * MIB
    # A stream with more bytes waiting to be sent asks its sender to pause; with fewer than half of
    # it, to go on. The hard limit stands for senders that don't listen.
    send_bytes_high: int = 1 * MIB
    send_bytes_max: int = 64 * MIB
    # The transport keeps so many bytes that the kernel doesn't take, and those of one write more;
    # what else is to be sent waits in its stream.
    unsent_bytes_high: int = 64 * KIB
    # Of one header block: as it travels, and as a list (RFC 9113, section 6.5.2).
    header_block_bytes_max: int = 32 * KIB
    header_list_bytes_max: int = 16 * KIB
    # Client: sent with each call, before the call's own.
    metadata: Metadata = ()
    # Calls that the peer may have open at once.
    streams_max: int = 1_000
    # From the connection's start to the peer's first SETTINGS.
    handshake_timeout_s: float = 10.0
    settings_timeout_s: float = 10.0
    # After so much silence a PING is sent, if calls are open. None: never. Stock servers close
    # connections that send PINGs more often than each 5 minutes.
    keepalive_s: float | None = None
    keepalive_timeout_s: float = 10.0
    keepalive_without_calls: bool = False
    # The connection is lost once the peer's kernel has acknowledged nothing for so long, as with
    # `WireCall.give_up_after`. None: when this system thinks fit, after minutes.
    unacknowledged_s: float | None = None
    # A connection without calls is closed after this time. None: never.
    idle_timeout_s: float | None = None
    # From the first GOAWAY of a shutdown to the second one, if the peer answers no PING.
    goaway_grace_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("stream_window_bytes", "connection_window_bytes"):
            value = getattr(self, name)
            if not WINDOW_BYTES_INITIAL <= value <= WINDOW_BYTES_MAX:
                raise ValueError(
                    f"{name} is {value}, expected {WINDOW_BYTES_INITIAL} to {WINDOW_BYTES_MAX}"
                )
        if self.connection_window_bytes < self.stream_window_bytes:
            raise ValueError(
                f"connection_window_bytes is {self.connection_window_bytes}, less than the "
                f"{self.stream_window_bytes} of one stream"
            )
        if not 1 <= self.message_bytes_max <= WINDOW_BYTES_MAX:
            raise ValueError(f"message_bytes_max is {self.message_bytes_max}")
        if not 0 < self.send_bytes_high <= self.send_bytes_max:
            raise ValueError(
                f"send_bytes_high is {self.send_bytes_high}, "
                f"expected 1 to send_bytes_max ({self.send_bytes_max})"
            )
        if self.unsent_bytes_high < 0:
            raise ValueError(f"unsent_bytes_high is {self.unsent_bytes_high}, expected 0 or more")
