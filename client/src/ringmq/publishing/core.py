"""What a publisher decides, without I/O: sequences, the window, what is sent again.

Each message ends exactly once, confirmed or failed. A message keeps its producer
id and sequence through every retry, so the queue enqueues it once (guarantee G4).

Words. A *ticket* is one call of the user: n bodies that are awaited together. A
*run* is a part of a ticket that stays together. A *flight* is a batch with
sequences: runs that go, or went, in one request. `pending` holds runs that have no
sequence yet, `unsent` flights that this stream has not been given yet, `sent`
flights that it has. All three are in the order of submission, and everything in
`sent` is before everything in `unsent` is before everything in `pending`.

The life of a stream: `opened` -> `next_flight` ... `confirmed` / `rejected` ... ->
`ended`. After `ended` all that was sent is `unsent` again. Four things make it
less simple:

1. *Refused, try again* (`rejected(..., retryable=True)`). The node takes sequences
   without a gap, so it refuses all that follows too. Which of the refusals that
   are still on their way belongs to which attempt can't be told, so the stream is
   over for sending (`finishing`): it is half-closed, read to its end, and a new
   one starts from what `opened` says.
2. *Refused for good*. The sequences of these messages stay unused, so whatever
   comes after them can never be taken under this producer id. It gets a new one:
   the id is *sealed*. What is before the hole stays under the old id until it is
   confirmed, then `producer_id` changes and numbering begins with 1. (Giving the
   sequences to other messages instead would be wrong: a copy of the refused batch
   that a relay still holds could arrive under them.)
3. *The node knows less than we* (`opened` with a `last_sequence` that does not
   join what we have): the node has forgotten the producer, or lost transient
   messages. Up to `last_sequence` it has ours, so these stay; the rest is as in 2.
4. *A deadline passes*. A message without a sequence is dropped. One with a
   sequence may be in the queue: its caller is told so, and the sequence stays
   occupied until the node answers or the next `opened` shows that it never arrived.

Invariants, asserted by `check`:
* sequences in `sent + unsent` grow; those in `unsent` that are above the node's
  `last_sequence` have no gap, so what goes out never has one that the node minds;
* the window counts are those of the flights; a flight is never over the limits;
* a ticket is finished exactly when its `remaining` is 0, and reported once.

Contract. Every method that says something happened is an event; afterwards the
caller takes `take_finished()`, sends what `next_flight()` gives while it gives
something, half-closes if `finishing`, and calls `expire` at `next_deadline`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

from ringmq.errors import OutcomeUnknownError, RingMQError, UnavailableError
from ringmq.v1 import common_pb2 as common

#: What a body costs in a request beside its own bytes: tag, length, and to spare.
MESSAGE_OVERHEAD_BYTES = 16
#: A full window is at least this many batches, so that the node is busy with one
#: while another is on its way.
BATCHES_PER_WINDOW = 4

H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the node takes, from `PublishOpened`. Zero there means no limit."""

    message_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int


NO_LIMITS = Limits(2**63, 2**63, 2**31)


class Phase(Enum):
    CLOSED = auto()
    OPEN = auto()
    #: Half-closed or about to be: answers still count, nothing more is sent.
    FINISHING = auto()


class Ticket(Generic[H]):
    """One call of the user. `handle` is whatever the caller wants back with the outcome."""

    __slots__ = ("deadline", "error", "failed", "handle", "remaining")

    def __init__(self, count: int, deadline: float, handle: H) -> None:
        self.remaining = count
        self.deadline = deadline
        self.handle = handle
        self.error: RingMQError | None = None
        #: Index ranges of the bodies that are not confirmed, both ends included.
        self.failed: list[tuple[int, int]] = []


