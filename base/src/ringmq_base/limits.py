"""Bounds that two packages must agree on, each with its unit.

A bound belongs here only if both sides of a wire, or both the writer and the reader of a file,
check it. Bounds that one module alone enforces stay beside the code that enforces them.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# A queue's name as UTF-8. The registry's record and the folder's label both carry it.
QUEUE_NAME_BYTES_MAX: Final = 255
# A publisher chooses its producer id, and every replica remembers it: see `Publish` in the
# node's queue ops.
PRODUCER_ID_BYTES_MAX: Final = 64
# A stream whose peer misses so many heartbeats in a row is given up, by client and node alike.
HEARTBEATS_MISSED_MAX: Final = 3
# Ranges of one request that settles deliveries: a client with more sends several requests, and a
# node does each in one piece of work.
SETTLE_RANGES_MAX: Final = 1000
# How many pulls of one stream may wait for their answers: a client writes no more, and a node ends
# a stream with more.
PULLS_WAITING_MAX: Final = 100
