"""Links between machines: a stream each way, in order, until it breaks.

Each node dials its own stream to the other, and is told when that is up or can't be had; of the one
that comes to it, it is told nothing (`ringmq_gm.links`). So the two are apart: one may break, or
stand still for a while before it does, while the other goes on; and when both have broken, frames
may come from a node before it can be answered.

The core relies on this, and the real links have to keep it: frames of one stream come in the order
in which they were sent; one that breaks may lose the last of them; its source is told of a new one
before it sends on it, and from then on none comes of the old one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from itertools import combinations

from ringmq_gm.core.events import LinkDown, LinkUp, Received
from ringmq_gm.core.frames import Envelope, Frame, Hello, MarksFrame, OpFrame, Submit
from ringmq_gm.core.views import MemberId
from ringsim.simulator.clock import Clock
from ringsim.simulator.machines import Give, Machines

# A silent peer is given up after this.
RING_TIMEOUT_S = 0.4
REDIAL_S = 0.1
# A node for which ops wait is found too slow after this.
SLOW_TIMEOUT_S = 2.0

# Of the session with this number.
Waiting = tuple[int, MemberId, Frame]


class Stream:
    """Brings the frames of one machine to another. `session` counts its connections."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.session = 0
        self.is_open = False
        # Whether the source has been told so.
        self.is_up = False
        self.last_arrival = 0.0
        # Until when frames of the broken session may still come in.
        self.cut = 0.0
        # Nothing comes through: for so many faults, or because this connection stands still.
        self.blocked = 0
        self.is_stuck = False
        self.held: deque[Waiting] = deque()
        # Ops that the target doesn't take, and the frames behind them.
        self.untaken: deque[Waiting] = deque()


class Link:
    """Between two machines."""

    def __init__(self, one: str, two: str) -> None:
        self.ends = (one, two)
        self.streams = (Stream(one, two), Stream(two, one))
        self.extra_delay_s = 0.0

    @property
    def is_blocked(self) -> bool:
        """A connection needs both directions."""
        return any(stream.blocked for stream in self.streams)


