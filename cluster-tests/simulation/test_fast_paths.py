"""The quick ways through a step have the outcome of the long ones.

A member takes most steps by a short way (`QuickMember`), or by the long one. And the long one is
asked a few questions after every step whose answer is nearly always the same, and answers them by a
shortcut. Each is stated here as it would be without the shortcut. Whole rings are simulated both
ways, and their traces are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from ringsim.explorer.snapshots import all_of, clone
from ringsim.simulator.runs import play, world_of

from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.events import Effect, Event, Multicast, Persisted, Received, Role
from ringmq_gm.core.frames import Mark, MarksFrame, OpFrame
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.mirror import Mirror, Told
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.core.views import View

SEEDS = range(30)


def were_told(mirror: Any, marks: tuple[Mark, ...]) -> bool:
    """Then all of `_has_news` is asked."""
    return False


def news_in(mirror: Any, marks: tuple[Mark, ...]) -> Told:
    own = marks[-1]
    if mirror.role is Role.JOINER and not own.complete:
        return Told(0, own.received, own.received)
    return Told(1, min(m.persisted for m in marks), min(m.received for m in marks))


def has_untold_mark(mirror: Any) -> bool:
    return not mirror.marks_sent or mirror.marks_sent[-1] != mirror.ops.mark()


def has_dead_neighbour(changer: Any, view: View) -> bool:
    index = view.ids.index(changer._me)
    around = {view.ids[index - 1], view.ids[(index + 1) % len(view.ids)]} - {changer._me}
    return any(changer.lives.is_dead(member_id) for member_id in around)


def trim(ops: Any, stable: int) -> None:
    ops.cache.trim(min(stable, ops.last))


def learn_safe(ops: Any, safe: int) -> None:
    ops.safe = max(ops.safe, min(safe, ops.last))


LONG_WAYS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "news in marks that were sent": (Mirror, "_were_told", were_told),
    "the lowest of the marks": (Mirror, "_news_in", news_in),
    "a mark that was not told": (Mirror, "_has_untold_mark", has_untold_mark),
    "a dead neighbour": (ViewChanger, "has_dead_neighbour", has_dead_neighbour),
    "copies to drop": (HeldOps, "trim", trim),
    "ops that are safe": (HeldOps, "learn_safe", learn_safe),
}


def traces(member: type[RingMember] = RingMember, seeds: range = SEEDS) -> list[str]:
    # Plain rings: the questions are the core's, and a queue would be so much more to simulate.
    worlds = [world_of(seed, member, is_queue=False, tracing=True) for seed in seeds]
    for world in worlds:
        play(world)
    return [world.trace_hash() for world in worlds]


@pytest.fixture(scope="module")
def quick() -> list[str]:
    return traces()


@pytest.mark.compute
@pytest.mark.slow
@pytest.mark.parametrize("question", LONG_WAYS)
def test_a_shortcut_has_the_outcome_of_the_long_way(
    question: str, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, long_way = LONG_WAYS[question]
    assert hasattr(kind, name)
    monkeypatch.setattr(kind, name, long_way)
    assert traces() == quick


class _Compared(QuickMember):
    """Takes each step of the short way by the long one too, and compares what they do and leave."""

    taken: ClassVar[Counter[tuple[type, Role]]] = Counter()

    def _short_way(self, event: Event, now: float) -> list[Effect] | None:
        other = clone(self)
        effects = super()._short_way(event, now)
        if effects is None:
            assert all_of(self) == all_of(other), f"{event} has changed something"
        else:
            assert RingMember.step(other, event, now=now) == effects, event
            assert all_of(self) == all_of(other), event
            what = event.envelope.frame if isinstance(event, Received) else event
            self.taken[type(what), self.role] += 1
        return effects


@pytest.mark.compute
@pytest.mark.slow
def test_the_short_way_of_a_step_does_and_leaves_what_the_long_one_does() -> None:
    _Compared.taken.clear()
    traces(_Compared)
    # It is no comparison of nothing: each of these was taken many times.
    expected = {
        (Multicast, Role.MASTER),
        (MarksFrame, Role.MASTER),
        (Persisted, Role.MASTER),
        (OpFrame, Role.MIRROR),
        (MarksFrame, Role.MIRROR),
        (Persisted, Role.MIRROR),
    }
    assert {each for each, count in _Compared.taken.items() if count > 100} == expected


@pytest.mark.compute
@pytest.mark.slow
def test_rings_by_the_short_way_have_the_traces_of_the_long_one(quick: list[str]) -> None:
    assert traces(QuickMember) == quick
