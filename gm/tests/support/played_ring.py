"""Members of a ring and the links between them, played frame by frame, without any I/O.

ring = ring_of_three()
ring.multicast("a", b"one")
ring.run()
assert ring.delivered("c") == [b"one"]
"""

from __future__ import annotations

import itertools
from collections import deque

from ringmq_gm.core.events import (
    Deliver,
    Effect,
    Event,
    LinkUp,
    Multicast,
    Persisted,
    Propose,
    Received,
    Send,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.core.frames import (
    Envelope,
    Frame,
    Pong,
)
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.core.views import Member, MemberId, View

A, B, C = (MemberId(node, 1) for node in "abc")
A2, B2, C2 = (MemberId(node, 2) for node in "abc")
LATER = 1000.0


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


def view(
    epoch: int,
    *members: MemberId | Member,
    min_insync: int = 2,
    eligible: tuple[MemberId, ...] = (),
) -> View:
    return View(
        epoch,
        tuple(m if isinstance(m, Member) else Member(m, synced=True) for m in members),
        min_insync,
        eligible,
    )


def joining(member_id: MemberId) -> Member:
    return Member(member_id, synced=False)


def member_of(me: MemberId, log: LogEnd | None = None, *, log_is_whole: bool = True) -> RingMember:
    return QuickMember(me, "q", log or LogEnd(), log_is_whole=log_is_whole, chance=Even())


def answer(
    member: RingMember,
    sender: MemberId,
    log: LogEnd,
    *,
    is_whole: bool = True,
    epoch: int = 1,
    nonce: int = 1,
) -> list[Effect]:
    """`sender` says how far its log goes: the effects at `member`."""
    pong = Pong("q", epoch, nonce, log.epoch, log.number, log_is_whole=is_whole)
    return member.step(Received(Envelope(sender, pong)), now=0)


class PlayedRing:
    """Members with links between them; frames wait until `run` or `deliver`."""

    def __init__(self, *ids: MemberId) -> None:
        self.members = {member_id.node: member_of(member_id) for member_id in ids}
        self.links: dict[tuple[str, str], deque[Frame]] = {}
        self.done: dict[str, list[Effect]] = {name: [] for name in self.members}
        for one, two in itertools.permutations(ids, 2):
            self.links[one.node, two.node] = deque()
            self.step(one.node, LinkUp(two))

    def step(self, name: str, event: Event, *, now: float = 0.0) -> list[Effect]:
        member = self.members[name]
        effects = member.step(event, now=now)
        member.check()
        self.done[name] += effects
        for effect in effects:
            if isinstance(effect, Send) and effect.node in self.members:
                self.links[name, effect.node].append(effect.frame)
        return effects

    def learn(self, value: View, *names: str) -> None:
        for name in names or tuple(self.members):
            self.step(name, ViewLearned(value))

    def deliver(self, source: str, target: str) -> list[Effect]:
        """The oldest frame from one to the other."""
        frame = self.links[source, target].popleft()
        sender = self.members[source].me
        return self.step(target, Received(Envelope(sender, frame)))

    def run(self) -> None:
        """Delivers until nothing is on its way."""
        while waiting := [pair for pair, frames in self.links.items() if frames]:
            self.deliver(*waiting[0])

    def multicast(self, name: str, *payloads: bytes, urgent: bool = False) -> None:
        for payload in payloads:
            self.step(name, Multicast(payload, urgent))

    def persist(self, number: int, *names: str) -> None:
        for name in names:
            self.step(name, Persisted(number))

    def crash(self, name: str) -> None:
        del self.members[name]
        for pair in self.links:
            if name in pair:
                self.links[pair].clear()

    def delivered(self, name: str) -> list[bytes]:
        return [effect.payload for effect in self.done[name] if isinstance(effect, Deliver)]

    def confirmed(self, name: str) -> int:
        marks = [effect for effect in self.done[name] if isinstance(effect, Watermarks)]
        return marks[-1].persisted if marks else 0

    def proposals(self, name: str) -> list[View]:
        return [effect.view for effect in self.done[name] if isinstance(effect, Propose)]


def ring_of_three() -> PlayedRing:
    """Quiet, after the handshakes of view 1."""
    ring = PlayedRing(A, B, C)
    ring.learn(view(1, A, B, C))
    ring.run()
    return ring
