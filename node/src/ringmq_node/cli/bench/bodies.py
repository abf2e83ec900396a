"""The messages of `ringmq bench`.

A body of at least `HEADER_BYTES` begins with the index of its message, the time of
its hand-over (wall clock, as publisher and consumer may be two processes) and the
run, so that the other end can tell the latency and what is missing. Smaller bodies
are only counted.

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
# The index of a message that isn't of this run.
FOREIGN = -1


class Bodies:
    """Makes the messages of one run, and reads them again."""

    def __init__(self, size_bytes: int) -> None:
        self.has_header = size_bytes >= HEADER_BYTES
        self._mark = _MAGIC + urandom(4)
        self._plain = (b"ringmq " * (size_bytes // 7 + 1))[:size_bytes]
        self._filler = self._plain[HEADER_BYTES:]

    def make(self, first: int, count: int) -> Sequence[bytes]:
        """The messages `first` to `first + count - 1`, handed over now."""
        if not self.has_header:
            return [self._plain] * count
        tail = _TAIL.pack(time.time_ns(), self._mark[:4], self._mark[4:]) + self._filler
        return [index + tail for index in map(_INDEX.pack, range(first, first + count))]

    def read(self, bodies: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """(indexes, times in ns), one each; `FOREIGN` and 0 for what isn't of this run."""
        heads = [body[:HEADER_BYTES] for body in bodies]
        marks = {head[16:] for head in heads}
        if marks == {self._mark}:
            # All at once; each header is 3 numbers of 8 bytes.
            numbers = struct.unpack(f">{3 * len(heads)}Q", b"".join(heads))
            return numbers[::3], numbers[1::3]
        rows = [
            _HEADER.unpack(head)[:2] if head[16:] == self._mark else (FOREIGN, 0) for head in heads
        ]
        return [index for index, _ in rows], [sent_ns for _, sent_ns in rows]


def times_ns(bodies: Sequence[bytes]) -> list[int]:
    """The times in those bodies, of whatever run, that have one."""
    return [
        _INDEX.unpack_from(body, 8)[0]
        for body in bodies
        if len(body) >= HEADER_BYTES and body[16:20] == _MAGIC
    ]
