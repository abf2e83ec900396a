"""Consuming from a queue whose master is on this node: the rules that hold for every door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ringmq_base.ranges import Range
from ringmq_node.broker.deleting import check_not_deleting
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import (
    PREFETCH_BYTES,
    PREFETCH_BYTES_MAX,
    PREFETCH_MESSAGES,
    PREFETCH_MESSAGES_MAX,
)
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.sessions import ConsumerSession


class Consuming:
    """One consumer of a queue. `begin` starts its deliveries; close it when its stream ends."""

    def __init__(
        self,
        mastership: Mastership,
        session: ConsumerSession,
        *,
        prefetch_messages: int,
        prefetch_bytes: int,
        successor: Callable[[str], tuple[str, str]],
    ) -> None:
        """A prefetch of 0 is the default. Raises `BrokerError` if the queue can't be served, is
        being deleted, or the prefetch is above its limits."""
        self.prefetch_messages = prefetch_messages or PREFETCH_MESSAGES
        self.prefetch_bytes = prefetch_bytes or PREFETCH_BYTES
        if (
            self.prefetch_messages > PREFETCH_MESSAGES_MAX
            or self.prefetch_bytes > PREFETCH_BYTES_MAX
        ):
            raise BrokerError(
                Reason.LIMIT_EXCEEDED,
                f"prefetch is at most {PREFETCH_MESSAGES_MAX} messages, {PREFETCH_BYTES_MAX} bytes",
                limit="prefetch",
            )
        check_not_deleting(mastership)
        self._mastership = mastership
        self._successor = successor
        self.epoch = mastership.epoch
        self.number, self._begin = mastership.open_consumer(
            session, self.prefetch_messages, self.prefetch_bytes
        )

    def begin(self) -> None:
        """Starts the deliveries; the door has told its client by now that it is subscribed."""
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

        Raises `BrokerError` if the consumer doesn't hold one of them.
        """
        for first, last in (*acked, *rejected, *requeued):
            if last < first:
                raise bad_request(f"a range from {first} to {last}", field="settle")
        self._mastership.settle(self.number, acked=acked, rejected=rejected, requeued=requeued)

    def cancel(self) -> None:
        """Ends the deliveries; unsettled messages stay the consumer's."""
        self._mastership.cancel_consumer(self.number)

    def successor(self) -> tuple[str, str]:
        """Node and address of the new master, for a session that has heard `moved`."""
        return self._successor(self._mastership.name)

    def close(self) -> None:
        """Unsettled messages go back to their places in the queue."""
        self._mastership.close_consumer(self.number)