class Network:
    """All links. `frame_s` is how long a frame takes at most when nothing is wrong."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        machines: Machines,
        give: Give,
        *,
        frame_s: float,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._machines = machines
        self._give = give
        self._frame_s = frame_s
        # How many faults keep each node from taking ops.
        self._takes_nothing: dict[str, int] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._streams: dict[tuple[str, str], Stream] = {}
        for one, two in combinations(machines, 2):
            link = self._links[one, two] = self._links[two, one] = Link(one, two)
            self._streams.update({(each.source, each.target): each for each in link.streams})

    def links_of(self, name: str) -> list[Link]:
        return [link for (one, _), link in self._links.items() if one == name]

    def _streams_to(self, name: str) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.target == name]

    # --- frames ---

    def send(self, source: str, sender: MemberId, target: str, frame: Frame) -> None:
        stream = self._streams[source, target]
        if not stream.is_up:
            return
        extra_s = self._links[source, target].extra_delay_s
        delay = self._frame_s * self._rng.random() + extra_s
        when = max(self._clock.now + delay, stream.last_arrival)
        stream.last_arrival = when
        self._clock.at(when, self._arrive, stream, stream.session, sender, frame)

    def _arrive(self, stream: Stream, session: int, sender: MemberId, frame: Frame) -> None:
        if session != stream.session and (
            session != stream.session - 1 or self._clock.now > stream.cut
        ):
            return
        if stream.blocked or stream.is_stuck or stream.held:
            stream.held.append((session, sender, frame))
            return
        # Ping, Pong, ViewTold and Resume overtake bodies on a real link as well.
        if (stream.untaken or self._takes_nothing.get(stream.target)) and (
            isinstance(frame, OpFrame)
            or (stream.untaken and isinstance(frame, MarksFrame | Hello | Submit))
        ):
            stream.untaken.append((session, sender, frame))
            return
        self._give(stream.target, Received(Envelope(sender, frame)))

    def can_reach(self, source: str, target: str) -> bool:
        """Whether a call from one machine to another would be answered."""
        return self._streams[source, target].is_open and not self.is_blocked(source, target)

    def is_blocked(self, one: str, two: str) -> bool:
        """Whether nothing that one of them sends comes to the other, in some direction."""
        return self._links[one, two].is_blocked

    @property
    def extra_delay_s(self) -> float:
        """How much longer than usual a frame takes at most."""
        return max((link.extra_delay_s for link in self._links.values()), default=0.0)

    def cuts(self) -> list[str]:
        """The pairs that can't see each other."""
        return [
            f"{one}-{two}" for one, two in self._links if one < two and self.is_blocked(one, two)
        ]

    def condition(self) -> object:
        """Differs from an earlier one if a fault has begun or ended, or a stream has broken."""
        streams = tuple(
            (stream.session, stream.blocked, stream.is_stuck) for stream in self._streams.values()
        )
        return streams, tuple(sorted(self._takes_nothing.items()))

    # --- breaking and opening ---

    def started(self, name: str) -> None:
        """The process on this machine has begun."""
        for link in self.links_of(name):
            for stream in link.streams:
                if stream.source == name:
                    self._clock.after(RING_TIMEOUT_S, self._tell_down, stream, stream.session)
                # The registry has its address: the others dial it at once.
                pause_s = REDIAL_S * self._rng.random()
                self._clock.after(pause_s, self._open, stream, stream.session)

    def stopped(self, name: str) -> None:
        for link in self.links_of(name):
            self.break_link(link)

    def break_between(self, one: str, two: str) -> None:
        self.break_link(self._links[one, two])

    def break_link(self, link: Link) -> None:
        for stream in link.streams:
            self._break(stream, stream.session)

    def break_stream(self, source: str, target: str, stuck_s: float) -> None:
        """The one that brings frames from `source`. It first stands still for so long."""
        stream = self._streams[source, target]
        if stream.is_open:
            stream.is_stuck = True
            self._clock.after(stuck_s, self._break, stream, stream.session)

    def _break(self, stream: Stream, session: int) -> None:
        if not stream.is_open or session != stream.session:
            return
        stream.is_open = stream.is_up = stream.is_stuck = False
        stream.session += 1
        stream.held.clear()
        stream.untaken.clear()
        # Frames that are on their way may still come in for a moment.
        stream.cut = self._clock.now + self._rng.choice((0.0, 0.002)) * self._rng.random()
        noticed = stream.cut + self._rng.choice((0.001, RING_TIMEOUT_S)) * self._rng.random()
        self._clock.at(noticed, self._tell_down, stream, stream.session)
        self._clock.after(REDIAL_S * self._rng.random(), self._open, stream, stream.session)

    def _tell_down(self, stream: Stream, session: int) -> None:
        if session == stream.session and not stream.is_open:
            self._give(stream.source, LinkDown(stream.target))

    def _open(self, stream: Stream, session: int) -> None:
        if session != stream.session or stream.is_open:
            return
        link = self._links[stream.source, stream.target]
        if link.is_blocked or not self._both_run(link):
            self._clock.after(REDIAL_S * (1 + self._rng.random()), self._open, stream, session)
            return
        stream.is_open = True
        up_at = max(self._clock.now, stream.cut) + self._frame_s * self._rng.random()
        self._clock.at(up_at, self._tell_up, stream, session)

    def _tell_up(self, stream: Stream, session: int) -> None:
        if session == stream.session and stream.is_open:
            stream.is_up = True
            # The life to which it was opened: had that died since, the stream would be broken.
            self._give(stream.source, LinkUp(self._machines[stream.target].me))

    def give_up_silent(self, link: Link) -> None:
        """After the ring time-out, a link breaks if an end is still not to be heard."""
        if not self._both_run(link) or link.is_blocked:
            self.break_link(link)

    def _both_run(self, link: Link) -> bool:
        return all(self._machines[end].is_running for end in link.ends)

    # --- faults ---

    def block(self, source: str, target: str) -> None:
        self._streams[source, target].blocked += 1
        self._clock.after(RING_TIMEOUT_S, self.give_up_silent, self._links[source, target])

    def unblock(self, source: str, target: str) -> None:
        stream = self._streams[source, target]
        stream.blocked = max(0, stream.blocked - 1)
        if not stream.blocked and not stream.is_stuck:
            held, stream.held = stream.held, deque()
            self._bring(stream, held)

    def _bring(self, stream: Stream, waiting: Iterable[Waiting]) -> None:
        for session, sender, frame in waiting:
            if session == stream.session:
                self._clock.at(self._clock.now, self._arrive, stream, session, sender, frame)
        stream.last_arrival = max(stream.last_arrival, self._clock.now)

    def takes_nothing(self, name: str) -> bool:
        return bool(self._takes_nothing.get(name))

    def take_nothing(self, name: str) -> None:
        self._takes_nothing[name] = self._takes_nothing.get(name, 0) + 1

    def take_again(self, name: str) -> None:
        self._takes_nothing[name] = max(0, self._takes_nothing.get(name, 0) - 1)
        if self._takes_nothing[name]:
            return
        for stream in self._streams_to(name):
            untaken, stream.untaken = stream.untaken, deque()
            self._bring(stream, untaken)

    def has_waiting_ops(self, name: str) -> bool:
        return any(stream.untaken for stream in self._streams_to(name))

    def slow(self, one: str, two: str, delay_s: float) -> None:
        self._links[one, two].extra_delay_s = delay_s

    def heal(self) -> None:
        for name in self._machines:
            while self.takes_nothing(name):
                self.take_again(name)
        for link in self._links.values():
            link.extra_delay_s = 0.0
        for stream in self._streams.values():
            while stream.blocked:
                self.unblock(stream.source, stream.target)