class Run(Generic[H]):
    """Bodies `start..stop-1` of a ticket. `properties`: none, one for all, or one per body."""

    __slots__ = ("bodies", "properties", "start", "stop", "ticket", "transient")

    def __init__(
        self,
        ticket: Ticket[H],
        bodies: Sequence[bytes],
        start: int,
        stop: int,
        properties: Sequence[common.Properties],
        transient: bool,
    ) -> None:
        self.ticket = ticket
        self.bodies = bodies
        self.start = start
        self.stop = stop
        self.properties = properties
        self.transient = transient

    @property
    def count(self) -> int:
        return self.stop - self.start

    def split(self, count: int) -> tuple[Run[H], Run[H]]:
        """The first `count` messages, and the others."""
        middle = self.start + count
        return (
            Run(self.ticket, self.bodies, self.start, middle, self.properties, self.transient),
            Run(self.ticket, self.bodies, middle, self.stop, self.properties, self.transient),
        )

    @property
    def size_bytes(self) -> int:
        """What all of it costs in requests and in the window: the sum of `sizes`."""
        if self.properties:
            return sum(self.sizes(self.stop))
        return sum(map(len, self.bodies[self.start : self.stop])) + (
            MESSAGE_OVERHEAD_BYTES * self.count
        )

    def sizes(self, stop: int) -> list[int]:
        """What each of the bodies `start..stop-1` costs in a request and in the window."""
        sizes = [len(body) + MESSAGE_OVERHEAD_BYTES for body in self.bodies[self.start : stop]]
        if len(self.properties) > 1:
            for index, properties in enumerate(self.properties[self.start : stop]):
                sizes[index] += properties.ByteSize()
        elif self.properties:
            each = self.properties[0].ByteSize()
            sizes = [size + each for size in sizes]
        return sizes


class Flight(Generic[H]):
    """Messages `first..last`, which go in one request; their attributes are the same."""

    __slots__ = ("first", "last", "maybe", "runs", "size_bytes", "transient")

    def __init__(self, first: int, runs: list[Run[H]], size_bytes: int) -> None:
        self.first = first
        self.last = first + sum(run.stop - run.start for run in runs) - 1
        self.runs = runs
        self.size_bytes = size_bytes
        self.transient = runs[0].transient
        #: Handed out for sending, and not refused since: the queue may have it.
        self.maybe = False

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def split(self, count: int) -> tuple[Flight[H], Flight[H]]:
        """The first `count` messages, and the others."""
        left: list[Run[H]] = []
        right: list[Run[H]] = []
        room = count
        for run in self.runs:
            if room >= run.count:
                left.append(run)
            elif room > 0:
                head, tail = run.split(room)
                left.append(head)
                right.append(tail)
            else:
                right.append(run)
            room -= min(room, run.count)
        left_bytes = sum(run.size_bytes for run in left)
        pair = (
            Flight(self.first, left, left_bytes),
            Flight(self.first + count, right, self.size_bytes - left_bytes),
        )
        pair[0].maybe = pair[1].maybe = self.maybe
        return pair


