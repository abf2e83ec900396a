"""The options of TCP that a connection sets. Not all systems know all of them."""

from __future__ import annotations

import array
import socket
import struct
import sys

if sys.platform == "linux":
    import fcntl

# Bytes that the kernel has, and the network hasn't taken.
UNSENT_BYTES_MAX = 64 * 1024
# After 60 s of silence the kernel asks, each 15 s, four times.
TCP_KEEPALIVE = [
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
]
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
# Linux has it. Elsewhere a connection is given up when the system thinks fit, after minutes.
TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
# Linux has it. Elsewhere each message leaves by itself.
TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)

# Linux: how many bytes of a socket haven't been sent (tcp(7)), and the memory that it has: words of
# 32 bits, of which one is the limit for what goes out, and one is what is used of it.
SIOCOUTQNSD = 0x894B
SO_MEMINFO = 55
MEMORY = struct.Struct("=9I")
SEND_LIMIT, SEND_USED = 3, 5


class TcpSocket:
    """A connection's socket. What is asked for each message goes by a descriptor of its own, made
    when it is needed first: uvloop's socket makes an object for each call, 1.5 us."""

    __slots__ = ("_corked", "_gives_up_after_ms", "_hides_bytes", "_own", "socket")

    def __init__(
        self, sock: socket.socket, unacknowledged_s: float | None = None, *, with_tls: bool
    ) -> None:
        """It sends without delay, holds little, and finds peers whose machine is gone, for
        connections without a call. `unacknowledged_s`: see `WireOptions`."""
        self.socket = sock
        # What TLS makes of the bytes, and keeps, isn't known.
        self._hides_bytes = with_tls or sys.platform != "linux"
        self._own: socket.socket | None = None
        self._corked = False
        self._gives_up_after_ms = sys.maxsize
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if unacknowledged_s is not None:
            self.give_up_after(unacknowledged_s)

    def close(self) -> None:
        """The connection is lost: its end isn't sent before all descriptors are closed."""
        if self._own is not None:
            self._own.close()

    def give_up_after(self, unacknowledged_s: float) -> None:
        """See `WireCall.give_up_after`."""
        timeout_ms = max(1, round(1000 * unacknowledged_s))
        if TCP_USER_TIMEOUT is not None and timeout_ms < self._gives_up_after_ms:
            self._gives_up_after_ms = timeout_ms
            self.socket.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms)

    def cork(self, on: bool) -> None:
        """See `WireCall.cork`."""
        if TCP_CORK is not None and on != self._corked:
            self._quick().setsockopt(socket.IPPROTO_TCP, TCP_CORK, on)
            self._corked = on

    def taken_at_once(self) -> int:
        """See `WireCall.taken_at_once`. The kernel takes bytes while fewer than `UNSENT_BYTES_MAX`
        are unsent, and while it has memory for them: at most twice as much as they are."""
        if self._hides_bytes:
            return 0
        unsent = array.array("i", [0])
        try:
            own = self._quick()
            fcntl.ioctl(own.fileno(), SIOCOUTQNSD, unsent)
            memory = MEMORY.unpack(own.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMORY.size))
        except (OSError, struct.error):
            return 0  # An older kernel, or a connection that is gone.
        free: int = memory[SEND_LIMIT] - memory[SEND_USED]
        return max(0, min(UNSENT_BYTES_MAX - int(unsent[0]), free // 2))

    def _quick(self) -> socket.socket:
        if self._own is None:
            try:
                self._own = socket.fromfd(
                    self.socket.fileno(), self.socket.family, self.socket.type
                )
            except OSError:
                return self.socket  # No descriptor is left.
        return self._own
