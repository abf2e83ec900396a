"""The shared window against masters and a network that delay everything."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from ringmq_base.window import BYTES_MAX, NOTHING, ChangeShare, Share, SharedWindow


@dataclass
class Master:
    """A queue with its consumer's stream: what it is told and tells takes its time."""

    queue: deque[int]
    prefetch: int
    share: Share = NOTHING
    unsettled: deque[int] = field(default_factory=deque)
    told: tuple[bool, int] = (False, 0)
    # Messages on the stream, in order, in each direction.
    down: deque[tuple[str, object]] = field(default_factory=deque)
    up: deque[tuple[str, object]] = field(default_factory=deque)
    # What has arrived at the program.
    held: deque[int] = field(default_factory=deque)
    is_open: bool = False

    def dispatch(self) -> None:
        while self.queue and len(self.unsettled) < self.prefetch:
            size = self.queue[0]
            room = self.share.size_bytes - sum(self.unsettled)
            if len(self.unsettled) >= self.share.messages or size > room:
                self._tell(True, size)
                return
            self.unsettled.append(self.queue.popleft())
            self.up.append(("delivered", size))
        if not self.queue or len(self.unsettled) >= self.prefetch:
            self._tell(False, 0)

    def _tell(self, is_short: bool, size: int) -> None:
        if self.told[0] != is_short or size > self.told[1]:
            self.told = is_short, size
            self.up.append(("short", (is_short, size)))

    def heard(self) -> None:
        kind, what = self.down.popleft()
        if kind == "share":
            assert isinstance(what, Share)
            self.share = what
            self.dispatch()
            self.up.append(("answered", None))
        else:
            assert isinstance(what, int)
            self.unsettled.remove(what)
            self.dispatch()


class Scene:
    """A program with a window over some masters. Messages are numbers of bytes."""

    def __init__(self, limit: Share, queues: list[list[int]], prefetch: int = 10**6) -> None:
        self.window = SharedWindow(limit.messages, limit.size_bytes)
        self.masters = [Master(deque(queue), prefetch) for queue in queues]
        for number in range(len(queues)):
            self.open(number)

    def carry_out(self, changes: list[ChangeShare]) -> None:
        for change in changes:
            self.masters[change.stream].down.append(("share", change.share))
        self.window.check()
        held = [size for master in self.masters for size in master.held]
        limit, now = self.window.limit, Share(len(held), sum(held))
        assert self.window.held == now
        alone = len(held) <= 1 and now.messages <= limit.messages
        assert now.fits(limit) or alone or self.window.is_above, (held, limit)

    def open(self, number: int) -> None:
        master = self.masters[number]
        assert not master.is_open
        master.is_open, master.share, master.told = True, NOTHING, (False, 0)
        self.carry_out(self.window.opened(number))
        master.dispatch()

    def end(self, number: int) -> None:
        """The stream breaks, with all that is on its way."""
        master = self.masters[number]
        master.is_open = False
        master.down.clear()
        master.up.clear()
        master.queue.extendleft(reversed(master.unsettled))
        master.unsettled.clear()
        master.held.clear()
        self.carry_out(self.window.ended(number))

    def change(self, messages: int, size_bytes: int) -> None:
        self.carry_out(self.window.change(messages, size_bytes))

    def hear(self, number: int) -> None:
        kind, what = self.masters[number].up.popleft()
        if kind == "delivered":
            assert isinstance(what, int)
            self.masters[number].held.append(what)
            self.carry_out(self.window.delivered(number, 1, what))
        elif kind == "short":
            assert isinstance(what, tuple)
            self.carry_out(self.window.short(number, is_short=what[0], needs_bytes=what[1]))
        else:
            self.carry_out(self.window.answered(number))

    def settle(self, number: int) -> None:
        size = self.masters[number].held.popleft()
        self.masters[number].down.append(("settle", size))
        self.carry_out(self.window.settled(number, 1, size))

    def rest(self) -> None:
        """All that is on its way arrives; the program settles nothing."""
        while any(master.down or master.up for master in self.masters):
            for number, master in enumerate(self.masters):
                if master.down:
                    master.heard()
                if master.up:
                    self.hear(number)

    def held(self) -> list[int]:
        return [len(master.held) for master in self.masters]


def small(count: int) -> list[int]:
    return [1] * count


def test_one_queue_gets_all_and_busy_ones_equal_parts() -> None:
    scene = Scene(Share(10), [small(100), [], []])
    scene.rest()
    assert scene.held() == [10, 0, 0]
    scene.masters[1].queue.extend(small(100))
    scene.masters[1].dispatch()
    scene.rest()
    assert scene.held() == [10, 0, 0], "full"
    for _ in range(5):
        scene.settle(0)
        scene.rest()
    assert scene.held() == [5, 5, 0]


