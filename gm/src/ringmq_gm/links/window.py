"""How much may be on its way to a node before it gives credit, and whose. Pure.

All rings of a link share one window, so a few with much use it up, for as long as the other end
takes: it gives no credit while its disk has too much to write. A ring that then has one small op to
send would wait behind all of that. So there is a reserve beyond the window, for small bodies. Each
ring may have a share of it on the way, whatever the others do.

Invariants (`check`):

* What is on its way is less than the window and the reserve together, but for the message that
  reached the end of the window, and for frames without bodies.
* Of the reserve no ring has more than its share on the way, and all together no more than all of
  it. So a ring that has nothing of the reserve on the way may send something, as long as not so
  many others do: `RESERVE_BYTES / SHARE_BYTES` with as much as they may have.
* What was lent comes back with the credit for it, as messages are taken in their order. A node that
  takes anything lets every ring go on.
"""

from __future__ import annotations

from collections import deque

# Of small bodies with their frames: the first two of a ring at least (see outbox.py).
SHARE_BYTES = 8 * 1024 + 512
RESERVE_BYTES = 1024 * 1024


class LinkWindow:
    """For one session of a link."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self.sent_bytes = 0
        self.credited_bytes = 0
        # Of the reserve, for the message that is being made: ring and bytes.
        self._lending: list[tuple[str, int]] = []
        # The same of messages that aren't credited, with what was sent up to the end of each.
        self._lent: deque[tuple[int, list[tuple[str, int]]]] = deque()
        # What is on its way of it, by ring, and together.
        self._lent_to: dict[str, int] = {}
        self._lent_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether bodies of any ring may go."""
        return self.sent_bytes - self.credited_bytes < self._window_bytes

    @property
    def has_reserve(self) -> bool:
        """Whether anything of the reserve is left."""
        return self._lent_bytes < RESERVE_BYTES

    def room_of(self, ring: str) -> int:
        """Bytes that the ring may send of the reserve."""
        left = SHARE_BYTES - self._lent_to.get(ring, 0)
        return min(left, RESERVE_BYTES - self._lent_bytes)

    def lend(self, ring: str, size_bytes: int) -> None:
        """The next message has so much of the ring, which it has of the reserve."""
        assert size_bytes <= self.room_of(ring), (ring, size_bytes)
        self._lending.append((ring, size_bytes))
        self._lent_to[ring] = self._lent_to.get(ring, 0) + size_bytes
        self._lent_bytes += size_bytes

    def sent(self, size_bytes: int) -> None:
        """A message has left."""
        self.sent_bytes += size_bytes
        if self._lending:
            self._lent.append((self.sent_bytes, self._lending))
            self._lending = []

    def credited(self, total_bytes: int) -> None:
        """The other end has taken so much since the link began."""
        self.credited_bytes = total_bytes
        while self._lent and self._lent[0][0] <= total_bytes:
            for ring, size_bytes in self._lent.popleft()[1]:
                self._lent_bytes -= size_bytes
                left = self._lent_to[ring] - size_bytes
                if left:
                    self._lent_to[ring] = left
                else:
                    del self._lent_to[ring]

    def check(self) -> None:
        """The invariants, for tests."""
        lent = [each for _, rings in self._lent for each in rings] + self._lending
        assert self._lent_bytes == sum(size for _, size in lent) <= RESERVE_BYTES
        by_ring = {ring: sum(size for name, size in lent if name == ring) for ring, _ in lent}
        assert by_ring == self._lent_to
        assert all(0 < size <= SHARE_BYTES for size in by_ring.values())
        assert all(end > self.credited_bytes for end, _ in self._lent)
