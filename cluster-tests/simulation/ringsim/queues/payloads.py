"""Ops and bodies out of payloads. A run reads the same ones again and again."""

from __future__ import annotations

from functools import lru_cache

from ringmq_node.queue import ops
from ringmq_node.queue.ops import Op, Publish

Bodies = dict[int, tuple[bytes, bool]]  # by position: the body, and whether it is transient


@lru_cache(maxsize=4096)
def op_of(payload: bytes) -> Op:
    return ops.decode(payload)


def bodies_of(op: Publish) -> Bodies:
    bodies = enumerate(op.block.bodies(), op.first_position)
    return {position: (bytes(body), op.transient) for position, body in bodies}