def test_a_window_of_one_goes_around() -> None:
    scene = Scene(Share(1), [small(50), small(50), small(50)])
    got: list[int] = []
    for _ in range(60):
        scene.rest()
        (number,) = (n for n, held in enumerate(scene.held()) if held)
        got.append(number)
        scene.settle(number)
    assert all(sorted(got[at : at + 3]) == [0, 1, 2] for at in range(0, 60, 3)), got


def test_what_an_empty_queue_leaves_goes_to_another() -> None:
    scene = Scene(Share(8), [small(4), small(100)])
    scene.rest()
    assert scene.held() == [4, 4]
    for _ in range(4):
        scene.settle(0)
    scene.rest()
    assert scene.held() == [0, 8]


def test_a_program_that_holds_on_to_one_queues_messages_goes_on_with_the_others() -> None:
    scene = Scene(Share(10), [small(8), [], []])
    scene.rest()
    for master in scene.masters[1:]:
        master.queue.extend(small(100))
        master.dispatch()
    scene.rest()
    got = [0, 0]
    for _ in range(50):
        for number in (1, 2):
            if scene.masters[number].held:
                scene.settle(number)
                got[number - 1] += 1
                scene.rest()
    assert min(got) > 20, got


def test_raised_deliveries_resume_and_lowered_nothing_comes_until_below() -> None:
    scene = Scene(Share(4), [small(100), small(100)])
    scene.rest()
    assert sum(scene.held()) == 4
    scene.change(10, 0)
    scene.rest()
    assert sum(scene.held()) == 10
    scene.change(3, 0)
    for left in (9, 8, 7, 6, 5, 4, 3, 3, 3):
        scene.settle(max((0, 1), key=lambda number: len(scene.masters[number].held)))
        scene.rest()
        assert sum(scene.held()) == left
    scene.change(0, 0)
    scene.rest()
    assert sum(scene.held()) == 200 - 9, "no limit"


def test_bytes_and_a_message_that_is_larger_than_the_window() -> None:
    scene = Scene(Share(100, 10), [[4, 4, 30, 4], small(20)])
    for _ in range(300):
        scene.rest()
        for number, master in enumerate(scene.masters):
            if master.held:
                scene.settle(number)
                break
    scene.rest()
    assert not any(master.queue or master.unsettled for master in scene.masters)


def test_what_a_dead_stream_had_goes_to_the_others() -> None:
    scene = Scene(Share(6), [small(100), small(100)])
    scene.rest()
    scene.end(0)
    scene.rest()
    assert scene.held() == [0, 6]
    scene.open(0)
    for _ in range(12):
        scene.settle(max((0, 1), key=lambda number: len(scene.masters[number].held)))
        scene.rest()
    assert sum(scene.held()) == 6
    assert min(scene.held()) >= 2


@pytest.mark.parametrize("seed", range(40))
def test_never_more_than_the_window_and_all_is_delivered(seed: int) -> None:
    draw = random.Random(seed)
    queues = [
        [draw.choice((0, 1, 1, 2, 5, 9, 40)) for _ in range(draw.randrange(30))]
        for _ in range(draw.randrange(1, 5))
    ]
    limit = Share(draw.choice((0, 1, 2, 3, 10)), draw.choice((0, 0, 3, 10, 40)))
    scene = Scene(limit, queues, prefetch=draw.choice((1, 2, 1000)))
    for _ in range(1500):
        number = draw.randrange(len(queues))
        master = scene.masters[number]
        match draw.randrange(12):
            case 0 if draw.random() < 0.2:
                scene.end(number) if master.is_open else scene.open(number)
            case 1 if draw.random() < 0.1:
                scene.change(draw.choice((0, 1, 2, 5, 20)), draw.choice((0, 0, 2, 10, 50)))
            case 2 if len(master.queue) < 50:
                master.queue.append(draw.choice((0, 1, 3, 12)))
                if master.is_open:
                    master.dispatch()
            case 3 if master.queue:
                # Another consumer, of another program.
                master.queue.popleft()
                if master.is_open:
                    master.dispatch()
            case 4 | 5 | 6 if master.held:
                scene.settle(number)
            case 7 | 8 | 9 if master.up:
                scene.hear(number)
            case _ if master.down:
                master.heard()
    for number, master in enumerate(scene.masters):
        if not master.is_open:
            scene.open(number)
    for _ in range(1000):
        scene.rest()
        for number, master in enumerate(scene.masters):
            if master.held:
                scene.settle(number)
                scene.rest()
        if not any(master.queue or master.unsettled for master in scene.masters):
            break
    assert not any(master.queue or master.unsettled for master in scene.masters), "somebody starves"
    scene.rest()
    assert scene.window.held == NOTHING
    assert scene.window.limit.size_bytes <= BYTES_MAX
