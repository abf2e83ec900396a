"""Blocks read or written lately, in a bounded number of bytes. Not thread-safe."""

from __future__ import annotations

from collections import OrderedDict

from ringmq_node.queue.block import Block


class BlockCache:
    """By `record_key`; the block that was used longest ago goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self.size_bytes = 0

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def get(self, key: int) -> Block | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: int, block: Block) -> None:
        self.drop(key)
        # It would push all others out, and then itself.
        if block.size_bytes > self._bytes_max:
            return
        self._blocks[key] = block
        self.size_bytes += block.size_bytes
        while self.size_bytes > self._bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.size_bytes -= oldest.size_bytes

    def drop(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self.size_bytes -= block.size_bytes
