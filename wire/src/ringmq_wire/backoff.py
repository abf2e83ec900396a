"""How long to wait before a connection is tried again. Pure."""

from __future__ import annotations

from typing import Protocol


class Jitter(Protocol):
    """`random.Random`, or what a test puts in its place."""

    def uniform(self, a: float, b: float) -> float: ...


class Backoff:
    """gRPC's "Connection Backoff": each pause `FACTOR` times the one before, up to the longest,
    all within a fifth either way so that many clients don't come back at once."""

    FACTOR = 1.6
    JITTER = 0.2

    def __init__(self, first_s: float, longest_s: float, jitter: Jitter) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._next_s = first_s

    def pause_s(self) -> float:
        """The pause after one more failure."""
        pause = self._next_s
        self._next_s = min(self._longest_s, pause * self.FACTOR)
        return pause * (1 + self._jitter.uniform(-self.JITTER, self.JITTER))

    def reset(self) -> None:
        """A connection was made."""
        self._next_s = self._first_s
