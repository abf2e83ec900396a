"""Consuming from a queue whose master is on this node: the rules that hold for every door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.ranges import Range
from ringmq_base.window import Share
from ringmq_node.broker.deleting import check_not_deleting
from ringmq_node.broker.locating import Location
from ringmq_node.broker.peers import Got
from ringmq_node.model.consumers import CONSUMER_TAG_BYTES_MAX, ConsumerLabel
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import (
    GET_BYTES_MAX,
    GET_MESSAGES_MAX,
    PREFETCH_BYTES,
    PREFETCH_BYTES_MAX,
    PREFETCH_MESSAGES,
    PREFETCH_MESSAGES_MAX,
)
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.sessions import ConsumerSession


class ConsumersSeen(Protocol):
    """Hears of consumers; see `orphans`."""

    def opened(self, mastership: Mastership) -> None: ...
    def left(self, mastership: Mastership) -> None:
        """One has gone in good order."""
        ...


class Consuming:
    """One consumer of a queue. `begin` starts its deliveries; close it when its stream ends."""

    def __init__(
        self,
        mastership: Mastership,
        session: ConsumerSession,
        *,
        terms: ConsumerTerms,
        auto_ack: bool = False,
        label: ConsumerLabel,
        successor: Callable[[str], Location],
        seen: ConsumersSeen,
    ) -> None:
        """A prefetch of 0 is the default. Raises `BrokerError` if the queue can't be served, is
        being deleted, or prefetch or tag are above their limits."""
        _check_tag(label.tag)
        prefetch = _checked_prefetch(terms.prefetch_messages, terms.prefetch_bytes)
        self.prefetch_messages, self.prefetch_bytes = prefetch
        if len(terms.identity) > PRODUCER_ID_BYTES_MAX:
            raise bad_request(
                f"a consumer id of {len(terms.identity)} bytes, {PRODUCER_ID_BYTES_MAX} is most",
                field="consumer_id",
            )
        if auto_ack and terms.shares_window:
            raise bad_request(
                "what is settled as it is sent takes no part in a window", field="shares_window"
            )
        if terms.pulls:
            _check_pulls(terms, auto_ack=auto_ack)
        self._pulls = terms.pulls
        self._is_cancelled = False
        self._auto_ack = auto_ack
        self._shares_window = terms.shares_window
        check_not_deleting(mastership)
        self._mastership = mastership
        self._successor = successor
        self._seen = seen
        self.epoch = mastership.epoch
        self._subscribers = mastership.subscribers
        self.number, self._begin = mastership.open_consumer(
            session,
            replace(
                terms, prefetch_messages=self.prefetch_messages, prefetch_bytes=self.prefetch_bytes
            ),
        )
        self._subscribers.set_label(self.number, replace(label, auto_ack=auto_ack))

    def begin(self) -> None:
        """Starts the deliveries; the door has told its client by now that it is subscribed."""
        # Who pulls is no consumer: an auto-delete queue doesn't live by it, nor go with it.
        if not self._pulls:
            self._seen.opened(self._mastership)
        self._begin()

    def wait_room(self) -> Awaitable[None]:
        """Returns when the ring takes another op: acks are ops as well.

        Raises `RingClosedError` if the ring ends; the session has heard `moved` by then.
        """
        return self._mastership.room.wait()

    def settle(
        self,
        *,
        acked: Sequence[Range] = (),
        rejected: Sequence[Range] = (),
        requeued: Sequence[Range] = (),
    ) -> None:
        """Acknowledges, rejects and requeues delivered positions, all of them or none.

        Raises `BrokerError` if the consumer doesn't hold one of them, or settles none itself.
        """
        if self._auto_ack:
            raise bad_request("the messages of this consumer are settled as sent", field="settle")
        for first, last in (*acked, *rejected, *requeued):
            if last < first:
                raise bad_request(f"a range from {first} to {last}", field="settle")
        self._subscribers.settle(self.number, acked=acked, rejected=rejected, requeued=requeued)

    def sent(self, positions: Sequence[Range]) -> None:
        """These deliveries have gone out: those of an auto-ack consumer are acknowledged. Until
        then they count against its prefetch, so a client that doesn't read has a bound too."""
        # The messages of a stream that is over are on their way back.
        if self._auto_ack and not self._mastership.ended:
            with suppress(BrokerError):
                self._subscribers.settle(self.number, acked=positions)

    @property
    def auto_ack(self) -> bool:
        return self._auto_ack

    @property
    def pulls(self) -> bool:
        return self._pulls

    def check_pulls(self) -> None:
        """Raises `BrokerError` if its messages come unasked."""
        if not self._pulls:
            raise bad_request("this consumer is given messages unasked", field="pull")

    def change_prefetch(self, messages: int, size_bytes: int) -> None:
        """From now on; 0 is the default. Messages above it that are out already stay out. Raises
        `BrokerError`."""
        prefetch = _checked_prefetch(messages, size_bytes)
        self.prefetch_messages, self.prefetch_bytes = prefetch
        self._subscribers.change_prefetch(self.number, *prefetch)

    def change_share(self, messages: int, size_bytes: int) -> None:
        """How much of its window it may have, from now on. Raises `BrokerError` if it shares
        none."""
        if not self._shares_window:
            raise bad_request("this consumer shares no window", field="share")
        self._subscribers.change_share(self.number, Share(messages, size_bytes))

    async def pull(self, messages_max: int, bytes_max: int) -> Got:
        """The first messages, which are this consumer's from now on; none if none are ready.

        As for a get, `messages_max` 0 is one message, `bytes_max` 0 the largest answer. Raises
        `BrokerError`, LIMIT_EXCEEDED if there are some and its prefetch is used up.
        """
        self.check_pulls()
        if self._is_cancelled:
            raise bad_request("this consumer is cancelled", field="pull")
        runs, ready = await self._mastership.pull(
            self.number,
            min(messages_max or 1, GET_MESSAGES_MAX),
            min(bytes_max or GET_BYTES_MAX, GET_BYTES_MAX),
        )
        return Got(runs, ready)

    @property
    def has_moved(self) -> bool:
        """Whether the session has heard `moved`."""
        return self._mastership.ended

    def cancel(self) -> None:
        """Ends the deliveries; unsettled messages stay the consumer's."""
        self._is_cancelled = True
        self._subscribers.cancel(self.number)

    def hold(self, held: bool) -> None:
        """Whether the door has more deliveries to send than it may have."""
        self._subscribers.hold(self.number, held=held)

    def successor(self) -> Location:
        """The new master, for a session that has heard `moved`."""
        return self._successor(self._mastership.name)

    def close(self, *, in_good_order: bool = False) -> None:
        """Unsettled messages go back to their places in the queue. `in_good_order`: the client
        has said so, and isn't just out of reach."""
        self._subscribers.close(self.number)
        if in_good_order and not self._pulls:
            self._seen.left(self._mastership)


