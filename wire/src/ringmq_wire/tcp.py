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


def prepare(sock: socket.socket) -> None:
    """A new connection's socket: sends without delay, holds little, and finds peers whose machine
    is gone, for connections without a call."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in TCP_KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def give_up_after(sock: socket.socket, unacknowledged_s: float) -> None:
    """See `WireCall.give_up_after`."""
    if TCP_USER_TIMEOUT is not None:
        timeout_ms = max(1, round(1000 * unacknowledged_s))
        sock.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms)


def cork(sock: socket.socket, on: bool) -> None:
    """See `WireCall.cork`."""
    if TCP_CORK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_CORK, on)


def taken_at_once(sock: socket.socket) -> int:
    """See `WireCall.taken_at_once`. The kernel takes bytes while fewer than `UNSENT_BYTES_MAX` are
    unsent, and while it has memory for them: at most twice as much as they are."""
    if sys.platform != "linux":
        return 0
    unsent = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), SIOCOUTQNSD, unsent)
        memory = MEMORY.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMORY.size))
    except (OSError, struct.error):
        return 0  # An older kernel, or a connection that is gone.
    free: int = memory[SEND_LIMIT] - memory[SEND_USED]
    return max(0, min(UNSENT_BYTES_MAX - int(unsent[0]), free // 2))
