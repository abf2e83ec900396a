"""A process that takes and frees pieces as a browse does: a few at a time, again and again.

Prints the page faults of that, the resident size at the start, when 100 MiB in blocks of 1 MiB have
been taken and freed, and when the allocator has trimmed: MiB each.
"""

from __future__ import annotations

import resource
import sys

from ringmq_node.resources.allocator import MIB, keep_buffers, trim
from ringmq_node.resources.cgroup import resident_bytes

PIECE_BYTES = 512 << 10
AT_ONCE = 4
ROUNDS = 100
BLOCKS = 100


def take(count: int, size_bytes: int) -> None:
    held = [b"\1" * size_bytes for _ in range(count)]
    held.clear()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if "--as-it-is" not in sys.argv:
    keep_buffers()
take(AT_ONCE, PIECE_BYTES)
began, resident = faults(), resident_bytes()
for _ in range(ROUNDS):
    take(AT_ONCE, PIECE_BYTES)
faulted = faults() - began
take(BLOCKS, MIB)
kept = resident_bytes()
trim()
print(faulted, resident // MIB, kept // MIB, resident_bytes() // MIB)
