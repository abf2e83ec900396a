"""What the C library keeps of freed memory: enough for the next messages, and no more.

`trim` gives freed memory that it has kept back to the system. glibc by itself returns only the top
of its heap. Between the blocks that a queue pages out, other objects live on, so none of that
memory would come back: of 300 MiB in blocks of 64 KiB with nine of ten freed, 324 MiB stayed
resident, and 57 after `trim` (18 ms; once more right after it: 0.4 ms). Without `trim`, a monitor
that goes by resident memory would page everything out and still see no less.

`keep_buffers` is for the top of the heap. glibc returns it as soon as it is 1 MiB or so, and a node
takes and frees buffers of half a MiB for each piece that is browsed, batch, or round of its disk.
So the kernel had to clear the same pages again and again: for a browse, that was half of the node's
processor time (`docs/decisions/0160-heaps-keep-their-tops.md`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

MIB = 1 << 20

# From glibc's malloc.h: what is set, and to how many bytes. `ringmq_pipeline/session.py` has the
# same values for Spark's processes.
#
# A larger block is the kernel's at once when it is freed. A piece, a batch of the client, a frame
# and a buffer of the journal are smaller.
M_MMAP_THRESHOLD: Final = -3, 4 * MIB
# So much of a heap's top is kept when it is free: eight pieces. Of an idle process it is the most
# that a heap has for nothing, until `trim`. The loop's thread and those that read and write disks
# have a heap each, and few of these grow so large.
M_TRIM_THRESHOLD: Final = -1, 16 * MIB
# A heap that grows, grows by this: fewer calls.
M_TOP_PAD: Final = -2, 1 * MIB
KEPT: Final = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD)


def _nothing_to_trim() -> None:
    """For C libraries without such a call. Those of musl and macOS return more by themselves."""


def _find() -> Callable[[], None]:
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return _nothing_to_trim
    malloc_trim.argtypes = [ctypes.c_size_t]
    malloc_trim.restype = ctypes.c_int

    def trim() -> None:
        malloc_trim(0)

    return trim


trim = _find()


def keep_buffers() -> None:
    """Sets the C library up for a node's process, for good. Nothing but for glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    for parameter, size_bytes in KEPT:
        mallopt(parameter, size_bytes)
