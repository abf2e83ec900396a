"""A message in parts: what is large in it is sent from where it lies.

A message is made of buffers that others own, as the records of a store. To join them would copy
all of it once more, and a copy of 1 MiB falls out of the processor's caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

# What is up to this size is copied to stand beside its neighbour; what is larger stays as it is.
COPIED_BYTES_MAX = 4096


class Parts:
    """A message whose bytes lie in several buffers. `message_of` makes it."""

    __slots__ = ("_size", "buffers")

    def __init__(self, buffers: Sequence[bytes | memoryview]) -> None:
        self.buffers = buffers
        self._size = sum(map(len, buffers))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)

    def __radd__(self, before: bytes) -> bytes:
        return b"".join((before, *self.buffers))


WireMessage: TypeAlias = "bytes | Parts"


def message_of(buffers: Sequence[bytes | memoryview]) -> WireMessage:
    """These buffers (of single bytes), one behind another. None of the large ones is copied, so
    nobody may change them until they are sent."""
    if max(map(len, buffers), default=0) <= COPIED_BYTES_MAX:
        return b"".join(buffers)
    kept: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) <= COPIED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            kept.append(b"".join(small))
            small = []
        kept.append(buffer)
    if small:
        kept.append(b"".join(small))
    return Parts(kept)
