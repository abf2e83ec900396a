"""How much memory the beginnings of messages take: on one connection, on all of a server. Pure."""

from __future__ import annotations


class UnfinishedBytes:
    """A sum with a limit. What changes it, changes that of `server`, too."""

    __slots__ = ("_server", "bytes_max", "kept_bytes")

    def __init__(self, bytes_max: int, server: UnfinishedBytes | None = None) -> None:
        self.bytes_max = bytes_max
        self.kept_bytes = 0
        self._server = server

    @property
    def is_over(self) -> bool:
        return self.kept_bytes > self.bytes_max

    def change(self, size_bytes: int) -> None:
        self.kept_bytes += size_bytes
        if self._server is not None:
            self._server.change(size_bytes)
