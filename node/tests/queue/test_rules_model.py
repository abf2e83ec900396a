"""A queue with all its rules against a plain model: time to live, length, requeues, take-overs.

The model is a dict of messages and a few lines of what has to happen after each event, when all ops
are safe: expired messages go, then consumers with room take from the front, then what had to be
delivered at once goes, then the oldest beyond the length.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from node.tests.queue.test_master import MANY, Scene

from ringmq_base.ranges import RangeSet
from ringmq_node.model.rules import NO_RULES, Overflow, QueueRules
from ringmq_node.queue.block import Block
from ringmq_node.queue.expiry import deadline
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AT_ONCE, Publish, Requeue

TTLS = st.sampled_from([None, None, 0, 1, 5, 20])
LENGTHS = st.sampled_from([None, None, 0, 1, 3, 8])
SIZES = st.sampled_from([None, None, 0, 1, 30])
OVERFLOWS = st.sampled_from([None, Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH])


@dataclass(frozen=True)
class Body:
    size: int
    expires_at_ms: int | None


class RulesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000
        self.asked = NO_RULES
        self.scene = Scene()
        self.live: dict[int, Body] = {}
        self.begin()

    def begin(self) -> None:
        self.scene.master = QueueMaster(
            self.scene.queue.state, self.scene.queue, now_ms=lambda: self.now
        )
        self.scene.do(self.scene.master.follow(self.asked))
        self.scene.got.clear()
        self.rooms: dict[int, int] = {}
        # Positions of the model, and those that it knows to be with consumers.
        self.ready = set(self.live)
        self.held: dict[int, int] = {}
        self.expired = self.dropped = 0

    # --- what has to happen ---

    def step(self) -> None:
        """All ops are safe. Takes over from the product who of the consumers has got what."""
        self.scene.all_safe()
        expired = {p for p in self.ready if self.is_expired(p)}
        self.let_go(expired)
        self.expired += len(expired)
        room = sum(self.rooms.values()) - len(self.held)
        taken = sorted(self.ready)[:room]
        self.ready -= set(taken)
        given = {p: consumer for consumer, got in self.scene.got.items() for p, _ in got}
        self.scene.got.clear()
        assert sorted(given) == taken
        self.held |= given
        at_once = {p for p in self.ready if self.live[p].expires_at_ms == AT_ONCE}
        self.let_go(at_once)
        self.expired += len(at_once)
        if self.asked.overflow is not Overflow.REJECT_PUBLISH:
            while self.is_over():
                self.let_go({min(self.ready)})
                self.dropped += 1

    def is_expired(self, position: int) -> bool:
        at_ms = self.live[position].expires_at_ms
        return at_ms is not None and at_ms != AT_ONCE and at_ms <= self.now

    def is_over(self) -> bool:
        length, size = self.asked.max_length, self.asked.max_length_bytes
        return bool(self.ready) and (
            (length is not None and len(self.ready) > length)
            or (size is not None and sum(self.live[p].size for p in self.ready) > size)
        )

    def let_go(self, positions: set[int]) -> None:
        self.ready -= positions
        for position in positions:
            del self.live[position]

    # --- events ---

    @rule(ttl=TTLS, length=LENGTHS, size=SIZES, overflow=OVERFLOWS)
    def configure(
        self, ttl: int | None, length: int | None, size: int | None, overflow: Overflow | None
    ) -> None:
        self.asked = QueueRules(ttl, None, length, size, overflow)
        self.scene.do(self.scene.master.follow(self.asked))
        self.step()

    @rule(sizes=st.lists(st.sampled_from([0, 1, 10]), min_size=1, max_size=12), ttl=TTLS)
    def publish(self, sizes: list[int], ttl: int | None) -> None:
        """As the mastership does it."""
        scene = self.scene
        scene.do(scene.master.expire())
        self.step()
        bodies = [b"x" * size for size in sizes]
        fits = scene.master.keeping.fitting(bodies, 0, len(bodies))
        expected: list[int] = []
        if self.asked.overflow is Overflow.REJECT_PUBLISH:
            before = self.ready.copy()
            for position, size in enumerate(sizes, scene.queue.state.next_position):
                self.live[position] = Body(size, None)
                self.ready.add(position)
                if self.is_over():
                    break
                expected.append(position)
            self.ready = before
            assert fits == len(expected)
        else:
            assert fits == len(sizes)
        position = scene.queue.state.next_position
        for at in [at for at in self.live if at >= position]:
            del self.live[at]
        if not fits:
            return
        expires = deadline(self.now, self.asked.message_ttl_ms, ttl)
        op = Publish(
            position, Block.of(bodies[:fits]), False, b"p", position + 1, expires_at_ms=expires
        )
        number = scene.send(op)
        scene.do(scene.master.published(number, op, 1))
        for at, size in enumerate(sizes[:fits], position):
            self.live[at] = Body(size, expires)
            self.ready.add(at)
        self.step()

    @rule(ms=st.sampled_from([1, 4, 30]))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.scene.do(self.scene.master.expire())
        self.step()

    @precondition(lambda self: len(self.rooms) < 3)
    @rule(room=st.integers(1, 4))
    def consume(self, room: int) -> None:
        consumer = 10 + max(self.rooms, default=0)
        self.rooms[consumer] = room
        self.scene.consume(consumer, room, MANY)
        self.step()

    @precondition(lambda self: self.held)
    @rule(which=st.lists(st.integers(0, 9), min_size=1, max_size=4), back=st.booleans())
    def settle(self, which: list[int], back: bool) -> None:
        held = sorted(self.held)
        chosen = {held[at % len(held)] for at in which}
        consumer = self.held[min(chosen)]
        chosen = {p for p in chosen if self.held[p] == consumer}
        for position in chosen:
            del self.held[position]
        ranges = RangeSet([(p, p) for p in sorted(chosen)]).ranges()
        if back:
            self.ready |= chosen
            self.scene.requeue(consumer, *ranges)
        else:
            for position in chosen:
                del self.live[position]
            self.scene.ack(consumer, *ranges)
        self.step()

    @rule(count=st.integers(1, 5))
    def get(self, count: int) -> None:
        """As its caller does it: not before all that has expired is gone."""
        self.scene.do(self.scene.master.expire())
        self.step()
        runs, effects = self.scene.master.take(999, count, MANY)
        got = [p for run in runs for p in range(run.first_position, run.last_position + 1)]
        assert got == sorted(self.ready)[:count]
        self.let_go(set(got))
        self.scene.do(effects)
        self.step()

    @rule(ms=st.sampled_from([0, 30]))
    def take_over(self, ms: int) -> None:
        """Another master, whose clock may be ahead."""
        self.now += ms
        live = self.scene.queue.state.live
        if live:
            self.scene.send(Requeue(((live.first, live.last),)))
        self.begin()
        self.step()

    # --- what always holds ---

    @invariant()
    def same(self) -> None:
        master = self.scene.master
        master.check()
        for mirror in self.scene.mirrors:
            assert mirror.digest() == self.scene.queue.state.digest()
            mirror.check()
        assert RangeSet([(p, p) for p in sorted(self.ready)]) == master.ready
        assert set(self.held) == {
            p for c in master.consumers for low, high in c.outstanding for p in range(low, high + 1)
        }
        assert len(self.scene.queue.state.live) == len(self.live)
        assert (master.keeping.expired_total, master.keeping.dropped_total) == (
            self.expired,
            self.dropped,
        )
        assert not any(self.is_expired(p) for p in self.ready)


TestRules = RulesMachine.TestCase
TestRules.settings = settings(max_examples=50, deadline=None)
