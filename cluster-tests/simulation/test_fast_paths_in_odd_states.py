"""The short way of a step is taken only where the long one has the same outcome, in odd states too.

Simulated rings seldom come to a state in which just one condition of the short way doesn't hold. So
states and events are made odd here, one fact at a time, on copies of members that are about to
take a short step. The copy may go the long way; if it doesn't, the long way has to do and leave the
same. Some of these states no ring comes to: nothing but the condition itself says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from ringsim.explorer.snapshots import all_of, clone
from ringsim.simulator.runs import play, world_of

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.events import Effect, Event, Multicast, Persisted, Received
from ringmq_gm.core.frames import Envelope, Mark
from ringmq_gm.core.handover import Handover
from ringmq_gm.core.master import Master
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.mirror import Mirror, Told
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.core.stages import PROPOSING
from ringmq_gm.core.views import MemberId

SEEDS = range(30)
# Of the steps that are taken by the short way, one of so many is looked at.
ONE_OF = 5

# `Any`: they reach into parts of a member that are nobody's else.
State = Callable[[Any], None]


def another(member: Any) -> MemberId:
    """The neighbour that brings frames."""
    ids: tuple[MemberId, ...] = member.view.ids
    return ids[ids.index(member.me) - 1]


def reshaped(member: Any, **changes: Any) -> None:
    view = replace(member.view, **changes)
    member.view = member._phase.view = member._changer.lives.all_well_in = view


def behind(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    return tuple(replace(each, received=0, persisted=0) for each in marks)


def set_lives(member: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(member._changer.lives, name, value)


def set_phase(member: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(member._phase, name, value)


def set_ops(member: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(member.ops, name, value)


def one_more(ops: Any) -> None:
    ops.last += 1
    ops.cache.append(CachedOp(ops.last_epoch, ops.last, False, b"more"))


def tell(mirror: Any) -> None:
    if marks := mirror._known_marks():
        mirror._note_told(marks, mirror._news_in(marks))


STATES: dict[str, State] = {
    "as it is": lambda m: None,
    "nobody has looked whether neighbours live": lambda m: set_lives(m, all_well_in=None),
    "a neighbour is down": lambda m: set_lives(m, down={another(m).node}),
    "a neighbour's member has failed": lambda m: set_lives(
        m, gone={another(m).node: another(m).incarnation}
    ),
    "the neighbour was never seen": lambda m: m._changer.lives.incarnations.pop(another(m).node),
    "a proposal is under way": lambda m: setattr(m._changer, "_stage", PROPOSING),
    "nothing is on disk": lambda m: set_ops(m, on_disk=0),
    "all is on disk, and more": lambda m: set_ops(m, on_disk=m.ops.last + 9),
    "it is incomplete": lambda m: set_ops(m, complete=False),
    "ops are urgent": lambda m: set_ops(m, urgent=m.ops.last + 9),
    "an op more": lambda m: one_more(m.ops),
    "safe is higher": lambda m: set_ops(m, safe=m.ops.last),
    "more was confirmed": lambda m: set_ops(m, confirmed=(m.ops.last, m.ops.last)),
    "the marks of others aren't known": lambda m: set_phase(m, others=None),
    "the neighbour behind isn't ready": lambda m: set_phase(m, downstream_ready=False),
    "stable and safe were said": lambda m: set_phase(
        m, stable_sent=m.ops.stable, safe_sent=m.ops.safe
    ),
    "stable was not said": lambda m: set_phase(m, stable_sent=-1),
    "the view has no quorum": lambda m: reshaped(m, min_insync=9),
}
OF_MIRRORS: dict[str, State] = {
    "it is held": lambda m: set_phase(m, is_held=True),
    "it wasn't greeted": lambda m: set_phase(m, is_greeted=False),
    "marks are due": lambda m: set_phase(m, marks_due=True),
    "marks were due at a time": lambda m: set_phase(m, marks_at=0.0),
    "it was told that it doesn't count": lambda m: set_phase(
        m, told=Told(0, 1 << 40, 1 << 40), marks_sent=()
    ),
    "its marks are told": lambda m: tell(m._phase),
}
OF_MASTERS: dict[str, State] = {
    "the marks of others have fallen": lambda m: set_phase(m, others=behind(m._phase.others)),
    "it hears nobody": lambda m: set_phase(m, has_contact=False),
    "it has until now to hear somebody": lambda m: set_phase(m, contact_due=0.0),
    "it hands the ring over": lambda m: set_phase(m, handover=Handover(another(m), 1e9)),
    "a disk hangs": lambda m: setattr(m._phase.disks, "stalled", frozenset({another(m)})),
    "a joiner may count": lambda m: m._changer.unresolved.append(
        replace(m.view, epoch=m.view.epoch + 1, members=m.view.members[::-1])
    ),
    "its disks are looked at": lambda m: setattr(m._phase.disks, "due", 0.0),
    "it is to say stable": lambda m: set_phase(m, stable_due=0.0),
}


def odd(event: Event) -> list[Event]:
    """The event, and those that are like it but for one fact."""
    events = [event]
    if isinstance(event, Persisted):
        events += [Persisted(0), Persisted(event.number + 1)]
    if not isinstance(event, Received):
        return events
    frame: Any = event.envelope.frame
    sender = event.envelope.sender
    frames = [
        replace(frame, epoch=frame.epoch - 1),
        replace(frame, epoch=frame.epoch + 1),
        replace(frame, marks=()),
        replace(frame, marks=(*frame.marks, Mark(1, 1, complete=True))),
        replace(frame, stable=frame.stable + 1),
        replace(frame, safe=frame.safe + 1),
        replace(frame, safe=frame.safe + 50),
    ]
    if hasattr(frame, "number"):
        frames += [replace(frame, number=frame.number + by) for by in (-1, 1)]
        frames += [replace(frame, urgent=True), replace(frame, safe=frame.number)]
    events += [Received(Envelope(sender, each)) for each in frames]
    for incarnation in (sender.incarnation - 1, sender.incarnation + 1):
        events.append(Received(Envelope(MemberId(sender.node, incarnation), frame)))
    return events


class _Odd(QuickMember):
    """Compares the two ways on copies of itself."""

    steps: ClassVar[int] = 0
    short: ClassVar[Counter[str]] = Counter()
    compared: ClassVar[Counter[str]] = Counter()

    def _short_way(self, event: Event, now: float) -> list[Effect] | None:
        before = clone(self)
        effects = super()._short_way(event, now)
        if effects is not None:
            _Odd.steps += 1
            if _Odd.steps % ONE_OF == 0:
                self._compare_all(before, event, now)
        return effects

    def _compare_all(self, before: RingMember, event: Event, now: float) -> None:
        states = dict(STATES)
        if isinstance(self._phase, Mirror):
            states |= OF_MIRRORS
        elif isinstance(self._phase, Master) and self._phase.others:
            states |= OF_MASTERS
        for name, make in states.items():
            for each in odd(event) if name == "as it is" else [event]:
                self._compare(before, name, make, each, now)

    def _compare(
        self, before: RingMember, name: str, make: State, event: Event, now: float
    ) -> None:
        short, long = clone(before), clone(before)
        make(short)
        make(long)
        if isinstance(event, Multicast) and long.refusal() is not None:
            return  # Nobody gives it one.
        self.compared[name] += 1
        effects = QuickMember._short_way(short, event, now)  # type: ignore[arg-type]
        if effects is None:
            untouched = clone(before)
            make(untouched)
            assert all_of(short) == all_of(untouched), (name, event)
            return
        self.short[name] += 1
        assert RingMember.step(long, event, now=now) == effects, (name, event)
        assert all_of(short) == all_of(long), (name, event)


@pytest.mark.compute
@pytest.mark.slow
def test_the_short_way_is_the_long_one_in_odd_states() -> None:
    _Odd.steps = 0
    _Odd.short.clear()
    _Odd.compared.clear()
    for seed in SEEDS:
        play(world_of(seed, _Odd, is_queue=False))
    assert _Odd.compared.keys() == STATES.keys() | OF_MIRRORS.keys() | OF_MASTERS.keys()
    assert min(_Odd.compared.values()) > 50
    # It is no comparison of nothing: many a fact doesn't matter.
    assert sum(_Odd.short.values()) > 1000
