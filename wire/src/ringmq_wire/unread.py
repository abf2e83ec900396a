"""How many bytes of whole messages wait for the application: on all connections together. Pure.

Each stream has its own window, so a stream that nobody reads stops by itself. It must not stop the
others of its connection: 1. a publisher's queue takes nothing, so its stream isn't read, 2. sixteen
such streams hold the 16 MiB of the connection's window, 3. neither other publishers nor acks of the
same client get through. So unread bytes hold no credit of their connection, and a budget bounds
them instead.

A connection may have as many unread bytes as are left of the budget (a threshold that falls while
the budget fills, after Choudhury and Hahne). The bytes above that hold credit. So one connection
has half of the budget at most, k have k/(k+1) of it together, and a window more each.
"""

from __future__ import annotations

from collections.abc import Callable


class UnreadBytes:
    """Of one process, or of one connection by itself. `on_room` is called when connections that
    were held back may get credit again."""

    __slots__ = ("bytes_max", "held_bytes", "is_tight", "on_room")

    def __init__(self, bytes_max: int, on_room: Callable[[], None] = lambda: None) -> None:
        self.bytes_max = bytes_max
        # Connections count their messages here themselves, and call `eased` when they have made it
        # less and it is tight: two calls for each message would be felt.
        self.held_bytes = 0
        # Some connection has more than is left.
        self.is_tight = False
        self.on_room = on_room

    def excess(self, held_bytes: int) -> int:
        """How many of a connection's unread bytes hold its credit."""
        excess = held_bytes - max(0, self.bytes_max - self.held_bytes)
        if excess <= 0:
            return 0
        self.is_tight = True
        return excess

    def change(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        if size_bytes < 0 and self.is_tight:
            self.eased()

    def eased(self) -> None:
        """`held_bytes` has become less, and some connection had more than was left."""
        # Not at each message that is read: every connection is looked at then.
        if 2 * self.held_bytes <= self.bytes_max:
            self.is_tight = False
            self.on_room()
