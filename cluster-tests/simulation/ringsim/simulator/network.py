"""Links between machines: in order, until they break.

The core relies on this, and the real links have to keep it: frames of one link come in the order
in which they were sent; a link that breaks may lose the last of them; each end is told of a new
link before it is given a frame of it, and from then on gets none of the old link. Each side
notices a break late, and by itself.
"""

from __future__ import annotations

import random
from collections import deque

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


class Link:
    """Between two machines. `session` counts its connections."""

    def __init__(self, one: str, two: str) -> None:
        self.ends = (one, two)
        self.session = 0
        self.is_open = False
        # Whether each end has been told that the link is up, and when it is told so.
        self.up = {one: False, two: False}
        self.up_at = {one: 0.0, two: 0.0}
        # By receiving end.
        self.last_arrival = {one: 0.0, two: 0.0}
        # Until when frames of the broken session may still come in.
        self.cut = {one: 0.0, two: 0.0}
        self.held: dict[str, deque[tuple[int, MemberId, Frame]]] = {one: deque(), two: deque()}
        # Ops that the end doesn't take, and the frames behind them.
        self.untaken: dict[str, deque[tuple[int, MemberId, Frame]]] = {one: deque(), two: deque()}
        self.blocked = {one: 0, two: 0}
        self.extra_delay_s = 0.0

    def other(self, end: str) -> str:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


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
        names = tuple(machines)
        for index, one in enumerate(names):
            for two in names[index + 1 :]:
                self._links[one, two] = self._links[two, one] = Link(one, two)

    def links_of(self, name: str) -> list[Link]:
        return [link for (one, _), link in self._links.items() if one == name]

    # --- frames ---

    def send(self, source: str, sender: MemberId, target: str, frame: Frame) -> None:
        link = self._links[source, target]
        if not link.is_open or not link.up[source]:
            return
        delay = self._frame_s * self._rng.random() + link.extra_delay_s
        when = max(self._clock.now + delay, link.last_arrival[target], link.up_at[target])
        link.last_arrival[target] = when
        self._clock.at(when, self._arrive, link, link.session, target, sender, frame)

    def _arrive(
        self, link: Link, session: int, target: str, sender: MemberId, frame: Frame
    ) -> None:
        if session != link.session and (
            session != link.session - 1 or self._clock.now > link.cut[target]
        ):
            return
        if link.blocked[target] or link.held[target]:
            link.held[target].append((session, sender, frame))
            return
        untaken = link.untaken[target]
        # Ping, Pong, ViewTold and Resume overtake bodies on a real link as well.
        if (untaken or self._takes_nothing.get(target)) and (
            isinstance(frame, OpFrame)
            or (untaken and isinstance(frame, MarksFrame | Hello | Submit))
        ):
            untaken.append((session, sender, frame))
            return
        self._give(target, Received(Envelope(sender, frame)))

    def can_reach(self, source: str, target: str) -> bool:
        """Whether a call from one machine to another would be answered."""
        link = self._links[source, target]
        return link.is_open and not any(link.blocked.values())

    def is_blocked(self, one: str, two: str) -> bool:
        """Whether nothing that one of them sends comes to the other, in some direction."""
        return any(self._links[one, two].blocked.values())

    def cuts(self) -> list[str]:
        """The pairs that can't see each other."""
        return [
            f"{one}-{two}" for one, two in self._links if one < two and self.is_blocked(one, two)
        ]

    def condition(self) -> object:
        """Differs from an earlier one if a fault has begun or ended, or a link has broken."""
        links = tuple((link.session, *link.blocked.values()) for link in self._links.values())
        return links, tuple(sorted(self._takes_nothing.items()))

    # --- breaking and opening ---

    def started(self, name: str) -> None:
        """The process on this machine has begun."""
        for link in self.links_of(name):
            self._clock.after(RING_TIMEOUT_S, self._tell_down, link, link.session, name)
            self._clock.after(REDIAL_S * self._rng.random(), self._open, link, link.session)

    def stopped(self, name: str) -> None:
        for link in self.links_of(name):
            self.break_link(link)

    def break_between(self, one: str, two: str) -> None:
        self.break_link(self._links[one, two])

    def break_link(self, link: Link) -> None:
        if not link.is_open:
            return
        link.is_open = False
        link.session += 1
        for end in link.ends:
            link.up[end] = False
            link.held[end].clear()
            link.untaken[end].clear()
            # Frames that are on their way may still come in for a moment.
            link.cut[end] = self._clock.now + self._rng.choice((0.0, 0.002)) * self._rng.random()
            noticed = link.cut[end] + self._rng.choice((0.001, RING_TIMEOUT_S)) * self._rng.random()
            self._clock.at(noticed, self._tell_down, link, link.session, end)
        self._clock.after(REDIAL_S * self._rng.random(), self._open, link, link.session)

    def _tell_down(self, link: Link, session: int, end: str) -> None:
        if session == link.session and not link.is_open:
            self._give(end, LinkDown(link.other(end)))

    def _open(self, link: Link, session: int) -> None:
        if session != link.session or link.is_open:
            return
        if any(link.blocked.values()) or not self._both_run(link):
            self._clock.after(REDIAL_S * (1 + self._rng.random()), self._open, link, session)
            return
        link.is_open = True
        for end in link.ends:
            link.up_at[end] = (
                max(self._clock.now, link.cut[end]) + self._frame_s * self._rng.random()
            )
            self._clock.at(link.up_at[end], self._tell_up, link, session, end)

    def _tell_up(self, link: Link, session: int, end: str) -> None:
        if session == link.session and link.is_open:
            link.up[end] = True
            self._give(end, LinkUp(link.other(end)))

    def give_up_silent(self, link: Link) -> None:
        """After the ring time-out, a link breaks if an end is still not to be heard."""
        if not self._both_run(link) or any(link.blocked.values()):
            self.break_link(link)

    def _both_run(self, link: Link) -> bool:
        return all(self._machines[end].is_running for end in link.ends)

    # --- faults ---

    def block(self, source: str, target: str) -> None:
        link = self._links[source, target]
        link.blocked[target] += 1
        self._clock.after(RING_TIMEOUT_S, self.give_up_silent, link)

    def unblock(self, source: str, target: str) -> None:
        link = self._links[source, target]
        link.blocked[target] = max(0, link.blocked[target] - 1)
        if link.blocked[target]:
            return
        held, link.held[target] = link.held[target], deque()
        for session, sender, frame in held:
            if session == link.session:
                self._clock.at(self._clock.now, self._arrive, link, session, target, sender, frame)
        link.last_arrival[target] = max(link.last_arrival[target], self._clock.now)

    def takes_nothing(self, name: str) -> bool:
        return bool(self._takes_nothing.get(name))

    def take_nothing(self, name: str) -> None:
        self._takes_nothing[name] = self._takes_nothing.get(name, 0) + 1

    def take_again(self, name: str) -> None:
        self._takes_nothing[name] = max(0, self._takes_nothing.get(name, 0) - 1)
        if self._takes_nothing[name]:
            return
        for link in self.links_of(name):
            untaken, link.untaken[name] = link.untaken[name], deque()
            for session, sender, frame in untaken:
                if session == link.session:
                    self._clock.at(
                        self._clock.now, self._arrive, link, session, name, sender, frame
                    )
            link.last_arrival[name] = max(link.last_arrival[name], self._clock.now)

    def has_waiting_ops(self, name: str) -> bool:
        return any(link.untaken[name] for link in self.links_of(name))

    def slow(self, one: str, two: str, delay_s: float) -> None:
        self._links[one, two].extra_delay_s = delay_s

    def heal(self) -> None:
        for name in self._machines:
            while self.takes_nothing(name):
                self.take_again(name)
        for (source, target), link in self._links.items():
            link.extra_delay_s = 0.0
            while link.blocked[target]:
                self.unblock(source, target)