class PublisherCore(Generic[H]):
    """See the module. `new_id` is called for each producer id that is needed."""

    def __init__(
        self,
        *,
        new_id: Callable[[], bytes],
        window_messages: int = 1000,
        window_bytes: int = 16 * 1024 * 1024,
        producer_id: bytes | None = None,
    ) -> None:
        assert window_messages > 0, window_messages
        assert window_bytes > 0, window_bytes
        self._new_id = new_id
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.producer_id = producer_id if producer_id is not None else new_id()
        self.phase = Phase.CLOSED
        self.limits = NO_LIMITS
        #: What the last `opened` said of the highest sequence that the queue has.
        self.last_sequence = 0
        #: Why messages wait: the newest failure, for those whose deadline passes.
        self.trouble: RingMQError | None = None
        self._next_sequence = 1
        self._sealed = False
        self._pending: deque[Run[H]] = deque()
        self._pending_messages = self._pending_bytes = 0
        self._unsent: deque[Flight[H]] = deque()
        self._sent: deque[Flight[H]] = deque()
        self._window_used_messages = 0
        self._window_used_bytes = 0
        self._finished: list[Ticket[H]] = []
        # Not above the earliest deadline of all that is outstanding.
        self._deadline_floor: float | None = None

    # --- what the caller may ask ---

    @property
    def outstanding_messages(self) -> int:
        """Messages that have not ended, and those expired whose sequence is still occupied."""
        return self._pending_messages + self._window_used_messages

    @property
    def room(self) -> bool:
        """Whether another message fits into the window beside all that is outstanding."""
        return (
            self.outstanding_messages < self.window_messages
            and self._pending_bytes + self._window_used_bytes < self.window_bytes
        )

    @property
    def finishing(self) -> bool:
        return self.phase is Phase.FINISHING

    def next_deadline(self) -> float | None:
        """When to call `expire`. May be early: then `expire` finds nothing and corrects it."""
        return self._deadline_floor

    def outstanding(self) -> list[H]:
        """The handles of all tickets that have not ended, each once."""
        tickets = {id(run.ticket): run.ticket for run in self._runs()}
        return [ticket.handle for ticket in tickets.values() if ticket.remaining > 0]

    def take_finished(self) -> list[Ticket[H]]:
        """The tickets that ended since the last call."""
        finished = self._finished
        if finished:
            self._finished = []
        return finished

    # --- events ---

    def submit(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[common.Properties],
        transient: bool,
        deadline: float,
        handle: H,
    ) -> None:
        """New messages, at least one, each within `limits.message_bytes_max`."""
        count = len(bodies)
        assert count > 0
        ticket = Ticket(count, deadline, handle)
        run = Run(ticket, bodies, 0, count, properties, transient)
        self._pending.append(run)
        self._pending_messages += count
        self._pending_bytes += run.size_bytes
        if self._deadline_floor is None or deadline < self._deadline_floor:
            self._deadline_floor = deadline

    def identity(self) -> bytes:
        """The producer id for the next stream; a new one if the old one is used up."""
        assert self.phase is Phase.CLOSED, self.phase
        if self._sealed and not self._unsent:
            self._become_new_producer()
        return self.producer_id

    def opened(self, last_sequence: int, limits: Limits) -> None:
        """A stream is open under `identity()`; the queue has this producer to `last_sequence`."""
        assert self.phase is Phase.CLOSED, self.phase
        assert not self._sent
        self.phase = Phase.OPEN
        self.limits = limits
        self.last_sequence = last_sequence
        if self._next_sequence == 1 and not self._sealed:
            # An id that the user gave, and used before: go on after what is there.
            self._next_sequence = last_sequence + 1
            return
        if not self._joins(last_sequence):
            self._seal_after(last_sequence)
        for flight in self._unsent:
            if flight.first > last_sequence:
                flight.maybe = False
        self._cut_to_limits()
        self._finish_if_used_up()

    def confirmed(self, first: int, last: int) -> None:
        """The node has `first..last` as safe as was asked for. Unknown ones are ignored."""
        sent = self._sent
        # Nearly always: the oldest flights, whole.
        while sent and first <= sent[0].first and sent[0].last <= last:
            self._confirm_flight(sent.popleft())
        if (sent and sent[0].first <= last) or (self._unsent and self._unsent[0].first <= last):
            for flight in self._extract(first, last):
                self._confirm_flight(flight)
        self._finish_if_used_up()

    def rejected(self, first: int, last: int, retryable: bool, error: RingMQError) -> None:
        """The node refused `first..last`. Never enqueued, unless `error` is OutcomeUnknownError."""
        if error.reason == "SEQUENCE_GAP":
            # The echo of an earlier refusal, or a numbering that only a new
            # `opened` can put right. Not the reason why anything waits.
            self._forget_maybe(first)
        elif error.reason == "UNKNOWN_PRODUCER":
            self.trouble = error
            self._forget_maybe(first)
            self._seal_after(first - 1)
        elif retryable:
            self.trouble = error
            if not isinstance(error, OutcomeUnknownError):
                self._forget_maybe(first)
        else:
            for flight in self._extract(first, last):
                self._leave_window(flight)
                for run in flight.runs:
                    self._fail_run(run, error)
            self._seal_after(first - 1)
        if self.phase is Phase.OPEN:
            self.phase = Phase.FINISHING

    def moved(self) -> None:
        """The node will end this stream; what it still says counts."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.FINISHING

    def ended(self, trouble: RingMQError | None = None) -> None:
        """The stream is gone, or could not be opened. What is unconfirmed is to be sent again."""
        self.phase = Phase.CLOSED
        if trouble is not None:
            self.trouble = trouble
        self._sent.extend(self._unsent)
        self._unsent, self._sent = self._sent, deque()

    def expire(self, now: float) -> None:
        """Ends what has passed its deadline."""
        if self._deadline_floor is None or now < self._deadline_floor:
            return
        for flight in (*self._sent, *self._unsent):
            for run in flight.runs:
                if run.ticket.deadline <= now:
                    self._fail_run(run, self._late(maybe=flight.maybe))
        kept: deque[Run[H]] = deque()
        for run in self._pending:
            if run.ticket.deadline <= now:
                self._pending_messages -= run.count
                self._pending_bytes -= run.size_bytes
                self._fail_run(run, self._late(maybe=False))
            else:
                kept.append(run)
        self._pending = kept
        self._deadline_floor = min(
            (run.ticket.deadline for run in self._runs() if run.ticket.remaining > 0),
            default=None,
        )

    def fail_all(self, error: RingMQError, *, maybe_error: RingMQError | None = None) -> None:
        """Ends everything: with `maybe_error` (if given) what may be in the queue already."""
        for flight in (*self._sent, *self._unsent):
            for run in flight.runs:
                self._fail_run(run, maybe_error if maybe_error and flight.maybe else error)
        for run in self._pending:
            self._fail_run(run, error)
        # Their sequences are not to be used again, and will not be filled.
        self._sealed = self._sealed or bool(self._sent or self._unsent)
        self._sent.clear()
        self._unsent.clear()
        self._pending.clear()
        self._pending_messages = self._pending_bytes = 0
        self._window_used_messages = self._window_used_bytes = 0
        self._deadline_floor = None
        self._finish_if_used_up()

    # --- sending ---

    def next_flight(self) -> Flight[H] | None:
        """What to send now, if anything: first what is to be repeated, then new messages."""
        if self.phase is not Phase.OPEN:
            return None
        if self._unsent:
            flight = self._unsent.popleft()
        elif self._pending and not self._sealed:
            cut = self._cut()
            if cut is None:
                return None
            flight = cut
        else:
            return None
        flight.maybe = True
        self._sent.append(flight)
        return flight

    def _cut(self) -> Flight[H] | None:
        """The next flight out of what is pending, or None while the window has too little room.

        Too little is less than a whole batch when more than that is waiting: else
        each small confirm would bring forth a small batch, for ever (TCP's silly
        window). With nothing on its way, anything is enough.
        """
        limits = self.limits
        messages_max = min(
            limits.batch_messages_max, -(-self.window_messages // BATCHES_PER_WINDOW)
        )
        bytes_max = min(limits.batch_bytes_max, -(-self.window_bytes // BATCHES_PER_WINDOW))
        if self._window_used_messages:
            room = self.window_messages - self._window_used_messages
            if room < min(self._pending_messages, messages_max):
                return None
            run = self._pending[0]
            room_bytes = self.window_bytes - self._window_used_bytes
            # Sizes are looked at only where they can decide.
            if room_bytes < max(bytes_max, run.sizes(run.start + 1)[0]):
                sizes = run.sizes(min(run.stop, run.start + messages_max))
                if room_bytes < max(min(bytes_max, sum(sizes)), sizes[0]):
                    return None
        runs, size_bytes = self._take_pending(messages_max, bytes_max)
        flight = Flight(self._next_sequence, runs, size_bytes)
        self._next_sequence = flight.last + 1
        self._pending_messages -= flight.count
        self._pending_bytes -= size_bytes
        self._window_used_messages += flight.count
        self._window_used_bytes += size_bytes
        return flight

    def _take_pending(self, messages_max: int, bytes_max: int) -> tuple[list[Run[H]], int]:
        """Runs of the same attributes within the bounds; the first message always passes."""
        pending = self._pending
        transient = pending[0].transient
        runs: list[Run[H]] = []
        count = size_bytes = 0
        while pending and count < messages_max and pending[0].transient == transient:
            run = pending[0]
            fits = min(run.stop - run.start, messages_max - count)
            sizes = run.sizes(run.start + fits)
            total = sum(sizes)
            if size_bytes + total > bytes_max:
                fits = bisect_right(list(accumulate(sizes)), bytes_max - size_bytes)
                if fits == 0:
                    if runs:
                        break
                    fits = 1
                total = sum(sizes[:fits])
            count += fits
            size_bytes += total
            if fits == run.stop - run.start:
                runs.append(pending.popleft())
            else:
                head, pending[0] = run.split(fits)
                runs.append(head)
                break
        return runs, size_bytes

    # --- inside ---

    def _runs(self) -> list[Run[H]]:
        numbered = [run for queue in (self._sent, self._unsent) for f in queue for run in f.runs]
        return numbered + list(self._pending)

    def _joins(self, last_sequence: int) -> bool:
        """Whether what is unsent, sent as it is, is what the node expects after `last_sequence`."""
        expected = last_sequence + 1
        for flight in self._unsent:
            if flight.last < expected:
                continue
            if flight.first > expected:
                return False
            # Expired, and never arrived: better not to send it now.
            if any(run.ticket.remaining <= 0 for run in flight.runs):
                return False
            expected = flight.last + 1
        return expected == self._next_sequence

    def _seal_after(self, last: int) -> None:
        """The id takes no new messages; flights after `last` lose their sequences."""
        self._sealed = True
        moved: list[Run[H]] = []
        for flight in self._extract(last + 1, self._next_sequence):
            self._leave_window(flight)
            moved += (run for run in flight.runs if run.ticket.remaining > 0)
        self._pending.extendleft(reversed(moved))
        self._pending_messages += sum(run.count for run in moved)
        self._pending_bytes += sum(run.size_bytes for run in moved)

    def _extract(self, first: int, last: int) -> list[Flight[H]]:
        """Takes the messages `first..last` out of the flights, splitting where needed."""
        taken: list[Flight[H]] = []
        for name in ("_sent", "_unsent"):
            kept: deque[Flight[H]] = deque()
            for flight in getattr(self, name):
                if flight.last < first or flight.first > last:
                    kept.append(flight)
                    continue
                middle = flight
                if middle.first < first:
                    head, middle = middle.split(first - middle.first)
                    kept.append(head)
                if middle.last > last:
                    middle, tail = middle.split(last - middle.first + 1)
                    kept.append(tail)
                taken.append(middle)
            setattr(self, name, kept)
        return taken

    def _cut_to_limits(self) -> None:
        """Another node may take less in one request than the one before."""
        fitting: deque[Flight[H]] = deque()
        while self._unsent:
            flight = self._unsent.popleft()
            over = (
                flight.count > self.limits.batch_messages_max
                or flight.size_bytes > self.limits.batch_bytes_max
            )
            if over and flight.count > 1:
                self._unsent.extendleft(reversed(flight.split(flight.count // 2)))
            else:
                fitting.append(flight)
        self._unsent = fitting

    def _forget_maybe(self, first: int) -> None:
        """The node has said that nothing from `first` on is in the queue."""
        for flight in self._sent:
            if flight.first >= first:
                flight.maybe = False

    def _finish_if_used_up(self) -> None:
        """A sealed id with nothing left to confirm: the stream gives way to the next id's."""
        if self._sealed and self.phase is Phase.OPEN and not (self._sent or self._unsent):
            self.phase = Phase.FINISHING

    def _become_new_producer(self) -> None:
        assert not self._sent
        assert not self._unsent
        self.producer_id = self._new_id()
        self._next_sequence = 1
        self.last_sequence = 0
        self._sealed = False

    def _leave_window(self, flight: Flight[H]) -> None:
        self._window_used_messages -= flight.last - flight.first + 1
        self._window_used_bytes -= flight.size_bytes

    def _confirm_flight(self, flight: Flight[H]) -> None:
        self._leave_window(flight)
        for run in flight.runs:
            ticket = run.ticket
            if ticket.remaining > 0:
                ticket.remaining -= run.stop - run.start
                if ticket.remaining == 0:
                    self._finished.append(ticket)

    def _fail_run(self, run: Run[H], error: RingMQError) -> None:
        ticket = run.ticket
        if ticket.remaining <= 0:
            return
        # "May have been done" is the stronger news for a caller who thinks of repeating.
        if ticket.error is None or isinstance(error, OutcomeUnknownError):
            ticket.error = error
        ticket.failed.append((run.start, run.stop - 1))
        ticket.remaining -= run.count
        if ticket.remaining == 0:
            self._finished.append(ticket)

    def _late(self, *, maybe: bool) -> RingMQError:
        why = f"; last trouble: {self.trouble}" if self.trouble is not None else ""
        if maybe:
            return OutcomeUnknownError(f"not confirmed within the deadline{why}")
        if self.trouble is not None and not isinstance(self.trouble, OutcomeUnknownError):
            return self.trouble.copy()
        return UnavailableError(f"not sent within the deadline{why}")

    def check(self) -> None:
        """Asserts the invariants; for tests and simulation."""
        flights = [*self._sent, *self._unsent]
        assert all(a.last < b.first for a, b in pairwise(flights))
        assert all(f.last < self._next_sequence for f in flights)
        assert self._window_used_messages == sum(f.count for f in flights)
        assert self._window_used_bytes == sum(f.size_bytes for f in flights)
        assert self._pending_messages == sum(run.count for run in self._pending)
        assert self._pending_bytes == sum(sum(run.sizes(run.stop)) for run in self._pending)
        assert all(run.ticket.remaining > 0 for run in self._pending)
        assert not (self.phase is Phase.CLOSED and self._sent)
        for flight in flights:
            assert flight.count == sum(run.count for run in flight.runs)
            assert flight.size_bytes == sum(sum(run.sizes(run.stop)) for run in flight.runs)
