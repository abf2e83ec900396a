"""The real master and the real store of a queue beside `PlainQueue`; the ring, the publishers, the
consumers and the dead-letter target are played.

Each verb is done by both, and then compared (`judge`). Ops are applied at once, and safe when
`release` says so: between two releases masters die, and power is cut. What the product chooses
(which consumer gets a message) is taken from it and judged; all else has to be equal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pytest
from node.tests.queue.whole.model import PlainConsumer, PlainMessage, PlainQueue
from node.tests.storage.engine.hand import Hand
from node.tests.storage.simulated_disk import Kept, SimulatedDisk

from ringmq_base.ranges import Range, RangeSet
from ringmq_base.window import NOTHING
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue import backlog, deadletters, deliveries, ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms, NotAloneError, PrefetchUsedError
from ringmq_node.queue.effects import (
    DeliverMore,
    DeliverRuns,
    Effect,
    EndConsumer,
    EndReason,
    MulticastOp,
    SendLetters,
)
from ringmq_node.queue.expiry import deadline
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Op, Publish, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.replica.reading import MasterBodies
from ringmq_node.storage import Store, StoreLimits

ROOT = Path("/data")
PUBLISHER = 1
MANY = 1 << 40
# So small that a few messages meet them.
BOUNDS = (
    (deliveries, "TURN_MESSAGES_MAX", 4),
    (deliveries, "TURN_BYTES_MAX", 60),
    (deliveries, "PIECE_RUNS_MAX", 2),
    (deliveries, "PIECE_BYTES_MAX", 90),
    (ops, "RANGES_SENT_MAX", 2),
    (ops, "REQUEUED_RANGES_MAX", 2),
    (deadletters, "UNDER_WAY_MESSAGES_MAX", 3),
    (deadletters, "PIECE_MESSAGES_MAX", 2),
    (backlog, "REFUSED_MESSAGES_MAX", 6),
)


def ranges_of(positions: Iterable[int]) -> list[Range]:
    return RangeSet((at, at) for at in sorted(positions)).ranges()


def positions_of(ranges: Iterable[Range]) -> list[int]:
    return [at for first, last in ranges for at in range(first, last + 1)]


class PlayedQueue:
    def __init__(self, hand: Hand, limits: StoreLimits, rng: random.Random, levels: int) -> None:
        self.hand, self.limits, self.rng = hand, limits, rng
        self.levels = levels
        self.events: Counter[str] = Counter()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in BOUNDS:
            self.patch.setattr(module, name, value)
        self.plain = PlainQueue()
        self.disk = SimulatedDisk()
        self.ids = PUBLISHER
        self.made = self.epoch = 0
        # The target: its last sequence of this queue, and what it has.
        self.known = 0
        self.target: dict[bytes, str] = {}
        self.arrived: list[tuple[int, bytes]] = []
        self.target_is_up = True
        self.transient_bodies: set[bytes] = set()
        self.start()
        self.begin()

    # --- the node ---

    def start(self) -> None:
        self.store = Store.open(ROOT, cluster_id="c", node="n", disk=self.disk, limits=self.limits)
        self.running = self.hand.loop.create_task(self.store.run())
        self.hand.turn()
        self.queue = self.store.open_queue("q")
        self.mirror = self.queue.state.copy()

    def begin(self) -> None:
        """A master begins with the state as it is."""
        plain = self.plain
        self.epoch += 1
        for state in (self.queue, self.mirror):
            state.begin_epoch(self.epoch)
        live = self.queue.state.live
        if live:
            self.append(Requeue(((live.first, live.last),)))
        for message in plain.messages.values():
            message.redelivered = True
        plain.consumers.clear()
        plain.ready = set(plain.messages)
        plain.hidden = set(plain.messages)
        self.under_way: list[tuple[int, int, bytes, str]] = []
        self.given: list[int] = []
        self.requeued: set[int] = set()
        # What one consumer after the other has let go of.
        self.came_back: list[set[int]] = []
        self.given_before = 0
        self.master = QueueMaster(
            self.queue.state,
            MasterBodies(self.queue, self.failed),
            has_dead_letters=plain.rules.dead_letter_exchange is not None,
            now_ms=lambda: plain.now_ms,
        )
        self.do(self.master.follow(self.asked()))

    def failed(self, error: Exception) -> None:
        raise AssertionError(str(error))

    def asked(self) -> QueueRules:
        return self.plain.rules

    def append(self, op: Op) -> int:
        number = self.queue.state.last_number + 1
        payload = ops.encode(op)
        self.queue.append(number, op, payload)
        self.mirror.apply(number, ops.decode(payload))
        return number

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    if type(op) is Requeue and self.rng.random() < 0.5:
                        # The ring takes it only after something else has happened.
                        self.do(self.master.deliver_more())
                    number = self.append(op)
                    self.do(self.master.applied(number, op))
                case DeliverRuns(consumer, runs):
                    self.delivered(consumer, runs)
                case DeliverMore():
                    self.do(self.master.deliver_more())
                case SendLetters(letters):
                    for each in letters:
                        for at, body in enumerate(each.run.block.bodies()):
                            position = each.run.first_position + at
                            letter = each.first_letter + at
                            self.under_way.append((letter, position, body, each.reason.value))
                case EndConsumer(consumer, reason):
                    assert reason is EndReason.TIMED_OUT
                    assert consumer not in self.plain.consumers
                case _:
                    self.told(effect)

    def told(self, effect: Effect) -> None:
        """What only some of the clients hear."""

    def delivered(self, number: int, runs: Sequence[Run]) -> None:
        plain = self.plain
        consumer = plain.consumers[number]
        for run in runs:
            for position, body in enumerate(run.block.bodies(), run.first_position):
                message = plain.messages[position]
                assert position in plain.ready - plain.hidden, "given, and not to be seen"
                assert position not in plain.expired(), "given, and expired"
                assert consumer.takes(message), "beyond its prefetch"
                assert body == message.body
                assert (run.redelivered, run.delivery_count) == (message.redelivered, message.count)
                if plain.rules.single_active_consumer:
                    assert number == min(plain.unasked()), "given to one that is not active"
                elif run is runs[0] and position == run.first_position:
                    # Of a turn; those behind its first message go along.
                    others = plain.consumers.values()
                    assert not any(
                        other.priority > consumer.priority and other.takes(message)
                        for other in others
                    ), "another one comes first"
                plain.ready.remove(position)
                consumer.has[position] = message
                consumer.since[position] = None
                self.given.append(position)

    # --- after each event: what has to happen now has happened ---

    def judge(self) -> None:
        plain, master = self.plain, self.master
        self.do(master.expire())
        expired = plain.expired()
        for positions in self.came_back:
            # Each consumer loses its messages by itself, and then those of them leave that expired.
            plain.leave(sorted(expired & positions), "expired")
        plain.leave(plain.expired(), "expired")
        self.judge_order()
        plain.leave(plain.at_once(), "expired", in_parts=bool(self.requeued))
        left = plain.ready - set(positions_of(master.ready))
        if left:
            self.judge_dropped(left)
        assert set(positions_of(master.ready)) == plain.ready
        assert plain.rejects or not plain.is_over(plain.line()), "longer than it may be"
        assert master.ready_bytes == sum(len(plain.messages[at].body) for at in plain.ready)
        held = {at for consumer in plain.consumers.values() for at in consumer.has}
        assert {at for c in master.consumers for at in positions_of(c.outstanding)} == held
        assert plain.ready | held == set(plain.messages)
        self.judge_waiting()
        master.check()
        self.queue.state.check()
        assert self.mirror.digest() == self.queue.state.digest()
        self.given.clear()
        self.requeued.clear()
        self.came_back.clear()

    def judge_order(self) -> None:
        plain = self.plain
        if not self.given:
            return
        self.events["given"] += len(self.given)
        if plain.rules.single_active_consumer and len(self.came_back) == 1:
            # What came back is in front of all that the next one is given.
            line = [plain.key(at) for at in self.given[self.given_before :]]
            left = [plain.key(at) for at in positions_of(self.master.ready) if at in plain.ready]
            assert line == sorted(line), "out of order behind a requeue"
            assert not line or all(max(line) < key for key in left if key[1] in self.requeued)
        keys = [plain.key(at) for at in self.given if at in plain.messages]
        # One that is dropped may have been too large for those that wait.
        stays = set(positions_of(self.master.ready)) - self.requeued
        waiting = [plain.key(at) for at in plain.line() if at in stays]
        assert self.requeued or keys == sorted(keys), "out of order"
        assert not waiting or self.requeued or max(keys) < waiting[0], "another one was in front"

    def judge_dropped(self, left: set[int]) -> None:
        """The least urgent and oldest, and no more than have to go."""
        plain = self.plain
        self.events["dropped"] += len(left)
        assert not plain.rejects
        order = sorted(plain.line(), key=lambda at: (plain.messages[at].priority, at))
        assert set(order[: len(left)]) == left, "dropped others than the oldest"
        last = order[len(left) - 1]
        given = [at for at in self.given if at in plain.messages]
        assert plain.is_over({*plain.line(), *given} - left | {last}), "dropped without need"
        plain.leave(left, "maxlen", in_parts=bool(self.requeued))

    def judge_waiting(self) -> None:
        """No consumer with room waits for a message that it could have."""
        plain = self.plain
        line = plain.line()
        if not line:
            return
        able = plain.unasked()
        if plain.rules.single_active_consumer and able:
            able = {min(able): able[min(able)]}
        assert not any(each.takes(plain.messages[line[0]]) for each in able.values())

    # --- verbs ---

    def publish(
        self, sizes: list[int], ttl_ms: int | None, priority: int, *, transient: bool
    ) -> None:
        """As the mastership does it."""
        plain, master = self.plain, self.master
        self.judge()
        bodies = [b"%d:" % (self.made + at) + b"x" * size for at, size in enumerate(sizes)]
        self.made += len(bodies)
        self.transient_bodies.update(bodies if transient else ())
        fits = master.keeping.fitting(bodies, 0, len(bodies))
        assert fits == plain.fitting(bodies)
        priority = min(priority, self.levels)
        if fits:
            expires = deadline(plain.now_ms, plain.rules.message_ttl_ms, ttl_ms)
            first = self.queue.state.next_position
            for at, body in enumerate(bodies[:fits], first):
                plain.messages[at] = PlainMessage(body, priority, expires, transient)
                plain.ready.add(at)
                plain.hidden.add(at)
                plain.fresh.add(at)
            block = Block.of(bodies[:fits])
            op = Publish(
                first, block, transient, b"p", first + 1, expires_at_ms=expires, priority=priority
            )
            self.do(master.published(self.append(op), op, PUBLISHER))
        if fits < len(bodies):
            self.refuse(bodies[fits:], transient=transient)

    def refuse(self, bodies: list[bytes], *, transient: bool) -> None:
        plain, master = self.plain, self.master
        self.events["refused"] += len(bodies)
        if plain.rules.overflow is None or "dlx" not in plain.rules.overflow.value:
            return
        if plain.rules.dead_letter_exchange is None or not master.departures.refused.has_room:
            return
        first = self.queue.state.next_position
        plain.leavings += 1
        for at, body in enumerate(bodies, first):
            plain.left_with[body] = plain.leavings
            plain.gone[at] = PlainMessage(body, 0, None, transient)
            plain.fresh.add(at)
            plain.letters[body] = "maxlen"
        op = Publish(first, Block.of(bodies), transient, born_doomed=True)
        self.do(master.refused(self.append(op), op))

    def open_consumer(
        self,
        messages: int,
        size: int,
        priority: int,
        *,
        exclusive: bool,
        shares_window: bool = False,
    ) -> None:
        plain = self.plain
        if len(plain.consumers) >= 4:
            return
        self.ids += 1
        terms = ConsumerTerms(messages, size, priority, exclusive, shares_window=shares_window)
        others = plain.unasked().values()
        is_kept_out = bool(others) and (exclusive or any(each.exclusive for each in others))
        if is_kept_out or (exclusive and plain.rules.single_active_consumer):
            with pytest.raises(NotAloneError):
                self.master.consumer_opened(self.ids, terms)
            return
        share = NOTHING if shares_window else None
        plain.consumers[self.ids] = PlainConsumer(messages, size, priority, exclusive, share=share)
        self.do(self.master.consumer_opened(self.ids, terms))
        self.do(self.master.consumer_begun(self.ids))

    def open_puller(self, messages: int, size: int) -> None:
        plain = self.plain
        if len(plain.consumers) >= 4:
            return
        self.ids += 1
        plain.consumers[self.ids] = PlainConsumer(messages, size, 0, exclusive=False, pulls=True)
        self.do(self.master.consumer_opened(self.ids, ConsumerTerms(messages, size, pulls=True)))
        self.do(self.master.consumer_begun(self.ids))

    def pull(self, which: int, count: int) -> None:
        self.judge()
        plain = self.plain
        pullers = sorted(number for number, each in plain.consumers.items() if each.pulls)
        if not pullers:
            return
        number = pullers[which % len(pullers)]
        consumer, line = plain.consumers[number], plain.line()
        if line and not consumer.has_room(plain.messages[line[0]]):
            with pytest.raises(PrefetchUsedError):
                self.master.pull(number, count, MANY)
            return
        runs, effects = self.master.pull(number, count, MANY)
        got = positions_of(run.positions for run in runs)
        assert got == line[: len(got)]
        assert len(got) <= count
        assert got or not line
        self.events["pulled"] += len(got)
        for run in runs:
            for position in positions_of([run.positions]):
                message = plain.messages[position]
                assert consumer.has_room(message), "beyond its prefetch"
                assert (run.redelivered, run.delivery_count) == (message.redelivered, message.count)
                plain.ready.remove(position)
                consumer.has[position], consumer.since[position] = message, None
        self.do(effects)

    def pick(self, which: int) -> int | None:
        numbers = sorted(self.plain.consumers)
        return numbers[which % len(numbers)] if numbers else None

    def back(self, positions: Collection[int]) -> None:
        self.given_before = len(self.given)
        self.requeued.update(positions)
        if positions:
            self.came_back.append({*positions})
        self.events["requeued"] += len(self.requeued)
        self.plain.back(positions)

    def close_consumer(self, which: int) -> None:
        number = self.pick(which)
        if number is not None:
            self.back(self.plain.consumers.pop(number).has)
            self.do(self.master.consumer_closed(number))

    def change_prefetch(self, which: int, messages: int, size: int) -> None:
        number = self.pick(which)
        if number is not None:
            consumer = self.plain.consumers[number]
            consumer.messages_max, consumer.bytes_max = messages, size
            self.do(self.master.prefetch_changed(number, messages, size))

    def settle(self, which: int, verbs: list[str]) -> None:
        """The first messages that a consumer has: one verb for each."""
        number = self.pick(which)
        if number is None:
            return
        consumer = self.plain.consumers[number]
        done: dict[str, list[int]] = {"acked": [], "rejected": [], "requeued": []}
        for position, verb in zip(sorted(consumer.has), verbs, strict=False):
            done[verb].append(position)
            del consumer.has[position], consumer.since[position]
        self.plain.leave(done["acked"], None)
        self.plain.leave(done["rejected"], "rejected")
        self.back(done["requeued"])
        ranges = {verb: ranges_of(positions) for verb, positions in done.items()}
        self.do(self.master.settle(number, **ranges))

    def get(self, count: int) -> None:
        self.judge()
        self.ids += 1
        expected = self.plain.line()[:count]
        runs, effects = self.master.take(self.ids, count, MANY)
        got = [at for run in runs for at in range(run.first_position, run.last_position + 1)]
        assert got == expected
        self.plain.leave(got, None)
        self.do(effects)

    def purge(self) -> None:
        self.ids += 1
        count, effects = self.master.purge(self.ids)
        assert count == len(self.plain.ready)
        self.plain.leave([*self.plain.ready], None)
        self.do(effects)

    def follow(self, rules: QueueRules) -> None:
        self.plain.follow(rules)
        self.do(self.master.follow(self.asked()))

    def wait(self, ms: int) -> None:
        plain = self.plain
        plain.now_ms += ms
        self.do(self.master.expire())
        self.judge()
        overdue = plain.overdue()
        ended = [plain.consumers.pop(number) for number in overdue]
        self.events["timed out"] += len(ended)
        for consumer in ended:
            self.back(consumer.has)
        self.do(self.master.tick(plain.now_ms))

    # --- the ring, the disk and the target ---

    def release(self) -> None:
        """All that is there is safe, and all that follows from it."""
        quiet = 0
        while quiet < 3:
            before = self.queue.state.last_number, len(self.under_way)
            self.hand.settle()
            last = self.queue.state.last_number
            assert self.queue.durable_number == last
            self.plain.hidden.clear()
            self.do(self.master.watermarks(last, last))
            if self.target_is_up:
                self.arrive(len(self.under_way))
            after = self.queue.state.last_number, len(self.under_way)
            quiet = quiet + 1 if before == after else 0
        self.judge()
        self.plain.judge_letters(self.arrived)
        self.arrived.clear()
        self.plain.all_safe()
        if self.target_is_up:
            assert self.target == self.plain.letters

    def arrive(self, count: int, *, heard: bool = True) -> None:
        letters, self.under_way = self.under_way[:count], self.under_way[count:]
        for letter, position, body, reason in letters:
            if letter > self.known:
                self.known = letter
                self.arrived.append((position, body))
                assert body not in self.target, "a letter arrived twice"
                self.target[body] = reason
            assert body in self.target, "taken for a repeat"
        if letters and heard:
            gone = ranges_of(position for _, position, *_ in letters)
            self.do(self.master.departures.letters_gone(gone, arrived=True))

    def set_target(self, *, is_up: bool) -> None:
        self.target_is_up = is_up

    def take_over(self, arrived: int) -> None:
        """Another master goes on. So many letters of the old one arrive all the same."""
        self.events["take-overs"] += 1
        self.arrive(arrived, heard=False)
        self.adopt(restarted=False)
        self.begin()

    def restart(self, kept: Kept, arrived: int) -> None:
        """The power is cut; the disk has what was safe, and of the rest `kept`."""
        self.events["restarts"] += 1
        self.arrive(arrived, heard=False)
        self.abandon()
        self.disk = self.disk.power_cut(kept, self.rng)
        self.start()
        self.adopt(restarted=True)
        self.begin()

    def abandon(self) -> None:
        self.running.cancel()
        self.hand.turn()
        self.hand.drop()

    def adopt(self, *, restarted: bool) -> None:
        """The model takes over what nobody was promised, and judges the rest."""
        plain, state = self.plain, self.queue.state
        doomed = set() if state.doomed is None else set(positions_of(state.doomed.positions))
        live = set(positions_of(state.live)) - doomed
        for position in live - set(plain.messages):
            message = plain.messages[position] = plain.gone.pop(position)
            assert plain.letters.pop(message.body, None) is None or message.body not in self.target
        for position in set(plain.messages) - live:
            message = plain.messages.pop(position)
            assert restarted, "lost by a take-over"
            assert message.transient or position in plain.fresh, "lost, though it was safe"
        for position, message in plain.messages.items():
            count = state.counts.count_of(position)
            low = plain.safe_counts.get(position, 0) if restarted else message.count
            assert low <= count <= message.count
            message.count = count
        if restarted:
            self.forget_letters(doomed)

    def forget_letters(self, doomed: set[int]) -> None:
        """Letters that are lost with their messages: transient ones, and unsafe ones."""
        waiting = {self.body_of(at) for at in doomed}
        for body in [*self.plain.letters]:
            if body not in waiting and body not in self.target:
                assert body in self.fleeting(), "a letter was lost"
                del self.plain.letters[body]

    def body_of(self, position: int) -> bytes:
        [run] = self.queue.read(position, position, bytes_max=MANY, messages_max=1)
        return run.block.bodies()[0]

    def fleeting(self) -> set[bytes]:
        gone = self.plain.gone
        return self.transient_bodies | {gone[at].body for at in self.plain.fresh if at in gone}

    def drain(self) -> None:
        """Nothing is stuck: all that is left can be consumed, and nothing of it stays."""
        self.set_target(is_up=True)
        while self.plain.consumers:
            self.close_consumer(0)
            # Before others can be seen: what is dropped now is of those that can.
            self.judge()
        self.release()
        self.open_consumer(100, MANY, 0, exclusive=False)
        for _ in range(len(self.plain.messages) + 1):
            self.release()
            self.settle(0, ["acked"] * 100)
            self.judge()
        self.release()
        assert not self.plain.messages
        assert not self.queue.state.live
        assert not self.master.messages

    def end(self) -> None:
        self.abandon()
        self.patch.undo()
