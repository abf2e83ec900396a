"""The consumers of a queue: the messages of each, its room for more, and who may take one.

A delivered message is *outstanding* with one consumer until that consumer acknowledges,
rejects or requeues it, or goes. A consumer's prefetch bounds its outstanding messages, by
number and by bytes of bodies; it may be changed at any time. Consumers with room are served in
turns, those of a higher priority first (`turns`). One that shares a window with consumers of other
queues has a share of it as a second limit (`sharing`).

An *exclusive* consumer is alone: a second one is refused, and it is refused where there is one.
With *single active* only one of many is given messages, the one that came first; when it goes, or
is cancelled and has settled what it had, the next one in order is active. Such a queue takes no
exclusive consumer, behind which nobody could wait. A consumer may say an
*identity*, which its stream keeps when it is opened again: so a reconnecting one isn't kept out by
its own dead stream (`former`).

One that *pulls* is given messages only when it asks (`deliveries.pull`). It keeps nobody out and
has no turn: it doesn't count as one of the queue's consumers, as RabbitMQ's `basic.get` doesn't.

Only the master knows which messages are outstanding, and that knowledge ends with it: its
successor counts every live message as delivered before
(docs/decisions/0004-redelivered-after-take-over.md).

Invariants (`check`):
* no message is outstanding with two consumers, nor is an invisible one outstanding;
* a consumer has no more outstanding than its prefetch, except for one message that is larger
  than its bytes and alone, for messages whose bodies were missing for a while, or since its
  prefetch was lowered;
* a consumer is in line only if it may take a message;
* the totals are the sums over the consumers; an exclusive one is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ringmq_base.ranges import Range, RangeSet
from ringmq_base.values import value
from ringmq_base.window import Share
from ringmq_node.queue.effects import TellActive, TellShort
from ringmq_node.queue.holding import Holding
from ringmq_node.queue.run import Messages, Run
from ringmq_node.queue.sharing import Sharing
from ringmq_node.queue.turns import Turns


@value
class ConsumerTerms:
    """What a consumer asks for. `identity`: its own over reconnections, or empty."""

    prefetch_messages: int = 0
    prefetch_bytes: int = 0
    priority: int = 0
    exclusive: bool = False
    identity: bytes = b""
    # It takes nothing before it is given a share of its window.
    shares_window: bool = False
    # It takes nothing before it asks.
    pulls: bool = False


class NotAloneError(Exception):
    """The queue has an exclusive consumer; or a consumer wants to be exclusive, and the queue has
    others, or is one whose consumers wait for their turn."""


class PrefetchUsedError(Exception):
    """A consumer asks for messages, and has as many as it may, or as many bytes."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        super().__init__(f"{messages} messages of {size_bytes} bytes are unacknowledged")


