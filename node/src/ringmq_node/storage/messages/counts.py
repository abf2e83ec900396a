"""The numbers of references to the records of a file: one byte each.

A count of 255 or more is rare (a fan-out to so many queues), and is kept beside. Pure;
one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

# In the byte: the true count is in `_many`.
_MANY = 255


class Counts:
    """Like a list of integers that is as long as it has to be, 0 wherever nothing was set."""

    __slots__ = ("_bytes", "_many")

    def __init__(self, counts: bytes | bytearray = b"") -> None:
        assert _MANY not in counts
        self._bytes = bytearray(counts)
        self._many: dict[int, int] = {}

    def get(self, index: int) -> int:
        if index >= len(self._bytes):
            return 0
        count = self._bytes[index]
        return count if count < _MANY else self._many[index]

    def add(self, index: int) -> int:
        """One more; returns how many there are now."""
        counts = self._bytes
        if index >= len(counts):
            counts.extend(bytes(index + 1 - len(counts)))
        count = counts[index]
        if count < _MANY - 1:
            counts[index] = count + 1
            return count + 1
        counts[index] = _MANY
        self._many[index] = self._many.get(index, _MANY - 1) + 1
        return self._many[index]

    def drop(self, index: int) -> int:
        """One less; returns how many are left."""
        left = self.get(index) - 1
        assert left >= 0, f"record {index} is released, and nothing refers to it"
        if left >= _MANY:
            self._many[index] = left
            return left
        self._many.pop(index, None)
        self._bytes[index] = left
        return left

    def nonzero(self) -> int:
        """How many records have references."""
        return len(self._bytes) - self._bytes.count(0)

    def snapshot(self) -> bytes:
        """A byte for each record, 0 if nothing refers to it."""
        return bytes(self._bytes)

    def select(self, indexes: Sequence[int]) -> Counts:
        """The counts of these records, in this order, numbered anew from 0."""
        chosen = Counts()
        size = len(self._bytes)
        chosen._bytes = bytearray(self._bytes[i] if i < size else 0 for i in indexes)
        if self._many:
            chosen._many = {
                new: self._many[old] for new, old in enumerate(indexes) if old in self._many
            }
        return chosen

    @property
    def memory_bytes(self) -> int:
        return self._bytes.__sizeof__() + 100 * len(self._many)
