"""Publishing to a queue whose master is on this node: the rules that hold for every door.

A door opens a `Publishing` for each publish stream (AMQP: for each queue that a channel publishes
to), waits for room before it takes a batch, and hands the batch over. The checks here:

* limits of the batch, of each body and of each message's properties;
* a queue that is being deleted on a condition takes nothing (decision 0016): a publish confirmed
  between the check "it is empty" and the deletion would be lost;
* a full ring, dead letters that wait for their target (`replica.room`), a node whose budget for
  publishes is used up (`resources.budget`), and alarms of memory or disk on any node (`alarms`):
  `wait_room` passes the back-pressure on to the door, which stops reading (G6).

Dead letters pass two of these bounds, or what waits for them would wait for itself: the bound for
letters, and alarms, as long as few messages are ready (`ALARM_READY_MESSAGES_MAX`). Behind them are
messages that consumers have to get at for an alarm to end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ringmq_base.limits import MIB, PRODUCER_ID_BYTES_MAX
from ringmq_node.broker.deleting import check_not_deleting
from ringmq_node.broker.locating import Location
from ringmq_node.broker.routing.stamp import STAMP_BYTES_MAX, noted
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.rules import PRIORITIES_MAX, check_ttl
from ringmq_node.model.settings import BATCH_MESSAGES_MAX, BrokerSettings
from ringmq_node.queue.ops import MESSAGE_ID_BYTES
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.outbox import PRODUCER_PREFIX, is_of_letters
from ringmq_node.replica.sessions import PublisherSession
from ringmq_node.resources.budget import PublishBudget
from ringmq_node.resources.flow import Reasons

# While there is an alarm, letters come in as long as fewer messages are ready, and fewer bytes.
ALARM_READY_MESSAGES_MAX = 1000
ALARM_READY_BYTES_MAX = 4 * MIB
# What a producer never reaches, so that no sum of sequences overflows on any replica.
SEQUENCE_MAX = 2**63


def check_not_letters(producer_id: bytes) -> None:
    """Raises `BrokerError` if a client gives an id of those under which nodes publish dead letters:
    queues would take its messages for theirs, or theirs for repeats."""
    if is_of_letters(producer_id):
        raise BrokerError(
            Reason.ACCESS_REFUSED,
            f"producer ids that begin with {PRODUCER_PREFIX!r} are the nodes' own",
            field="producer_id",
        )


class Publishing:
    """One publisher's way into a queue. Made by `open`; close it when its stream ends."""

    def __init__(
        self,
        mastership: Mastership,
        settings: BrokerSettings,
        *,
        producer_id: bytes,
        number: int,
        last_sequence: int,
        budget: PublishBudget,
        successor: Callable[[str], Location],
        with_gaps: bool = False,
    ) -> None:
        # The highest sequence of this producer that the queue has; 0: none.
        self.last_sequence = last_sequence
        # Of the view in which that is so. Comparable within one queue id.
        self.epoch = mastership.epoch
        self.queue_id = mastership.queue_id
        self._mastership = mastership
        self._room = mastership.room
        self._budget = budget
        self._settings = settings
        self._producer_id = producer_id
        self._number = number
        self._successor = successor
        self._with_gaps = with_gaps
        self._are_letters = with_gaps and is_of_letters(producer_id)
        # With gaps: why a batch was refused that will be sent again. Those behind it are on their
        # way, and must not overtake it; no gap in their sequences would tell.
        self._refusal: BrokerError | None = None

    @classmethod
    async def open(
        cls,
        mastership: Mastership,
        settings: BrokerSettings,
        session: PublisherSession,
        *,
        producer_id: bytes,
        budget: PublishBudget,
        successor: Callable[[str], Location],
        with_gaps: bool = False,
    ) -> Publishing:
        """Raises `BrokerError` if the queue can't be served, or the producer id is too long,
        or a node's own.

        With a producer id it waits for a trip around the ring. The session hears nothing
        before this has returned. `with_gaps`: the queue gets a part of what the producer publishes.
        """
        if len(producer_id) > PRODUCER_ID_BYTES_MAX:
            raise bad_request(
                f"a producer id has at most {PRODUCER_ID_BYTES_MAX} bytes", field="producer_id"
            )
        if not with_gaps:
            check_not_letters(producer_id)
        if with_gaps and not producer_id:
            raise bad_request("sequences with gaps are those of a producer", field="producer_id")
        number, last_sequence = await mastership.open_publisher(
            session, producer_id, with_gaps=with_gaps
        )
        return cls(
            mastership,
            settings,
            producer_id=producer_id,
            number=number,
            last_sequence=last_sequence,
            budget=budget,
            successor=successor,
            with_gaps=with_gaps,
        )

    @property
    def is_readable(self) -> bool:
        """Whether the door may read another batch. Letters have a bound where they are sent
        (`replica.letter_desk`), and would wait for the publishers that an alarm holds."""
        return self._are_letters or self._budget.is_readable(self._room)

    def wait_readable(self) -> Awaitable[None]:
        """Returns when `is_readable`."""
        return self._budget.wait_readable(self._room)

    def park(self, size_bytes: int) -> None:
        """The door holds so many more bytes behind a batch that waits, or fewer."""
        self._budget.park(self._room, size_bytes)

    @property
    def has_room(self) -> bool:
        """Whether `wait_room` would return at once."""
        is_full = self._room.is_full(minds_letters=not self._are_letters)
        return not is_full and self._budget.admits(self._room, self._passes_alarms)

    def _passes_alarms(self) -> bool:
        queue = self._mastership.queue
        return (
            self._are_letters
            and len(queue.ready) < ALARM_READY_MESSAGES_MAX
            and queue.ready_bytes < ALARM_READY_BYTES_MAX
        )

    def block_reasons(self) -> Reasons:
        """Why a batch is held now. May be empty: others have their turn before it."""
        reasons = self._budget.reasons(self._room)
        reasons += self._room.reasons(minds_letters=not self._are_letters)
        return tuple(sorted(reasons, key=lambda reason: reason.value))

    async def wait_room(self, size_bytes: int) -> None:
        """Returns when the node and the ring take a batch of this size, which the door holds; also
        when the ring refuses it for another reason than room. The door publishes it at once.

        Raises `RingClosedError` if the ring ends; the session has heard `moved` by then.
        """
        if self.has_room:
            return
        gauge = self._room.flow
        gauge.began(self.block_reasons())
        try:
            await self._wait_ring(size_bytes)
            if not self._budget.admits(self._room, self._passes_alarms):
                await self._budget.wait(self._room, size_bytes, self._passes_alarms)
                # The ring may have filled up meanwhile.
                await self._wait_ring(size_bytes)
        finally:
            gauge.ended()

    async def _wait_ring(self, size_bytes: int) -> None:
        # Counted: else a thousand streams would each have a batch in hand that no budget has.
        with self._budget.holding(self._room, size_bytes):
            await self._room.wait(minds_letters=not self._are_letters)

    def publish(
        self,
        first_sequence: int,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        *,
        transient: bool,
        message_id: bytes = b"",
        ttl_ms: int | None = None,
        priority: int = 0,
    ) -> None:
        """Enqueues a batch whose messages have consecutive sequences; the session is told when
        they are confirmed.

        `properties`, encoded, are none, one for all bodies, or one for each. `message_id` (with
        gaps): 16 bytes if other queues get the very same batch. `ttl_ms`: how long each of these
        messages may be ready. Raises `BrokerError` if the batch is refused; then none of it was
        enqueued, but for the messages that a `FullQueueRefusal` doesn't name.
        """
        stamp_bytes = STAMP_BYTES_MAX if self._with_gaps else 0
        check_batch(self._settings, first_sequence, bodies, properties, stamp_bytes=stamp_bytes)
        if message_id and (len(message_id) != MESSAGE_ID_BYTES or not self._with_gaps):
            raise bad_request("a message id is 16 bytes, and from a node", field="message_id")
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        if priority:
            check_priority(priority)
        if self._refusal is not None:
            raise BrokerError(
                Reason.SEQUENCE_GAP,
                f"a batch before this one was refused on this stream: {self._refusal.message}",
            )
        try:
            check_not_deleting(self._mastership)
            if not self._with_gaps and (priority or ttl_ms is not None):
                # From a node they have it.
                properties = noted(properties, ttl_ms, priority)
            self._mastership.publish(
                self._number,
                self._producer_id,
                first_sequence,
                bodies,
                properties,
                transient=transient,
                with_gaps=self._with_gaps,
                message_id=message_id,
                ttl_ms=ttl_ms,
                priority=priority,
            )
        except BrokerError as error:
            if self._with_gaps and error.retryable:
                self._refusal = error
            raise

    def successor(self) -> Location:
        """The new master, for a session that has heard `moved`."""
        return self._successor(self._mastership.name)

    def close(self, *, has_ended: bool = False) -> None:
        """The session hears nothing more; messages that it has published stay. `has_ended`: nobody
        will publish or repeat anything under its producer id, so the queue may forget that."""
        self._mastership.close_publisher(self._number, self._producer_id, ended=has_ended)


