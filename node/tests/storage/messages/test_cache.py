"""The cache of blocks."""

from __future__ import annotations

from ringmq_node.queue.block import Block
from ringmq_node.storage.messages.cache import BlockCache


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    blocks = [Block.of([bytes(100)]) for _ in range(5)]
    size = len(blocks[0].data)
    cache = BlockCache(3 * size)
    for key in range(3):
        cache.put(key, blocks[key])
    assert cache.get(0) is blocks[0]
    cache.put(3, blocks[3])
    assert [cache.get(key) for key in range(4)] == [blocks[0], None, blocks[2], blocks[3]]
    cache.put(4, Block.of([bytes(1000)]))
    assert cache.get(4) is None
    cache.drop(0)
    cache.drop(0)
    cache.put(2, blocks[4])
    assert cache.size_bytes == 2 * size