def _check_tag(tag: str) -> None:
    """Raises `BrokerError`."""
    size = len(tag.encode())
    if size > CONSUMER_TAG_BYTES_MAX:
        raise bad_request(
            f"a consumer tag has at most {CONSUMER_TAG_BYTES_MAX} bytes, this one {size}",
            field="consumer_tag",
        )


def _check_pulls(terms: ConsumerTerms, *, auto_ack: bool) -> None:
    """Raises `BrokerError` for terms that are about messages which come unasked."""
    for field, given in (
        ("auto_ack", auto_ack),
        ("exclusive", terms.exclusive),
        ("priority", terms.priority),
        ("shares_window", terms.shares_window),
    ):
        if given:
            raise bad_request("not for a consumer that asks for its messages", field=field)


def _checked_prefetch(messages: int, size_bytes: int) -> tuple[int, int]:
    """With the defaults in place of 0. Raises `BrokerError` above the limits."""
    if messages > PREFETCH_MESSAGES_MAX or size_bytes > PREFETCH_BYTES_MAX:
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"prefetch is at most {PREFETCH_MESSAGES_MAX} messages, {PREFETCH_BYTES_MAX} bytes",
            limit="prefetch",
        )
    return messages or PREFETCH_MESSAGES, size_bytes or PREFETCH_BYTES
