"""A publisher as a state machine without I/O: sequences, the window, repeats after a break.

Each message ends exactly once, confirmed or failed. A message keeps its producer id and sequence
through every retry, so the queue enqueues it once (guarantee G4). Not promised: that a failed
message is absent from the queue. If it may be there, its error is an `OutcomeUnknownError`.

The core knows no client. It reads no clock, draws no random number, and knows neither asyncio,
gRPC nor any wire message: properties pass through it with their encoded sizes, and a refusal
comes as a `PublishRefusal`. So the client's `Publisher` is one shell of it, and a node that
publishes to queues with their master elsewhere can be another: that one needs its own equivalent
of `stream.py`, which maps a stream's messages to these events.

Words. A *ticket* is one call of the user, a *slice* a consecutive part of a ticket
(`tickets.py`). A *flight* is a batch with sequences: slices that go, or went, in one request
(`flights.py`). `pending` holds slices that have no sequence yet (`pending.py`). All are in the
order of submission: sent flights are before unsent ones, and these before everything pending.

The life of a stream is the table `NEXT_PHASE`: `opened` -> `next_flight` ... `confirmed` /
`rejected` ... -> `ended`. After `ended` all sent flights are unsent again. What `opened` says is
the truth (the node has waited for a trip around the ring): messages up to `last_sequence` are in
the queue for good, the others are not, and no older stream will bring them. So:

1. *Refused, try again* (`PublishRefusal.RETRY`). The node takes sequences without a gap, so it
   refuses every later message too. A refusal on its way back doesn't say which attempt it
   answers, so this stream can't be used for another one: it is `FINISHING`, half-closed and read
   to its end, and the next stream starts from the sequence that its `opened` gives.
2. *Refused for good* (`PublishRefusal.FOR_GOOD`). The messages end, and leave a hole in the
   sequences. The next `opened` closes it: the messages behind it are numbered anew from
   `last_sequence` + 1, under the same producer id. Not before that: a copy of the refused batch
   may still be on its way to the node, and could arrive under a sequence that another message
   has by then. And not under another id: a program that comes back later under the old one would
   not be told of the messages under the new one, and would send them again.
   *Some of them for good* (`PublishRefusal.SOME_FOR_GOOD`). If the flight has slices of several
   callers, only one of them may be at fault. None ends: each goes alone on the next stream, under
   the old sequences, and a slice that is refused again is the one.
3. *The node knows less than we* (`opened` with a `last_sequence` below one that was told or
   confirmed before): the queue has forgotten the producer, or has lost transient messages. Under a
   random id numbering goes on from there. An id of the user's own counts the user's messages, so
   he has to decide: `opened` raises `ProducerForgottenError`.
4. *A deadline passes*. A message without a sequence is dropped. A message with a sequence may be
   in the queue: its caller is told so, and the sequence stays occupied until the node answers or
   the next `opened` shows that it never arrived.

A *routed* publisher (`is_routed`) publishes to an exchange: to many queues, through any node. None
of them, nor the node, knows all of its messages, so `opened` says nothing of them:

5. Everything that is unconfirmed goes out again, under its old sequences. Each queue recognises
   what it has. No sequence is ever given to another message, so a hole does no harm: what was
   refused for good, or has expired, is left out. Nor does it make the node refuse what was sent
   behind it: a flight that holds some refused messages is sent again in slices only if it was the
   last one, or its messages would be enqueued behind later ones. Else all of them fail.

Invariants, asserted by `check`, beside those of `Flights` and `PendingMessages`:
* every sequence in use is below the next one to be given;
* a closed publisher has no sent flights;
* a ticket is finished exactly when its `remaining` is 0, and reported once.

Contract. Every method that says something happened is an event; afterwards the caller takes
`take_finished()`, sends the flights of `next_flight()` until it returns None, half-closes if
`finishing`, and calls `expire` at `next_deadline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Generic, assert_never

from ringmq.errors import (
    OutcomeUnknownError,
    ProducerForgottenError,
    RingMQError,
    UnavailableError,
)
from ringmq.publishing.answers import NO_LIMITS, Limits, Origin, PublishRefusal
from ringmq.publishing.epochs import SeenEpoch
from ringmq.publishing.flights import Flight, Flights
from ringmq.publishing.pending import PendingMessages
from ringmq.publishing.tickets import (
    Attributes,
    H,
    P,
    Slice,
    Ticket,
)

#: A full window is at least this many batches, so that the node is busy with one while another
#: is on its way.
BATCHES_PER_WINDOW = 4


class PublisherPhase(Enum):
    CLOSED = auto()
    OPEN = auto()
    #: Half-closed or about to be: answers still count, nothing more is sent.
    FINISHING = auto()


class Happening(Enum):
    """The events that may change the phase."""

    OPENED = auto()
    REFUSED = auto()
    #: The node will end the stream. It may say so in answer to an Open, too.
    MOVED = auto()
    ENDED = auto()


# All that is allowed. A pair that is missing is a bug of the caller: a second stream, say.
NEXT_PHASE: dict[tuple[PublisherPhase, Happening], PublisherPhase] = {
    (PublisherPhase.CLOSED, Happening.OPENED): PublisherPhase.OPEN,
    (PublisherPhase.CLOSED, Happening.REFUSED): PublisherPhase.CLOSED,
    (PublisherPhase.CLOSED, Happening.MOVED): PublisherPhase.CLOSED,
    (PublisherPhase.CLOSED, Happening.ENDED): PublisherPhase.CLOSED,
    (PublisherPhase.OPEN, Happening.REFUSED): PublisherPhase.FINISHING,
    (PublisherPhase.OPEN, Happening.MOVED): PublisherPhase.FINISHING,
    (PublisherPhase.OPEN, Happening.ENDED): PublisherPhase.CLOSED,
    (PublisherPhase.FINISHING, Happening.REFUSED): PublisherPhase.FINISHING,
    (PublisherPhase.FINISHING, Happening.MOVED): PublisherPhase.FINISHING,
    (PublisherPhase.FINISHING, Happening.ENDED): PublisherPhase.CLOSED,
}


class PublisherCore(Generic[H, P]):
    """See the module. `is_own_id`: the user has chosen the producer id, and counts by it."""

    def __init__(
        self,
        *,
        producer_id: bytes,
        is_own_id: bool = False,
        window_messages: int = 1000,
        window_bytes: int = 16 * 1024 * 1024,
        seen: SeenEpoch | None = None,
        is_routed: bool = False,
        first_sequence: int = 1,
    ) -> None:
        assert window_messages > 0, window_messages
        assert window_bytes > 0, window_bytes
        self.producer_id = producer_id
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.phase = PublisherPhase.CLOSED
        self.limits = NO_LIMITS
        #: Why messages wait: the newest failure that no confirm has followed.
        self.trouble: RingMQError | None = None
        #: Why the node holds messages, while it does.
        self.blocked: RingMQError | None = None
        self._seen = SeenEpoch() if seen is None else seen
        self._is_own_id = is_own_id
        self._is_routed = is_routed
        self._next_sequence = first_sequence
        #: The highest sequence in the queue, as the newest `opened` has it.
        self.last_sequence = 0
        # The highest sequence that is known to have been in the queue at some time.
        self._safe_sequence = 0
        self._pending: PendingMessages[H, P] = PendingMessages()
        self._flights: Flights[H, P] = Flights()
        self._finished: list[Ticket[H, P]] = []
        # Not above the earliest deadline of the messages that are outstanding.
        self._deadline_floor: float | None = None

    # --- questions of the caller ---

    @property
    def outstanding_messages(self) -> int:
        """Messages that have not ended, and those expired whose sequence is still occupied."""
        return self._pending.messages + self._flights.messages

    @property
    def room(self) -> bool:
        """Whether another message fits into the window beside all that are outstanding."""
        return (
            self._pending.messages + self._flights.messages < self.window_messages
            and self._pending.size_bytes + self._flights.size_bytes < self.window_bytes
        )

    @property
    def has_sent(self) -> bool:
        """Whether messages are on their way that the node hasn't answered."""
        return self._flights.has_sent

    @property
    def is_known(self) -> bool:
        """Whether a queue may remember its producer id."""
        return self._next_sequence > 1

    @property
    def finishing(self) -> bool:
        return self.phase is PublisherPhase.FINISHING

    @property
    def why_waiting(self) -> RingMQError | None:
        """What messages whose deadline passes are told."""
        return self.blocked or self.trouble

    def next_deadline(self) -> float | None:
        """When to call `expire`. May be early: then `expire` finds nothing and corrects it."""
        return self._deadline_floor

    def outstanding(self) -> list[H]:
        """The handles of all tickets that have not ended, each once."""
        tickets = {id(part.ticket): part.ticket for part in self._slices()}
        return [ticket.handle for ticket in tickets.values() if ticket.remaining > 0]

    def take_finished(self) -> list[Ticket[H, P]]:
        """The tickets that ended since the last call."""
        finished = self._finished
        if finished:
            self._finished = []
        return finished

    # --- events ---

    def submit(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[P],
        property_sizes: Sequence[int],
        attributes: Attributes,
        deadline: float,
        handle: H,
    ) -> None:
        """New messages, at least one, each within `limits`.

        `properties` and their encoded sizes in bytes: none, one for all, or one per body.
        """
        count = len(bodies)
        assert count > 0
        assert len(properties) == len(property_sizes), (len(properties), len(property_sizes))
        ticket = Ticket(bodies, properties, property_sizes, attributes, deadline, handle)
        self._pending.append(Slice(ticket, 0, count))
        if self._deadline_floor is None or deadline < self._deadline_floor:
            self._deadline_floor = deadline

    def opened(self, last_sequence: int, limits: Limits, origin: Origin) -> None:
        """A stream is open under `producer_id`; the queue has this producer to `last_sequence`.

        Raises, and nothing has changed, if the answer is older than one that has been seen
        (`UnavailableError`), or if an id of the user's own was forgotten
        (`ProducerForgottenError`); the caller ends this stream.
        """
        assert not self._flights.has_sent
        if self._is_routed:
            self._opened_routed(limits)
            return
        # 1. The new master confirms 1 to 15, and has 16 to 20. 2. The old one says that it has 9.
        # 3. 16 to 20 don't follow 9, so they would be numbered anew, and be enqueued twice.
        if not self._seen.take(origin.queue_id, origin.epoch):
            raise UnavailableError(
                f"a node answered as the master of epoch {origin.epoch}, "
                f"of epoch {self._seen.epoch} there is one as well"
            )
        if self._is_own_id and last_sequence < self._safe_sequence:
            raise ProducerForgottenError(
                f"the queue had this producer to {self._safe_sequence}, now it has it to "
                f"{last_sequence}: it doesn't recognise repeats of the messages between",
                metadata={
                    "last_sequence": str(last_sequence),
                    "known_sequence": str(self._safe_sequence),
                },
            )
        self._happen(Happening.OPENED)
        self.limits = limits
        self.last_sequence = self._safe_sequence = last_sequence
        if not self._flights.follow(last_sequence, self._next_sequence):
            self._number_anew_after(last_sequence)
        # The node has ended our older stream before it answered, batches in flight included. So
        # a message that isn't in the queue now won't get there by itself.
        self._flights.missing_after(last_sequence)
        # Another node may take less in one request than the node before.
        self._flights.cut_to(
            messages_max=limits.batch_messages_max, bytes_max=limits.batch_bytes_max
        )

    def _opened_routed(self, limits: Limits) -> None:
        self._happen(Happening.OPENED)
        self.limits = limits
        self._flights.drop_ended()
        self._flights.cut_to(
            messages_max=limits.batch_messages_max, bytes_max=limits.batch_bytes_max
        )

    def returned(self, first: int, last: int, error: RingMQError) -> None:
        """No queue has the messages `first..last`, which were mandatory. Their confirm follows."""
        self._flights.returned(first, last, error)

    def confirmed(self, first: int, last: int) -> None:
        """`first..last` are as safe as was asked for. Sequences that nobody waits for are
        ignored: a repeat is confirmed again."""
        self._safe_sequence = max(self._safe_sequence, min(last, self._next_sequence - 1))
        if self.phase is PublisherPhase.OPEN:
            self.trouble = None
        if self._flights.has_returned:
            self._flights.confirm_returned(first, last)
        for flight in self._flights.take(first, last):
            for part in flight.slices:
                if part.ticket.confirm(part.stop - part.start):
                    self._finished.append(part.ticket)

    def rejected(self, first: int, last: int, refusal: PublishRefusal, error: RingMQError) -> None:
        """The node refused `first..last`. Never enqueued, unless `error` is OutcomeUnknownError."""
        if self._is_routed:
            self._rejected_routed(first, last, refusal, error)
            return
        match refusal:
            case PublishRefusal.GAP:
                # Not the reason why anything waits, so not the trouble.
                self._flights.refused_from(first)
            case PublishRefusal.FORGOTTEN:
                self.trouble = error
                self._flights.refused_from(first)
            case PublishRefusal.RETRY:
                self.trouble = error
                # A node that stopped being master in the middle can't tell: its successor may
                # have these messages.
                if not isinstance(error, OutcomeUnknownError):
                    self._flights.refused_from(first)
            case PublishRefusal.SOME_FOR_GOOD if self._flights.isolate(first, last):
                self._flights.refused_from(first)
            case PublishRefusal.FOR_GOOD | PublishRefusal.SOME_FOR_GOOD:
                self._fail_range(first, last, error)
                self._flights.refused_from(first)
            case _:
                assert_never(refusal)
        self._happen(Happening.REFUSED)

    def _rejected_routed(
        self, first: int, last: int, refusal: PublishRefusal, error: RingMQError
    ) -> None:
        # Some of the queues may have them all the same, and later messages go to other queues.
        if (
            refusal is PublishRefusal.SOME_FOR_GOOD
            and last + 1 == self._next_sequence
            and self._flights.isolate(first, last)
        ):
            # On this stream later ones would overtake them.
            self._happen(Happening.REFUSED)
            return
        if refusal in (PublishRefusal.FOR_GOOD, PublishRefusal.SOME_FOR_GOOD):
            self._fail_range(first, last, error)
            return
        self.trouble = error
        self._happen(Happening.REFUSED)

    def moved(self) -> None:
        """The node will end this stream; its answers until then count."""
        self._happen(Happening.MOVED)

    def ended(self, trouble: RingMQError | None = None) -> None:
        """The stream is gone, or could not be opened. Unconfirmed messages are to be sent again."""
        self._happen(Happening.ENDED)
        # No node has the messages any more: from now on they wait for a stream.
        self.blocked = None
        if trouble is not None:
            self.trouble = trouble
        self._flights.stream_ended()

    def expire(self, now: float) -> None:
        """Ends the messages whose deadline has passed."""
        if self._deadline_floor is None or now < self._deadline_floor:
            return
        # The callers are told, but the slices stay in their flights: their sequences are used, and
        # the node would refuse every later one for the gap.
        for flight in self._flights:
            for part in flight.slices:
                if part.ticket.deadline <= now:
                    self._fail(part, self._late(may_be_enqueued=flight.may_be_enqueued))
        if self._is_routed:
            # Nothing waits for these sequences. What a queue without a master has doesn't fill
            # the window for ever.
            self._flights.drop_ended()
        for part in self._pending.take_late(now):
            self._fail(part, self._late(may_be_enqueued=False))
        self._deadline_floor = min(
            (part.ticket.deadline for part in self._slices() if part.ticket.remaining > 0),
            default=None,
        )

    def fail_all(self, error: RingMQError, *, unknown: OutcomeUnknownError) -> None:
        """Ends everything: with `unknown` the messages that may be in the queue already."""
        for flight in self._flights:
            for part in flight.slices:
                self._fail(part, unknown if flight.may_be_enqueued else error)
        for part in self._pending:
            self._fail(part, error)
        self._flights.clear()
        self._pending.clear()
        self._deadline_floor = None

    # --- sending ---

    def next_flight(self) -> Flight[H, P] | None:
        """The next request to send, if any: first repeats, then new messages."""
        if self.phase is not PublisherPhase.OPEN:
            return None
        if self._flights.has_unsent:
            return self._flights.resend()
        return self._new_flight() if self._pending else None

    def _new_flight(self) -> Flight[H, P] | None:
        """The next flight out of the pending messages; None while the window has too little room.

        Too little is less than a whole batch when more than that is waiting: else each small
        confirm would bring forth a small batch, for ever (TCP's silly window). With nothing on
        its way, anything is enough.
        """
        limits, pending, flights = self.limits, self._pending, self._flights
        messages_max = min(
            limits.batch_messages_max, -(-self.window_messages // BATCHES_PER_WINDOW)
        )
        bytes_max = min(limits.batch_bytes_max, -(-self.window_bytes // BATCHES_PER_WINDOW))
        if flights.messages:
            room = self.window_messages - flights.messages
            if room < min(pending.messages, messages_max):
                return None
            part = pending.first
            room_bytes = self.window_bytes - flights.size_bytes
            # Sizes are looked at only where they can decide.
            if room_bytes < max(bytes_max, part.sizes(part.start + 1)[0]):
                sizes = part.sizes(min(part.stop, part.start + messages_max))
                if room_bytes < max(min(bytes_max, sum(sizes)), sizes[0]):
                    return None
        slices, size_bytes = pending.take(messages_max, bytes_max)
        flight = Flight(self._next_sequence, slices, size_bytes)
        self._next_sequence = flight.last + 1
        flights.start(flight)
        return flight

    # --- inside ---

    def _happen(self, happening: Happening) -> None:
        phase = NEXT_PHASE.get((self.phase, happening))
        assert phase is not None, (
            f"a publisher whose stream is {self.phase.name} met {happening.name}"
        )
        self.phase = phase

    def _slices(self) -> Iterator[Slice[H, P]]:
        numbered = chain.from_iterable(flight.slices for flight in self._flights)
        return chain(numbered, self._pending)

    def _number_anew_after(self, last: int) -> None:
        """None of the messages after `last` is in the queue: they get new sequences, from there."""
        # Before the messages that never had a sequence: the order of submission stays. Tickets
        # that have ended are dropped here, or a message would be sent after its caller was told
        # that it failed.
        self._pending.put_back(
            [
                part
                for flight in self._flights.take(last + 1, max(last + 1, self._next_sequence))
                for part in flight.slices
                if part.ticket.remaining > 0
            ]
        )
        self._next_sequence = last + 1

    def _fail_range(self, first: int, last: int, error: RingMQError) -> None:
        for flight in self._flights.take(first, last):
            for part in flight.slices:
                self._fail(part, error)

    def _fail(self, part: Slice[H, P], error: RingMQError) -> None:
        if part.ticket.fail(part.start, part.stop - 1, error):
            self._finished.append(part.ticket)

    def _late(self, *, may_be_enqueued: bool) -> RingMQError:
        trouble = self.why_waiting
        why = f"; last trouble: {trouble}" if trouble is not None else ""
        if may_be_enqueued:
            return OutcomeUnknownError(f"not confirmed within the deadline{why}")
        if trouble is not None and not isinstance(trouble, OutcomeUnknownError):
            return trouble.copy()
        return UnavailableError(f"not sent within the deadline{why}")

    def check(self) -> None:
        """Asserts the invariants; for tests and simulation."""
        self._flights.check()
        self._pending.check()
        assert all(flight.last < self._next_sequence for flight in self._flights)
        assert not (self.phase is PublisherPhase.CLOSED and self._flights.has_sent)
