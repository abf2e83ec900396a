"""Which messages a replica would inherit as safe, if it became master now.

A master hides the messages that it inherits until they are safe (`confirms`). With a quorum one
trip around the ring shows that. Without one there is no trip; but the master before has told its
mirrors, with every frame, up to which op all was confirmed. A message that was confirmed is on the
disk of every later master, so to deliver it is as safe as it was under the old master: the new
master's own `Requeue`, which flags it as redelivered, need not be confirmed first, as the next
master would begin with one of its own.

Every replica keeps this, and it costs an entry for each publish that isn't known to be safe yet.

Invariants (`check`): the publishes are in order; none of them is known to be safe.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise


class Inheritance:
    """Begins with a state whose messages, below `next_position`, are not known to be safe."""

    def __init__(self, last_number: int, next_position: int) -> None:
        # Positions below this one were confirmed.
        self.safe_below = 0
        # (number of the op, positions up to which are safe when it is)
        self.unsafe: deque[tuple[int, int]] = deque()
        self.begin(last_number, next_position)

    @property
    def next_position(self) -> int:
        return self.unsafe[-1][1] if self.unsafe else self.safe_below

    def begin(self, last_number: int, next_position: int) -> None:
        """The replica has another state: nothing of it is known to be safe."""
        self.safe_below = 0
        self.unsafe.clear()
        if next_position:
            self.unsafe.append((last_number, next_position))

    def applied(self, number: int, next_position: int) -> None:
        """The op has been applied here, and the next position is this one now."""
        unsafe = self.unsafe
        if next_position > (unsafe[-1][1] if unsafe else self.safe_below):
            unsafe.append((number, next_position))

    def safe(self, number: int) -> None:
        """The ops up to this one are known to be confirmed as on disk."""
        unsafe = self.unsafe
        while unsafe and unsafe[0][0] <= number:
            self.safe_below = unsafe.popleft()[1]

    def check(self) -> None:
        assert all(a < b and c < d for (a, c), (b, d) in pairwise(self.unsafe)), self.unsafe
        assert not self.unsafe or self.unsafe[0][1] > self.safe_below
