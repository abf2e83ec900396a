"""Who calls: the client's connection, as its calls to any node say it.

A client without a connection says nothing. See `ringmq.connection`.
"""

from __future__ import annotations

CONNECTION_KEY = "ringmq-connection"


class Identity:
    """One for all channels of a client. `metadata` goes with every call and stream."""

    def __init__(self) -> None:
        self.metadata: tuple[tuple[str, str], ...] = ()

    def become(self, connection: str) -> None:
        """`connection`: its id, or empty."""
        self.metadata = ((CONNECTION_KEY, connection),) if connection else ()
