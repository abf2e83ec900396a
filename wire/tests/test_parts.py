"""Messages of several buffers: they go as one, and what is large in them isn't copied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wirepair import pair_ready

from ringmq_wire import message_of
from ringmq_wire.codes import Code
from ringmq_wire.parts import COPIED_BYTES_MAX, Parts
from ringmq_wire.streams import WireStream

LARGE = COPIED_BYTES_MAX + 1


@given(st.lists(st.sampled_from([0, 1, 5, COPIED_BYTES_MAX, LARGE, 200_000]), max_size=6))
def test_a_message_of_buffers_is_the_message_of_their_bytes(sizes: list[int]) -> None:
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    message = message_of(buffers)
    whole = b"".join(buffers)
    assert (len(message), bytes(message)) == (len(whole), whole)
    pair = pair_ready()
    stream = pair.client.open()
    pair.client.core.calls.send(stream, [b"before", message, b"behind"])
    while data := pair.client.output():
        pair.server.receive(data)
        pair.client.receive(pair.server.output())
    assert pair.server.messages(stream.id) == [b"before", whole, b"behind"]


def test_only_what_is_small_is_copied() -> None:
    first, second = memoryview(bytes(LARGE)), bytes(LARGE)
    message = message_of([b"head", b"more", first, b"a", b"b", second, b"end"])
    assert isinstance(message, Parts)
    assert [*map(len, message.buffers)] == [8, LARGE, 2, LARGE, 3]
    assert message.buffers[1] is first
    assert message.buffers[3] is second
    stream = WireStream(
        1,
        now=0.0,
        send_window=0,
        receive_window=0,
        message_bytes_max=0,
        compressed_code=Code.INTERNAL,
    )
    stream.put([message])
    assert [*stream.queue][1:] == [*message.buffers]
    assert stream.queued_bytes == len(message) + 5


def test_small_buffers_are_one_message_of_bytes() -> None:
    assert message_of([b"a", memoryview(b"b")]) == b"ab"
    assert message_of([]) == b""
