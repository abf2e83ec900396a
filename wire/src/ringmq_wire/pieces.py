"""Input that is taken in pieces, so that none holds the loop.

One read of a socket may have the heads of thousands of calls, each of which costs some 30 us, and
the tasks that serve them begin in the turn after it. What would take longer than `HELD_S_MAX` waits
for the next turn of the loop, and meanwhile nothing more is read.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from time import perf_counter

# The clock is looked at after so much: bodies of this size take some 10 us.
PIECE_BYTES = 32 * 1024
HELD_S_MAX = 0.01


class PiecesOfInput(asyncio.Protocol):
    """A protocol that is given its input in pieces."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting = b""

    @abstractmethod
    def take(self, data: bytes) -> None:
        """A part of the input."""

    @abstractmethod
    def turn_ends(self) -> None:
        """No more input is taken in this turn of the loop."""

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            # It was read before the pause.
            self._waiting += data
            return
        ends_at = perf_counter() + HELD_S_MAX
        taken = 0
        while taken < len(data):
            self.take(data[taken : taken + PIECE_BYTES])
            taken += PIECE_BYTES
            transport = self._transport
            if transport is None or transport.is_closing() or perf_counter() < ends_at:
                continue
            if taken < len(data):
                self._waiting = data[taken:]
                transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._go_on)
                break
        self.turn_ends()

    def take_rest(self) -> None:
        """The connection is lost. What came before that counts."""
        data, self._waiting = self._waiting, b""
        if data:
            self.take(data)

    def _go_on(self) -> None:
        data, self._waiting = self._waiting, b""
        transport = self._transport
        if not data or transport is None:
            return
        if not transport.is_closing():
            transport.resume_reading()
        self.data_received(data)
