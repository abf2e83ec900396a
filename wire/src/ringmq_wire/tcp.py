"""The options of TCP that a connection sets. Not all systems know all of them."""

from __future__ import annotations

import socket

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
