"""A block gives back its bodies and properties, in any slice; other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.queue.block import COUNT_MAX, HEADER, MAGIC, VERSION, Block, BlockError

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


@st.composite
def contents(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    bodies = draw(BODIES)
    sizes = [0, 1, len(bodies)]
    size = draw(st.sampled_from(sizes))
    return bodies, draw(st.lists(st.binary(max_size=9), min_size=size, max_size=size))


@given(contents(), st.data())
def test_any_slice_has_the_bodies_and_properties_that_were_put_in(
    content: tuple[list[bytes], list[bytes]], data: st.DataObject
) -> None:
    bodies, properties = content
    block = Block(Block.of(bodies, properties).data)
    assert (block.count, block.bodies(), block.properties()) == (len(bodies), bodies, properties)
    assert [*block.body_sizes()] == [len(body) for body in bodies]
    start = data.draw(st.integers(0, len(bodies) - 1))
    stop = data.draw(st.integers(start + 1, len(bodies)))
    part = block.slice(start, stop)
    assert part.bodies() == block.bodies(start, stop) == bodies[start:stop]
    each = len(properties) == len(bodies)
    expected = properties[start:stop] if each else properties
    assert part.properties() == block.properties(start, stop) == expected
    assert block.body_bytes(start, stop) == part.body_bytes() == sum(map(len, bodies[start:stop]))


@given(contents(), st.binary(min_size=1, max_size=30), st.data())
def test_a_block_behind_other_bytes_is_the_same_block(
    content: tuple[list[bytes], list[bytes]], before: bytes, data: st.DataObject
) -> None:
    alone = Block.of(*content)
    block = Block(before + alone.data, len(before))
    assert block.data == alone.data == bytes(block.view)
    assert (block.count, block.size_bytes) == (alone.count, len(alone.data))
    assert block.is_same(alone)
    assert alone.is_same(block)
    other = Block.of([*content[0], b"more"])
    assert not block.is_same(other)
    assert not other.is_same(block)
    changed = bytearray(alone.data)
    changed[-1] ^= 1
    if alone.sent_bytes():  # Else its last byte is of a table.
        assert not block.is_same(Block(bytes(changed)))
    assert block.kept_bytes == len(before) + alone.size_bytes
    assert block.encoded_body_sizes() == alone.encoded_body_sizes()
    assert block.bodies_together() == alone.bodies_together()
    start = data.draw(st.integers(0, alone.count - 1))
    stop = data.draw(st.integers(start + 1, alone.count))
    for make in (Block.bodies, Block.properties, Block.body_bytes):
        assert make(block, start, stop) == make(alone, start, stop)
    assert block.slice(start, stop).data == alone.slice(start, stop).data
    assert block.sent_bytes(stop) == alone.sent_bytes(stop)
    assert block.fit(start, 50) == alone.fit(start, 50)
    assert block.fit_sent(50) == alone.fit_sent(50)
    assert Block.join([block, alone]).data == Block.join([alone, block]).data


@given(contents())
def test_a_block_that_was_put_together_is_as_it_would_be_read(
    content: tuple[list[bytes], list[bytes]],
) -> None:
    block = Block.of(*content)
    read = Block(block.data)
    assert all(getattr(block, name) == getattr(read, name) for name in Block.__slots__)


@given(BODIES, st.data())
def test_fit_takes_as_many_as_fit_and_at_least_one(
    bodies: list[bytes], data: st.DataObject
) -> None:
    block = Block.of(bodies)
    start = data.draw(st.integers(0, len(bodies) - 1))
    bytes_max = data.draw(st.integers(0, 200))
    stop = block.fit(start, bytes_max)
    assert start < stop <= len(bodies)
    assert stop == start + 1 or block.body_bytes(start, stop) <= bytes_max
    assert stop == len(bodies) or block.body_bytes(start, stop + 1) > bytes_max


@given(contents(), st.integers(0, 400))
def test_fit_sent_counts_what_a_slice_has(
    content: tuple[list[bytes], list[bytes]], bytes_max: int
) -> None:
    block = Block.of(*content)
    sizes = [
        sum(map(len, part.bodies() + part.properties()))
        for part in (block.slice(0, stop) for stop in range(1, block.count + 1))
    ]
    assert [block.sent_bytes(stop) for stop in range(1, block.count + 1)] == sizes
    assert block.sent_bytes() == sizes[-1]
    assert block.fit_sent(bytes_max) == sum(size <= bytes_max for size in sizes)


def test_one_message_with_one_properties_has_its_own() -> None:
    block = Block.of([b"a"], [b"p"])
    assert block.properties() == block.properties(0, 1) == [b"p"]


def test_whole_slice_is_the_block_itself() -> None:
    block = Block.of([b"a", b"b"])
    assert block.slice(0, 2) is block


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(BlockError):
        Block(data)


@given(contents(), st.data())
def test_bytes_changed_in_the_tables_are_refused_or_change_only_sizes(
    content: tuple[list[bytes], list[bytes]], data: st.DataObject
) -> None:
    """A block has no checksum of its own. Its tables may lie, but never lead out of its bytes."""
    whole = bytearray(Block.of(*content).data)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        block = Block(bytes(whole))
    except BlockError:
        return
    total = sum(map(len, block.bodies())) + sum(map(len, block.properties()))
    assert total <= len(whole)


@given(contents(), st.integers(0, 500))
def test_cut_block_is_refused(content: tuple[list[bytes], list[bytes]], size: int) -> None:
    data = Block.of(*content).data
    if size < len(data):
        with pytest.raises(BlockError):
            Block(data[:size])
    with pytest.raises(BlockError):
        Block(data + b"x")


@pytest.mark.parametrize("count", [0, COUNT_MAX + 1, 2**32 - 1])
def test_count_out_of_bounds_is_refused_before_anything_is_read(count: int) -> None:
    with pytest.raises(BlockError, match="messages"):
        Block(HEADER.pack(MAGIC, VERSION, 0, count))


@pytest.mark.parametrize("properties", [2, 4])
def test_properties_that_match_no_way_are_refused(properties: int) -> None:
    with pytest.raises(BlockError, match="properties"):
        Block.of([b"a", b"b", b"c"], [b"p"] * properties)


def test_no_messages_are_refused() -> None:
    with pytest.raises(BlockError):
        Block.of([])
