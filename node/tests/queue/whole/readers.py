"""A played queue that also has readers by position and consumers of shared windows.

Readers hold leases and acknowledge everything below a position. A consumer of a shared window has a
share, which its program changes at any time, and hears when that alone keeps messages from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from node.tests.queue.whole.model import PlainConsumer
from node.tests.queue.whole.played import PlayedQueue, positions_of
from node.tests.storage.engine.hand import Hand

from ringmq_base.window import Share
from ringmq_node.queue.effects import Effect, ReportBarrier, TellShort
from ringmq_node.queue.leases import ChangeLease, LeaseAction, QueueLease
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import StoreLimits


@dataclass(frozen=True)
class Facts:
    """What readers rely on: who has which lease, and what is gone by position."""

    leases: tuple[QueueLease, ...] = ()
    acked_end: int = 0
    purged_end: int = 0

    @classmethod
    def of(cls, state: ReplicatedState) -> Facts:
        leases = sorted(state.leases.values(), key=lambda lease: lease.name)
        return cls(tuple(leases), state.acked_end, state.purged_end)

    def lease(self, name: str) -> QueueLease | None:
        return next((each for each in self.leases if each.name == name), None)

    def with_lease(self, name: str, lease: QueueLease | None) -> Facts:
        others = [each for each in self.leases if each.name != name]
        found = others if lease is None else [*others, lease]
        return replace(self, leases=tuple(sorted(found, key=lambda each: each.name)))


class ReadQueue(PlayedQueue):
    def __init__(self, hand: Hand, limits: StoreLimits, rng: random.Random, levels: int) -> None:
        self.facts = Facts()
        # At the last safe moment and since: a power cut leaves one of these.
        self.possible = [self.facts]
        self.waiters: set[int] = set()
        self.releasing = False
        # The consumers that were told that their share is too small, and for how many bytes.
        self.short: dict[int, int] = {}
        super().__init__(hand, limits, rng, levels)

    def begin(self) -> None:
        self.waiters.clear()
        self.short.clear()
        super().begin()

    def told(self, effect: Effect) -> None:
        match effect:
            case ReportBarrier(waiter):
                assert self.releasing, "told before it was safe"
                self.waiters.remove(waiter)
            case TellShort(consumer, short, needs_bytes):
                assert short or consumer in self.short, "told twice"
                if short:
                    self.short[consumer] = needs_bytes
                else:
                    del self.short[consumer]

    def note(self, facts: Facts) -> None:
        self.facts = facts
        self.possible.append(facts)

    # --- verbs ---

    def change_lease(self, action: LeaseAction, name: str, who: int, ttl_ms: int) -> None:
        """`who`: of several that use the same name. One that is too late has an older token."""
        held, now_ms = self.facts.lease(name), self.plain.now_ms
        token = 0 if held is None else held.token - (held.instance != b"%d" % who)
        self.ids += 1
        op = ChangeLease(action, name, now_ms, f"h{who}", b"%d" % who, token, ttl_ms)
        number = self.queue.state.last_number + 1
        self.waiters.add(self.ids)
        self.do(self.master.change_lease(self.ids, op))
        self.note(self.facts.with_lease(name, leased(held, op, number)))
        self.events["leases"] += self.facts.lease(name) != held

    def acknowledge_below(self, quarters: int) -> None:
        """As its caller does it: not above what is visible, nor where a consumer has messages."""
        self.judge()
        plain = self.plain
        end = self.master.visible_below * quarters // 4
        held = {at for consumer in plain.consumers.values() for at in consumer.has if at < end}
        assert set(positions_of(self.master.held_below(end))) == held
        if held:
            return
        gone = {at for at in plain.ready if at < end}
        assert not gone & plain.hidden
        self.ids += 1
        count, effects = self.master.acknowledge_below(self.ids, end)
        assert count == len(gone)
        self.events["acknowledged below"] += count
        plain.leave(gone, None)
        self.do(effects)
        self.note(replace(self.facts, acked_end=max(self.facts.acked_end, end)))

    def purge(self) -> None:
        ready = {*self.plain.ready}
        super().purge()
        if ready:
            purged_end = max(self.facts.purged_end, max(ready) + 1)
            self.note(replace(self.facts, purged_end=purged_end))

    def change_share(self, which: int, messages: int, size: int) -> None:
        sharers = sorted(n for n, each in self.plain.consumers.items() if each.share is not None)
        if sharers:
            number = sharers[which % len(sharers)]
            share = self.plain.consumers[number].share = Share(messages, size)
            self.master.consumers.change_share(number, share)
            self.do(self.master.deliver_more())

    # --- after each event ---

    def judge(self) -> None:
        super().judge()
        assert Facts.of(self.queue.state) == self.facts
        for number in [*self.short]:
            if number not in self.plain.consumers:
                del self.short[number]  # It has left, and hears nothing more.
        for number, consumer in self.plain.consumers.items():
            if consumer.share is not None:
                self.judge_share(number, consumer)

    def judge_share(self, number: int, consumer: PlainConsumer) -> None:
        """It is short while its share alone keeps the message in front from it. If nothing is left,
        it says so when its share has room: until then a larger share is due to it."""
        plain, share = self.plain, consumer.share
        assert share is not None
        line, has = plain.line(), len(consumer.has)
        is_active = not plain.rules.single_active_consumer or number == min(plain.unasked())
        if not is_active or has >= consumer.messages_max:
            assert number not in self.short, "no share would help it"
        elif not line:
            assert number not in self.short or has >= share.messages, "short of nothing"
        elif consumer.has_own_room(plain.messages[line[0]]):
            assert number in self.short, "not told that a message is there"
            self.events["short"] += 1
            held_bytes = sum(len(each.body) for each in consumer.has.values())
            is_due = held_bytes + self.short[number] > share.size_bytes
            assert is_due or has >= share.messages, "it has the share that it asked for"

    def release(self) -> None:
        self.releasing = True
        super().release()
        self.releasing = False
        assert not self.waiters, "nobody told them that it is safe"
        self.possible = [self.facts]

    def adopt(self, *, restarted: bool) -> None:
        found = Facts.of(self.queue.state)
        assert found in (self.possible if restarted else [self.facts]), "readers were misled"
        self.facts = found
        super().adopt(restarted=restarted)


def leased(held: QueueLease | None, op: ChangeLease, number: int) -> QueueLease | None:
    """What has become of the lease."""
    until_ms = op.at_ms + op.ttl_ms
    is_taken = held is not None and held.until_ms > op.at_ms
    if op.action is LeaseAction.ACQUIRE and not is_taken:
        return QueueLease(op.name, op.holder, op.instance, number, op.ttl_ms, until_ms)
    if held is None:
        return None
    if op.action is LeaseAction.ACQUIRE:
        is_its_own = held.instance == op.instance
    else:
        is_its_own = held.token == op.token
    if not is_its_own:
        return held
    if op.action is LeaseAction.RELEASE:
        return None
    return replace(held, ttl_ms=op.ttl_ms, until_ms=max(held.until_ms, until_ms))
