"""The window that the rings of a link share, and its reserve for those with little on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringmq_gm.core.frames import OpFrame, decode
from ringmq_gm.links import wire
from ringmq_gm.links.outbox import SMALL_BYTES_MAX, LinkOutbox
from ringmq_gm.links.window import RESERVE_BYTES, SHARE_BYTES, LinkWindow

WINDOW_BYTES = 200_000
MESSAGE_BYTES = 31 * 1024


def op(ring: str, number: int, size_bytes: int) -> OpFrame:
    return OpFrame(ring, 1, 0, 0, 1, number, False, (), bytes(size_bytes))


class Sender:
    """An outbox and a window, as the link uses them."""

    def __init__(self) -> None:
        self.outbox = LinkOutbox(message_bytes=MESSAGE_BYTES)
        self.window = LinkWindow(WINDOW_BYTES)
        # By ring, the ops that have left.
        self.left: dict[str, list[int]] = {}
        self.messages: list[int] = []
        self._numbers: dict[str, int] = {}

    def put(self, ring: str, size_bytes: int) -> None:
        self._numbers[ring] = number = self._numbers.get(ring, 0) + 1
        self.outbox.put(op(ring, number, size_bytes))

    def send(self) -> None:
        """All that may go."""
        while True:
            is_open = self.window.is_open
            data = self.outbox.take(bodies=is_open, window=self.window)
            if data is None:
                return
            self.window.sent(len(data))
            self.messages.append(len(data))
            self.window.check()
            self.outbox.check()
            kind, begin = wire.frames_in(data)
            if kind == wire.WHOLE:
                for frame in decode(data, begin):
                    assert isinstance(frame, OpFrame)
                    self.left.setdefault(frame.ring, []).append(frame.number)
                    assert is_open or len(frame.payload) <= SHARE_BYTES

    @property
    def on_the_way(self) -> int:
        return self.window.sent_bytes - self.window.credited_bytes

    def credit(self, messages: int) -> None:
        """The oldest so many messages that aren't credited were taken."""
        total = self.window.credited_bytes
        taken, self.messages = self.messages[:messages], self.messages[messages:]
        self.window.credited(total + sum(taken))
        self.window.check()


def full() -> Sender:
    """A link whose window is used up by a ring that has more to send."""
    sender = Sender()
    for _ in range(10):
        sender.put("busy", 100_000)
    sender.send()
    assert not sender.window.is_open
    return sender


def test_a_small_op_goes_though_others_have_used_up_the_window() -> None:
    sender = full()
    for number in range(100):
        sender.put(f"quiet {number}", SMALL_BYTES_MAX)
    sender.send()
    assert all(sender.left[f"quiet {number}"] == [1] for number in range(100))


def test_a_ring_has_its_share_of_the_reserve_until_there_is_credit() -> None:
    sender = full()
    for _ in range(6):
        sender.put("quiet", SMALL_BYTES_MAX)
    sender.send()
    assert sender.left["quiet"] == [1, 2]
    # As more than its share came at once, it is in line with the large ones until the window opens.
    sender.credit(len(sender.messages))
    sender.send()
    assert sender.left["quiet"] == [1, 2, 3, 4, 5, 6]
    sender = full()
    for number in range(1, 8):
        sender.put("quiet", SMALL_BYTES_MAX)
        sender.send()
        assert sender.left["quiet"] == [1, 2][:number]


def test_large_bodies_have_nothing_of_the_reserve() -> None:
    sender = full()
    sender.put("other", SMALL_BYTES_MAX + 1)
    sender.put("other", 10)
    sender.send()
    assert "other" not in sender.left


def test_the_reserve_has_an_end_and_comes_back() -> None:
    sender = full()
    before = sender.on_the_way
    for number in range(400):
        sender.put(f"quiet {number}", SMALL_BYTES_MAX)
    sender.send()
    went = [ring for ring in sender.left if ring.startswith("quiet")]
    assert RESERVE_BYTES // (2 * SMALL_BYTES_MAX) < len(went) < 400
    assert sender.on_the_way - before <= RESERVE_BYTES + len(sender.messages) * wire_bytes()
    # The messages of the window alone give nothing back of the reserve.
    while sender.messages and len(sender.left) < 401:
        sender.credit(1)
        sender.send()
    assert all(sender.left[f"quiet {number}"] == [1] for number in range(400))


def wire_bytes() -> int:
    """What a message has beside its frames."""
    return len(wire.frames_message(wire.WHOLE, []))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.integers(SMALL_BYTES_MAX + 1, 120_000)),
        st.tuples(st.integers(0, 300).map(str), st.integers(0, SMALL_BYTES_MAX)),
        # So many messages are taken.
        st.integers(1, 30),
    ),
    max_size=120,
)


@given(STEPS)
def test_what_is_on_the_way_is_bounded_and_no_ring_starves(
    steps: list[tuple[str, int] | int],
) -> None:
    """Whatever comes: each small op of a ring that has nothing on the way goes at once, as long as
    there is a reserve; and all goes as the other end takes."""
    sender = Sender()
    put: dict[str, int] = {}
    for step in steps:
        if isinstance(step, int):
            sender.credit(step)
            sender.send()
            continue
        ring, size_bytes = step
        idle = not sender.outbox.waiting_bytes(ring) and not sender.window._lent_to.get(ring)
        room = RESERVE_BYTES - sender.window._lent_bytes
        put[ring] = put.get(ring, 0) + 1
        sender.put(ring, size_bytes)
        sender.send()
        if size_bytes <= SMALL_BYTES_MAX and idle and room >= SHARE_BYTES:
            assert sender.left[ring][-1] == put[ring]
        assert sender.on_the_way <= WINDOW_BYTES + MESSAGE_BYTES + RESERVE_BYTES + 10_000
    while sender.messages:
        sender.credit(1)
        sender.send()
    assert not sender.outbox
    for ring, numbers in sender.left.items():
        assert numbers == sorted(numbers), ring
        assert ring in "abc" or numbers == [*range(1, put[ring] + 1)]
