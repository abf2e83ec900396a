"""Blocks that are not on the disk yet, and are read from memory. Not thread-safe."""

from __future__ import annotations

from ringmq_node.queue.block import Block
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES
from ringmq_node.storage.format.references import RecordLocation

# Before the key of every record, and behind.
NO_RECORD = -1
ALL_RECORDS = 1 << 64


def record_key(file: int, ordinal: int) -> int:
    """One number for a record, by which blocks in memory are found. It grows from one that is put
    to the next."""
    return file << 32 | ordinal


def key_of(location: RecordLocation) -> int:
    return record_key(location.file, location.ordinal)


class UnwrittenBlocks:
    """By `record_key`; with the bytes that they will take on the disk."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self.size_bytes = 0

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: int) -> Block | None:
        return self._blocks.get(key)

    def add(self, key: int, block: Block) -> None:
        self._blocks[key] = block
        self.size_bytes += RECORD_HEADER_BYTES + block.size_bytes

    def drop(self, key: int) -> bool:
        """Forgets a block; returns whether it was there."""
        block = self._blocks.pop(key, None)
        if block is None:
            return False
        self.size_bytes -= RECORD_HEADER_BYTES + block.size_bytes
        return True

    def check(self) -> None:
        assert self.size_bytes == sum(
            RECORD_HEADER_BYTES + block.size_bytes for block in self._blocks.values()
        )
