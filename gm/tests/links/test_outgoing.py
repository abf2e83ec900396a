"""When a node counts as too slow for the frames that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from loops import run

from ringmq_gm import GroupOptions, MemberId
from ringmq_gm.core.frames import OpFrame
from ringmq_gm.links import wire
from ringmq_gm.links.link import LinkOwner
from ringmq_gm.links.outgoing import LARGE_BYTES_MORE, _OutgoingSession

SLOW_S = 10.0
WINDOW_BYTES = 100_000
OPTIONS = GroupOptions(slow_timeout_s=SLOW_S, window_bytes=WINDOW_BYTES, message_bytes=10_000)


class Stream:
    """The other end: takes every message, and gives credit when the test says so."""

    has_ended = False

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.sizes: list[int] = []
        # What its kernel says that it takes.
        self.sure_bytes = 0
        self.given_up_after_s = 0.0
        # Of each message, whether the stream was corked.
        self.corked: list[bool] = []
        self.is_corked = False
        self.session = _OutgoingSession("b", cast(LinkOwner, Nobody()), OPTIONS)
        self.session.begin(cast(Any, self), cast(Any, self))
        self.session.received([wire.answer_message(MemberId("b", 1))])

    def credit(self, total_bytes: int) -> None:
        self.session.received([wire.credit_message(total_bytes)])

    def send_now(self, messages: Sequence[bytes]) -> None:
        self.sizes += map(len, messages)
        self.sent_bytes += sum(map(len, messages))
        self.corked += [self.is_corked] * len(messages)

    def taken_at_once(self) -> int:
        return self.sure_bytes

    def cork(self, on: bool) -> None:
        self.is_corked = on

    def give_up_after(self, unacknowledged_s: float) -> None:
        self.given_up_after_s = unacknowledged_s

    def half_close(self) -> None:
        pass

    async def close(self, grace_s: float) -> None:
        pass


class Nobody:
    def heard(self, node: str) -> None:
        pass

    def noticed(self, node: str, notice: int) -> None:
        pass


@pytest.mark.parametrize(("windows_per_timeout", "slow"), [(0.0, True), (0.4, True), (2.0, False)])
def test_a_node_that_takes_less_than_a_window_in_the_time_is_slow(
    monkeypatch: pytest.MonkeyPatch, windows_per_timeout: float, slow: bool
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        real, ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
        stream = Stream()
        session = stream.session
        running = asyncio.create_task(session.run())
        number = 0
        found: list[bool] = []
        for step in range(40):
            # More always waits than the window lets go.
            while session.outbox.waiting_bytes("r") < 3 * WINDOW_BYTES:
                number += 1
                session.put(OpFrame("r", 1, 0, 0, 1, number, False, (), bytes(5_000)))
            await asyncio.sleep(0.001)
            found.append(session.stalled(loop.time()))
            ahead_s += SLOW_S / 10
            stream.credit(int(step * WINDOW_BYTES * windows_per_timeout / 10))
            await asyncio.sleep(0.001)
        assert any(found) == slow
        # Said again after as long, not at once.
        assert sum(found) <= 4
        assert stream.sent_bytes >= WINDOW_BYTES
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())


def test_a_node_that_takes_all_frames_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little that is."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real, ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
        stream = Stream()
        session = stream.session
        running = asyncio.create_task(session.run())
        for number in range(1, 40):
            session.put(OpFrame("r", 1, 0, 0, 1, number, False, (), bytes(100)))
            # Seen before the link has had its turn.
            assert not session.stalled(loop.time())
            await asyncio.sleep(0.001)
            stream.credit(stream.sent_bytes)
            ahead_s += SLOW_S / 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())


def test_a_connection_that_brings_nothing_has_the_ring_time_out() -> None:
    """What it is for: `cluster-tests/processes/test_flapping_link.py`."""

    async def main() -> None:
        assert Stream().given_up_after_s == OPTIONS.ring_timeout_s / 2

    run(main())


def test_messages_of_one_turn_share_their_segments() -> None:
    """Otherwise a node is woken for each of them, and syncs each alone. A message that nothing
    waits behind has no call of the kernel more than before."""

    async def main() -> None:
        stream = Stream()
        running = asyncio.create_task(stream.session.run())
        for number in range(1, 4):
            stream.session.put(OpFrame("r", 1, 0, 0, 1, number, False, (), bytes(9_000)))
        await asyncio.sleep(0.001)
        assert stream.corked == [True, True, True]
        assert not stream.is_corked
        stream.session.put(OpFrame("r", 1, 0, 0, 1, 4, False, (), bytes(9_000)))
        await asyncio.sleep(0.001)
        assert stream.corked[3:] == [False]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())


@pytest.mark.parametrize(
    ("sure_bytes", "larger_by"), [(0, 0), (5_000, 5_000), (1 << 20, LARGE_BYTES_MORE)]
)
def test_a_message_of_large_bodies_is_larger_by_what_the_kernel_takes_at_once(
    sure_bytes: int, larger_by: int
) -> None:
    async def main() -> None:
        stream = Stream()
        stream.sure_bytes = sure_bytes
        running = asyncio.create_task(stream.session.run())
        stream.session.put(OpFrame("large", 1, 0, 0, 1, 1, False, (), bytes(90_000)))
        await asyncio.sleep(0.001)
        framing_bytes = stream.sizes[0] - OPTIONS.message_bytes - larger_by
        assert 0 < framing_bytes < 300
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())


def test_a_message_that_has_left_wakes_no_turn_of_the_link() -> None:
    """The transport says so of each one; only a link that was paused has something to do."""

    async def main() -> None:
        stream = Stream()
        session = stream.session
        session.resume_sending()
        assert not session._pump_is_due
        session.pause_sending()
        session.resume_sending()
        assert session._pump_is_due

    run(main())