class NotOutstandingError(ValueError):
    """A consumer settles a position that it was never given, or has settled already."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"positions {first} to {last} are not outstanding on this stream")
        self.first = first
        self.last = last


@dataclass(slots=True)
class Subscription:
    """One consumer: its terms and the messages that it has not settled."""

    id: int
    terms: ConsumerTerms
    prefetch_messages: int
    prefetch_bytes: int
    outstanding: RangeSet = field(default_factory=RangeSet)
    outstanding_bytes: int = 0
    # Of its window, if it shares one.
    share: Share | None = None
    # Its deliveries may begin.
    begun: bool = False
    cancelled: bool = False
    # Its stream has more to send than it may have.
    is_held: bool = False
    # It may have more than its prefetch: some outstanding bodies were missing here for a while, and
    # didn't count; or its prefetch was lowered.
    had_more: bool = False

    @property
    def room_messages(self) -> int:
        room = self.own_room_messages
        if self.share is not None:
            room = min(room, self.share.messages - len(self.outstanding))
        return room

    @property
    def own_room_messages(self) -> int:
        """Whatever its share is."""
        if self.cancelled or self.is_held or not self.begun or self.terms.pulls:
            return 0
        return self.prefetch_messages - len(self.outstanding)

    @property
    def room_to_pull(self) -> int:
        """Messages that it may ask for."""
        return 0 if self.cancelled else self.prefetch_messages - len(self.outstanding)

    @property
    def could_be_active(self) -> bool:
        """Whether it may be the one that is given messages."""
        return self.begun and not self.cancelled and not self.terms.pulls

    @property
    def counts(self) -> bool:
        """Whether it is one of the queue's consumers: one that pulls isn't, nor one that has merely
        kept messages when it was cancelled."""
        return not (self.terms.pulls or self.cancelled)

    @property
    def room_bytes(self) -> int | None:
        """None: a message of any size, because it would be the only one."""
        own = self.own_room_bytes
        if self.share is None:
            return own
        shared = self.share.size_bytes - self.outstanding_bytes
        return shared if own is None else min(own, shared)

    @property
    def own_room_bytes(self) -> int | None:
        return self.prefetch_bytes - self.outstanding_bytes if self.outstanding else None


class Subscriptions:
    """Of one mastership, by number of the consumer. Iterates over them as they came."""

    def __init__(self, messages: Messages) -> None:
        self.unacknowledged = 0
        self.unacknowledged_bytes = 0
        # Deliveries, and those of them that were marked as redelivered.
        self.delivered_total = 0
        self.redelivered_total = 0
        # The consumer that is given messages, if only one is; None if there is none, or all are.
        self.active: int | None = None
        self.single_active = False
        self._by_id: dict[int, Subscription] = {}
        # Those that are given nothing unasked: they pull, or are cancelled.
        self._uncounted = 0
        self._by_identity: dict[bytes, int] = {}
        self._turns = Turns()
        self.sharing = Sharing()
        self._messages = messages
        # None: no time-out.
        self._holding: Holding | None = None

    def __len__(self) -> int:
        """Those that are given messages unasked."""
        return len(self._by_id) - self._uncounted

    def __contains__(self, consumer: int) -> bool:
        return consumer in self._by_id

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_id.values())

    # --- coming and going ---

    def former(self, terms: ConsumerTerms) -> int | None:
        """The consumer in whose place this one comes: an older stream of the same."""
        return self._by_identity.get(terms.identity) if terms.identity else None

    def check_open(self, terms: ConsumerTerms) -> None:
        """Raises `NotAloneError` if such a consumer can't be opened, in the place of its former
        stream if there is one."""
        if terms.pulls:
            return
        if terms.exclusive and self.single_active:
            raise NotAloneError(
                "it was declared with single_active_consumer, so that none of its consumers can "
                "be exclusive"
            )
        former = self.former(terms)
        # The first is enough: an exclusive one has no others beside it.
        other = next((one for one in self if one.counts and one.id != former), None)
        if other is None:
            return
        if other.terms.exclusive:
            raise NotAloneError("it has an exclusive consumer")
        if terms.exclusive:
            raise NotAloneError("it has consumers, so that none can be exclusive")

    def open(self, consumer: int, terms: ConsumerTerms) -> None:
        """It is given nothing before `begin`."""
        assert consumer not in self._by_id, consumer
        self.check_open(terms)
        assert self.former(terms) is None, consumer
        self._by_id[consumer] = subscription = Subscription(
            consumer, terms, terms.prefetch_messages, terms.prefetch_bytes
        )
        self._uncounted += terms.pulls
        if terms.shares_window:
            subscription.share = Share()
        if terms.identity:
            self._by_identity[terms.identity] = consumer

    def begin(self, consumer: int) -> list[TellActive]:
        subscription = self._by_id[consumer]
        subscription.begun = True
        told = self._choose_active()
        self._place(subscription)
        if self.single_active and not told and not subscription.terms.pulls:
            return [TellActive(consumer, active=False)]
        return told

    def pulling(self, consumer: int) -> Subscription:
        """One that pulls."""
        subscription = self._by_id[consumer]
        assert subscription.terms.pulls, consumer
        return subscription

    def change_prefetch(self, consumer: int, messages: int, size_bytes: int) -> None:
        """From now on. What it has above that stays with it."""
        subscription = self._by_id[consumer]
        subscription.prefetch_messages = messages
        subscription.prefetch_bytes = size_bytes
        subscription.had_more = True
        self._place(subscription)

    def change_share(self, consumer: int, share: Share) -> None:
        """As `change_prefetch`, for one that shares a window."""
        subscription = self._by_id[consumer]
        assert subscription.share is not None, consumer
        subscription.share = share
        subscription.had_more = True
        self._place(subscription)

    def cancel(self, consumer: int) -> list[TellActive]:
        """It is given nothing more; its outstanding messages stay with it."""
        subscription = self._by_id[consumer]
        self._uncounted += subscription.counts
        subscription.cancelled = True
        self._place(subscription)
        return self._hand_over(subscription)

    def _hand_over(self, subscription: Subscription) -> list[TellActive]:
        """The active consumer is not active any more if it is cancelled and has settled all."""
        # Not before: what it still has may come back, and the next one would have got the messages
        # behind that by then.
        left = subscription.outstanding or not subscription.cancelled
        if left or self.active != subscription.id:
            return []
        self.active = None
        return [TellActive(subscription.id, active=False), *self._choose_active()]

    def hold(self, consumer: int, *, held: bool) -> None:
        """It is given nothing more while it is held."""
        subscription = self._by_id[consumer]
        subscription.is_held = held
        self._place(subscription)

    def close(self, consumer: int) -> tuple[RangeSet, list[TellActive]]:
        """It is gone; returns the messages that it had, and who is told of that."""
        subscription = self._by_id.pop(consumer)
        self._uncounted -= not subscription.counts
        if subscription.terms.identity:
            del self._by_identity[subscription.terms.identity]
        self._turns.leave(consumer)
        self.sharing.leave(consumer)
        if self._holding is not None:
            self._holding.gone(consumer)
        self.unacknowledged -= len(subscription.outstanding)
        self.unacknowledged_bytes -= subscription.outstanding_bytes
        told: list[TellActive] = []
        if self.active == consumer:
            self.active = None
            told = self._choose_active()
        return subscription.outstanding, told

    def set_single_active(self, *, single: bool) -> list[TellActive]:
        """Whether only one consumer is given messages, from now on."""
        if single == self.single_active:
            return []
        self.single_active = single
        self.active = None
        told = self._choose_active()
        for subscription in self:
            self._place(subscription)
            if subscription.could_be_active and subscription.id != self.active:
                told.append(TellActive(subscription.id, active=not single))
        return told

    def _choose_active(self) -> list[TellActive]:
        """The first one in order, if none is active and one has to be."""
        if self.single_active and self.active is None:
            for subscription in self:
                if subscription.could_be_active:
                    self.active = subscription.id
                    self._place(subscription)
                    return [TellActive(subscription.id, active=True)]
        return []

    # --- turns ---

    def next_turn(self) -> Subscription | None:
        """The consumer that is served next; None if nobody may take a message."""
        consumer = self._turns.first()
        return None if consumer is None else self._by_id[consumer]

    def park(self, subscription: Subscription, front_bytes: int) -> list[TellShort]:
        """It is next, and has no room for the message in front, of this size."""
        room, own = subscription.room_bytes, subscription.own_room_bytes
        assert room is not None, "a message of any size is taken by a consumer that has none"
        if own is not None and (subscription.share is None or own < front_bytes):
            # By its own room: a smaller message may be one that only its share keeps from it, and
            # then it has to be told.
            self._turns.park(subscription.id, own)
            return []
        self._turns.park(subscription.id, room)
        return self.sharing.too_large(subscription.id, front_bytes)

    def untell(self, *, empty: bool) -> list[TellShort]:
        """The consumers that are short no more; `empty`: no message is there."""
        told = self.sharing.untell(empty=empty)
        for each in told:
            # A parked one has its turn at the next message, and is told again that it is short:
            # a message that was taken by another consumer may come back as large as before.
            self._place(self._by_id[each.consumer])
        return told

    @property
    def has_parked(self) -> bool:
        return self._turns.has_parked

    def unpark(self, size_bytes: int) -> None:
        """The message in front has this size now."""
        self._turns.unpark(size_bytes)

    def _may_take(self, subscription: Subscription) -> bool:
        return self._is_chosen(subscription) and subscription.room_messages > 0

    def _is_chosen(self, subscription: Subscription) -> bool:
        return not self.single_active or subscription.id == self.active

    def _place(self, subscription: Subscription) -> None:
        if subscription.share is not None:
            chosen = self._is_chosen(subscription)
            self.sharing.place(
                subscription, could_take=chosen and subscription.own_room_messages > 0
            )
        if self._may_take(subscription):
            self._turns.enter(subscription.id, subscription.terms.priority)
        else:
            self._turns.leave(subscription.id)

    # --- messages ---

    def deliver(self, subscription: Subscription, runs: Sequence[Run]) -> None:
        """These messages are outstanding with this consumer from now on; its turn is over."""
        for run in runs:
            size = run.block.body_bytes()
            subscription.outstanding.add(*run.positions)
            subscription.outstanding_bytes += size
            self.unacknowledged_bytes += size
            self.unacknowledged += run.block.count
            self.delivered_total += run.block.count
            if run.redelivered:
                self.redelivered_total += run.block.count
        if self._holding is not None:
            self._holding.given(subscription.id, [run.positions for run in runs])
        if subscription.share is not None:
            self._place(subscription)
        if subscription.room_messages <= 0:
            self._turns.leave(subscription.id)
        elif subscription.id in self._turns:
            self._turns.passed(subscription.id)

    def settle(self, consumer: int, ranges: Sequence[Range]) -> list[TellActive]:
        """It has these no more. Raises `NotOutstandingError`, and then nothing has changed,
        unless it has all of them, each once."""
        # All is looked at before anything is changed: half of a refused ack must not count.
        subscription = self._by_id.get(consumer)
        if subscription is None:
            if ranges:
                raise NotOutstandingError(*ranges[0])
            return []
        contains_all = subscription.outstanding.contains_all
        for first, last in ranges:
            if not contains_all(first, last):
                raise NotOutstandingError(first, last)
        for before, behind in pairwise(sorted(ranges)):
            if behind[0] <= before[1]:
                raise NotOutstandingError(*behind)
        # Of a body that went missing a moment ago this counts nothing, though it was counted when
        # it was delivered: `recount` is about to come and put that right.
        size = sum(self._messages.bytes_in(first, last) for first, last in ranges)
        # At once: each one taken out by itself moves all behind it, 64 ms for an ack of thousands.
        self.unacknowledged -= subscription.outstanding.subtract(ranges)
        subscription.outstanding_bytes -= size
        self.unacknowledged_bytes -= size
        if self._holding is not None:
            self._holding.settled(consumer, ranges)
        self._place(subscription)
        return self._hand_over(subscription) if subscription.cancelled else []

    # --- time ---

    @property
    def has_timeout(self) -> bool:
        return self._holding is not None

    def set_timeout(self, *, on: bool) -> None:
        """Whether consumers may lose messages that they hold too long; those that they have now
        count from the next tick on."""
        if on == self.has_timeout:
            return
        self._holding = None
        if on:
            self._holding = Holding()
            for subscription in self:
                if subscription.outstanding:
                    self._holding.given(subscription.id, subscription.outstanding.ranges())

    def overdue(self, now_ms: int, timeout_ms: int) -> list[int]:
        """The consumers that have had a message for longer; see `holding`."""
        return [] if self._holding is None else self._holding.tick(now_ms, timeout_ms)

    # --- damage ---

    def recount(self) -> None:
        """More bodies are missing, and don't count any more."""
        self.unacknowledged_bytes = 0
        for subscription in self:
            before = subscription.outstanding_bytes
            subscription.outstanding_bytes = self._bytes_of(subscription.outstanding)
            subscription.had_more |= subscription.outstanding_bytes < before
            self.unacknowledged_bytes += subscription.outstanding_bytes
            self._place(subscription)

    def filled(self, first: int, last: int) -> None:
        """The bodies of `first..last`, all of them missing until now, count again."""
        for subscription in self:
            for part in subscription.outstanding.intersection(first, last):
                size = self._messages.bytes_in(*part)
                subscription.outstanding_bytes += size
                self.unacknowledged_bytes += size

    def check(self, visible_below: int) -> None:
        """Costs a look at every outstanding message."""
        seen = RangeSet()
        for subscription in self:
            for first, last in subscription.outstanding:
                assert not seen.intersection(first, last), "a message is with two consumers"
                seen.add(first, last)
            count, size = len(subscription.outstanding), subscription.outstanding_bytes
            assert size == self._bytes_of(subscription.outstanding)
            assert count <= subscription.prefetch_messages or subscription.had_more
            assert count <= 1 or size <= subscription.prefetch_bytes or subscription.had_more
            share = subscription.share or Share(count, size)
            within = count <= share.messages and size <= share.size_bytes
            assert within or subscription.had_more
            assert not count or subscription.outstanding.last < visible_below
            assert not (subscription.terms.pulls and subscription.id in self._turns)
            assert subscription.id not in self._turns or self._may_take(subscription)
            if self._holding is not None:
                assert self._holding.of(subscription.id) == subscription.outstanding
        assert self.unacknowledged_bytes == sum(one.outstanding_bytes for one in self)
        assert self.unacknowledged == len(seen)
        assert len(self) <= 1 or not any(one.terms.exclusive for one in self if one.counts)
        assert self._uncounted == sum(not one.counts for one in self)
        assert self.active is None or self.single_active
        if self.single_active and self.active is None:
            assert not any(one.could_be_active for one in self)
        self._turns.check()
        self.sharing.check()
        if self._holding is not None:
            self._holding.check()

    def _bytes_of(self, ranges: RangeSet) -> int:
        return sum(self._messages.bytes_in(first, last) for first, last in ranges)