def check_priority(priority: int) -> None:
    """Raises `BrokerError` if no message can have it; the queue's own highest is no limit."""
    if not 0 <= priority <= PRIORITIES_MAX:
        raise bad_request(
            f"a message's priority is 0 to {PRIORITIES_MAX}, not {priority}", field="priority"
        )


def check_batch(
    settings: BrokerSettings,
    first_sequence: int,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    *,
    stamp_bytes: int = 0,
) -> None:
    """Raises `BrokerError`. `stamp_bytes`: a node may have added so many to each properties."""
    count = len(bodies)
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise bad_request(
            f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, this one {count}",
            field="bodies",
        )
    if not 1 <= first_sequence <= SEQUENCE_MAX - count:
        raise bad_request(
            f"sequences begin with 1, and end before {SEQUENCE_MAX}", field="first_sequence"
        )
    if len(properties) not in (0, 1, count):
        raise bad_request(
            f"{len(properties)} properties for {count} messages: none, one or as many",
            field="properties",
        )
    _check_size("a message", bodies, settings.message_bytes_max)
    if properties:
        limit = settings.properties_bytes_max + stamp_bytes
        _check_size("properties", properties, limit, field="properties")


def _check_size(kind: str, parts: Sequence[bytes], limit: int, **metadata: str) -> None:
    largest = max(map(len, parts))
    if largest > limit:
        raise BrokerError(
            Reason.MESSAGE_TOO_LARGE,
            f"{kind} of {largest} bytes; {limit} are allowed",
            size_bytes=largest,
            limit_bytes=limit,
            **metadata,
        )
