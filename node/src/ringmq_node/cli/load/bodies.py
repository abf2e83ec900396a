"""Bodies made up for a run: plain filler, or stamped so that the consumer can judge them.

A stamped body has at least `HEADER_BYTES`. It begins with the index of its message, the
time of its hand-over and the run, so that the consumer can tell its latency and notice
missing messages. The time is of the wall clock, because publisher and consumer may be two
processes. Shorter bodies carry no stamp: they are only counted.

    offset 0   8 bytes   index, big-endian
           8   8 bytes   time, ns since 1970
          16   4 bytes   "rmqb"
          20   4 bytes   run
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from os import urandom

_INDEX = struct.Struct(">Q")
_TAIL = struct.Struct(">Q4s4s")
_HEADER = struct.Struct(">QQ4s4s")
_MAGIC = b"rmqb"
HEADER_BYTES = _HEADER.size
# The index of a message that another run has published.
FOREIGN = -1


def filler(size_bytes: int) -> bytes:
    """A body of that size without a stamp."""
    return (b"ringmq " * (size_bytes // 7 + 1))[:size_bytes]


class StampedBodies:
    """Makes the bodies of one run, and reads them again. Too small a size has no stamps."""

    def __init__(self, size_bytes: int) -> None:
        self.has_stamp = size_bytes >= HEADER_BYTES
        self._mark = _MAGIC + urandom(4)
        self._plain = filler(size_bytes)
        self._rest = self._plain[HEADER_BYTES:]

    def make(self, first: int, count: int) -> Sequence[bytes]:
        """The messages `first` to `first + count - 1`, stamped with the time of this call."""
        if not self.has_stamp:
            return [self._plain] * count
        tail = _TAIL.pack(time.time_ns(), self._mark[:4], self._mark[4:]) + self._rest
        return [index + tail for index in map(_INDEX.pack, range(first, first + count))]

    def read(self, bodies: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """(indexes, times in ns), one for each body; `FOREIGN` and 0 for one of another run."""
        heads = [body[:HEADER_BYTES] for body in bodies]
        marks = {head[16:] for head in heads}
        if marks == {self._mark}:
            # The usual case, at C speed: each header is three numbers of 8 bytes.
            numbers = struct.unpack(f">{3 * len(heads)}Q", b"".join(heads))
            return numbers[::3], numbers[1::3]
        rows = [
            _HEADER.unpack(head)[:2] if head[16:] == self._mark else (FOREIGN, 0) for head in heads
        ]
        return [index for index, _ in rows], [sent_ns for _, sent_ns in rows]


def times_ns(bodies: Sequence[bytes]) -> list[int]:
    """The times of all stamped bodies among these, whichever run has made them."""
    return [
        _INDEX.unpack_from(body, 8)[0]
        for body in bodies
        if len(body) >= HEADER_BYTES and body[16:20] == _MAGIC
    ]
