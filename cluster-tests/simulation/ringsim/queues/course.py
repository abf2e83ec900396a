"""Plays a scenario on a world of queues: producers and consumers come and go while faults last.

After the faults the producers have to get all that they have published confirmed, and consumers
take everything. Then all replicas have to be equal, bodies included, and the history is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ringmq_base.pieces import PIECE_S_MAX, Clock, timed_by
from ringmq_base.ranges import RangeSet
from ringmq_node.queue.ops import NoteTime, Publish
from ringmq_node.replica import remembering
from ringsim.queues.clients import Consumer, Producer
from ringsim.queues.judge import Judge
from ringsim.queues.payloads import op_of
from ringsim.queues.process import Process
from ringsim.queues.store import check_bodies
from ringsim.queues.world import QueueWorld
from ringsim.simulator import scenarios
from ringsim.simulator.application import BrokenInvariantError
from ringsim.simulator.course import Course

# Queues forget producers sooner than in life, or no run would see it. Each client tries to connect
# more often than that.
FORGET_AFTER_S = 6.0
EXPIRY_MS = 2000
EXPIRE_EACH_S = 0.5
# Long enough for a producer that has left to be forgotten.
QUIET_S = 12.0
# Beside those of the scenario.
PUBLISHES_MAX = 40
# Half as many at least. Simulated queues are short: the loop would never be held for long.
LOOKS_IN_A_PIECE = 3


class QueueCourse(Course):
    """See the module."""

    # Slow links and small windows: a producer may need a minute for what it has left.
    settle_s = 300.0

    def __init__(self, world: QueueWorld) -> None:
        super().__init__(world)
        self.world = world
        self.judge = Judge(world.oracle)
        rng = world.rng
        self.producers = [Producer(self, f"p{n}") for n in range(rng.choice((1, 2, 3)))]
        self.consumers = [Consumer(self, f"c{n}") for n in range(rng.choice((0, 1, 1, 2)))]
        self._is_draining = False

    def play(self) -> None:
        try:
            with _played_here(self.world.rng.random()):
                super().play()
        finally:
            self.world.dispose()

    def begin(self) -> float:
        clock, rng = self.world.clock, self.world.rng
        ends = super().begin()
        for client in (*self.producers, *self.consumers):
            clock.at(0.3 * rng.random(), client.come)
        # Closely spaced in half of the runs: some are on their way at any fault.
        gap_s = rng.choice((0.03, 0.1, ends, ends))
        for turn in range(min(PUBLISHES_MAX, int(ends / gap_s))):
            clock.at(0.3 + gap_s * turn, rng.choice(self.producers).publish, 1)
        for producer in self.producers:
            for _ in range(rng.choice((0, 0, 1, 2))):
                clock.at(ends * rng.random(), self._restart, producer)
        for client in (*self.producers, *self.consumers):
            for _ in range(rng.choice((0, 1, 3))):
                clock.at(ends * rng.random(), client.cut)
        if rng.random() < 0.25:
            # One leaves, is forgotten or not, and comes back.
            clock.at(ends * rng.random(), self.producers[0].go)
            ends += QUIET_S
        clock.after(EXPIRE_EACH_S, self._expire)
        return ends

    def _restart(self, producer: Producer) -> None:
        if not producer.is_gone:
            self.world.coverage.counts["queue: a producer's program dies"] += 1
            producer.restart()

    def _expire(self) -> None:
        """Every node looks for producers that have not published for long."""
        for machine in self.world.machines.values():
            if machine.process is not None:
                machine.process.run(partial(self._expire_at, machine.process))
        self.world.clock.after(EXPIRE_EACH_S, self._expire)

    def _expire_at(self, process: Process) -> None:
        before = [*process.store.state.producers]
        process.replica.remembering.expire(EXPIRY_MS)
        for producer in self.producers:
            is_forgotten = producer.producer_id not in process.store.state.producers
            if is_forgotten and producer.producer_id in before and producer.is_served_by(process):
                raise BrokenInvariantError(f"{producer.tag} is connected, and forgotten")

    def _publish(self, publish: scenarios.Publish) -> bool:
        self.world.rng.choice(self.producers).publish(publish.count)
        return True

    def _publish_anything(self) -> None:
        for machine in self.world.machines.values():
            process = machine.process
            if process is None or machine.paused or process.ring.refusal() is not None:
                continue
            if process.ring.has_quorum:
                op = NoteTime(process.host.now_ms())
                process.run(partial(process.replica.multicast, op))

    def producer_forgotten(self, producer: Producer) -> None:
        self.world.coverage.counts["queue: a producer is told that it is forgotten"] += 1
        if producer.producer_id not in self.judge.forgotten and not self.world.oracle.lost:
            raise BrokenInvariantError(f"{producer.tag} is forgotten, and no op says so")

    # --- the end ---

    def _finish(self) -> None:
        for producer in self.producers:
            if producer.is_gone and not producer.is_forgotten:
                producer.come()
        super()._finish()
        if self._settled:
            if not self.consumers:
                self.consumers.append(Consumer(self, "last"))
                self.consumers[0].come()
            self._is_draining = True
            self._settle("while all is consumed")
        log = max((m.app.log for m in self.world.machines.values()), key=len)
        self.judge.finish(log, drained=self._settled, now=self.world.clock.now)
        self.world.coverage.counts["queue: producers forgotten"] += len(self.judge.forgotten)

    def _unsettled(self) -> str | None:
        if self._is_draining:
            for consumer in self.consumers:
                consumer.become_diligent()
        reason = super()._unsettled() or self._differences()
        if reason is None:
            for producer in self.producers:
                if not producer.is_done:
                    return f"{producer.tag} has unconfirmed messages"
        return reason

    def _differences(self) -> str | None:
        """Why the replicas aren't equal, and served by one master."""
        processes = [m.process for m in self.world.machines.values() if m.process is not None]
        if sum(process.replica.mastership is not None for process in processes) != 1:
            return "no replica serves, or several do"
        lost = self._bodies_lost()
        if any(process.store.missing.without(lost) for process in processes):
            return "bodies are missing"
        if len({process.store.state.digest() for process in processes}) > 1:
            raise BrokenInvariantError("the logs are equal, and the states are not")
        for process in processes:
            check_bodies(process.store)
            if process.replica.mastership is not None:
                process.replica.mastership.queue.check()
                left = process.store.state.live.without(lost)
                if self._is_draining and left:
                    return f"{len(left)} messages are left"
        return None

    def _bodies_lost(self) -> RangeSet:
        """Positions whose bodies an operator has given up, until somebody discards them."""
        lost = RangeSet()
        for _, payload in self.world.oracle.without_bodies.values():
            op = op_of(payload)
            if isinstance(op, Publish):
                lost.add(op.first_position, op.last_position)
        return lost


@contextmanager
def _played_here(seed: float) -> Iterator[None]:
    """The shipped shells draw from the common source of chance, forget after a minute, and cut long
    work by the processor's time."""
    forget_after_s = remembering.FORGET_AFTER_S
    chance = random.getstate()
    remembering.FORGET_AFTER_S = FORGET_AFTER_S
    random.seed(seed)
    try:
        with timed_by(_work_clock(random.Random(seed))):
            yield
    finally:
        remembering.FORGET_AFTER_S = forget_after_s
        random.setstate(chance)


def _work_clock(rng: random.Random) -> Clock:
    """Time that work takes: each look at it costs some, so that long work is cut somewhere."""
    now_s = 0.0

    def look() -> float:
        nonlocal now_s
        now_s += rng.random() * PIECE_S_MAX / LOOKS_IN_A_PIECE
        return now_s

    return look
