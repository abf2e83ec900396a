"""One ring with its group's part played: the failures that a real group can't be made to have."""

from __future__ import annotations

import asyncio

import pytest
from group_harness import ListApplication
from loops import run

from ringmq_gm import LogEnd, MemberId, PromotionError, RingFailedError, first_view
from ringmq_gm.broadcasts import Broadcasts
from ringmq_gm.core.events import Event, LinkDown, Multicast, Propose, ViewLearned
from ringmq_gm.core.frames import Frame
from ringmq_gm.core.member import RingMember
from ringmq_gm.rings import Ring
from ringmq_gm.timers import RingTimers

A, B = MemberId("a", 1), MemberId("b", 1)


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


class PlayedShell:
    """The group of one ring. Nothing is sent; `arm` raises if `fault` is set."""

    def __init__(self) -> None:
        self.time = 0.0
        self.fault: Exception | None = None
        self.failures: list[RingFailedError | None] = []
        self.rings: dict[str, Ring] = {}
        self.broadcasts = Broadcasts(self.rings)

    @property
    def broadcast_count(self) -> int:
        return self.broadcasts.count

    def catch_up(self, ring: Ring) -> None:
        self.broadcasts.catch_up(ring)

    def now(self) -> float:
        return self.time

    def send(self, node: str, frame: Frame) -> None: ...

    def waiting_bytes(self, node: str, ring: str) -> int:
        return 0

    def propose(self, ring: str, proposal: Propose) -> None: ...

    def refresh(self, ring: str) -> None: ...

    def cached(self, change_bytes: int) -> None: ...

    def arm(self, ring: Ring, deadline: float) -> None:
        if self.fault is not None:
            raise self.fault

    def view_entered(self, ring: Ring) -> None: ...

    def ended(self, ring: Ring, failure: RingFailedError | None) -> None:
        self.failures.append(failure)


def ring_of(shell: PlayedShell) -> Ring:
    """The master of a ring of two, by name "r"."""
    app = ListApplication()
    member = RingMember(A, "r", LogEnd(), chance=Even())
    ring = app.ring = Ring(member, app, shell, payload_bytes_max=1000, submit_bytes_max=1000)
    ring.step(ViewLearned(first_view([A, B], min_insync=2)))
    return ring


@pytest.mark.logs("ring 'r' at a#1 has failed")
def test_a_step_whose_timer_fails_ends_the_ring_and_does_not_raise() -> None:
    """It raised into the link that had brought the frame, which tore the link down: the ring
    went on with a member that had no timer."""
    shell = PlayedShell()
    ring = ring_of(shell)
    shell.fault = AttributeError("'uvloop.loop.Handle' object has no attribute 'when'")
    ring.step(LinkDown("b"))  # It probes, and wants a tick.
    assert ring.closed
    (failure,) = shell.failures
    assert failure is not None
    assert failure.__cause__ is shell.fault
    with pytest.raises(RingFailedError):
        ring.multicast(b"x")


def test_a_deadline_that_has_passed_is_ticked_on_the_loop_of_the_product() -> None:
    """For a moment in the past uvloop hands out a handle that doesn't know its time."""

    async def main() -> None:
        shell = PlayedShell()
        ring = ring_of(shell)
        ring.multicast(b"not on the disk of anybody, so the ring can't be drained")
        promotion = asyncio.create_task(ring.promote(B))
        await asyncio.sleep(0)
        shell.time = asyncio.get_running_loop().time()
        deadline = ring.next_deadline()
        assert deadline is not None
        assert deadline < shell.time
        timers = RingTimers()
        timers.rearm(ring)
        timers.rearm(ring)
        with pytest.raises(PromotionError, match="did not drain"):
            await asyncio.wait_for(promotion, 30)
        assert shell.failures == []

    run(main())


def test_a_ring_takes_the_broadcasts_that_it_lacks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        shell = PlayedShell()
        ring = ring_of(shell)
        shell.rings["r"] = ring
        taken: list[Event] = []
        take = ring.take

        def noted(event: Event) -> None:
            taken.append(event)
            take(event)

        monkeypatch.setattr(ring, "take", noted)
        shell.broadcasts.add(LinkDown("b"))
        ring.multicast(b"x")
        assert taken[:2] == [LinkDown("b"), Multicast(b"x", urgent=False)]

    run(main())
