"""The core of a publisher to an exchange, against a model of queues that any node may reach."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from publisher_cores import FAR, LIMITS, ORIGIN, Core, bodies_of, drain, outcome

from ringmq.errors import (
    BadRequestError,
    MessageTooLargeError,
    OutcomeUnknownError,
    RingMQError,
    UnavailableError,
    UnroutableError,
)
from ringmq.publishing.answers import Limits, PublishRefusal
from ringmq.publishing.core import PublisherCore, PublisherPhase
from ringmq.publishing.tickets import Attributes, Ticket

NO_QUEUE = UnroutableError("nobody")
TOO_LARGE = MessageTooLargeError("properties of 200000 bytes")


def routed_core(window_messages: int = 8) -> Core:
    return PublisherCore(
        producer_id=b"p",
        is_routed=True,
        window_messages=window_messages,
        window_bytes=10_000,
        first_sequence=11,
    )


def submit(core: Core, key: str, *bodies: bytes, handle: int = 0, deadline: float = FAR) -> None:
    core.submit(bodies, (), (), Attributes(routing_key=key), deadline, handle)


class RoutedMachine(RuleBasedStateMachine):
    """Each ticket ends once; a sequence is never another message's; what is confirmed was there."""

    def __init__(self) -> None:
        super().__init__()
        self.core = routed_core(window_messages=7)
        self.now = 0.0
        self.tickets = 0
        self.ended: dict[int, Ticket[int, str]] = {}
        # What the queues have, by sequence; it stays, whatever becomes of streams.
        self.queues: dict[int, tuple[str, bytes]] = {}
        self.numbered: dict[int, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.requests: deque[tuple[int, str, list[bytes]]] = deque()

    @property
    def is_open(self) -> bool:
        return self.core.phase is not PublisherPhase.CLOSED

    def pump(self) -> None:
        for ticket in self.core.take_finished():
            assert ticket.handle not in self.ended
            self.ended[ticket.handle] = ticket
        while (flight := self.core.next_flight()) is not None:
            key = flight.attributes.routing_key
            bodies = bodies_of(flight)
            for sequence, body in enumerate(bodies, flight.first):
                assert self.numbered.setdefault(sequence, body) == body
                # Messages of one request have one key.
                assert body.startswith(key.encode())
            self.requests.append((flight.first, key, bodies))

    @rule(key=st.sampled_from("ab"), count=st.integers(1, 9), life=st.sampled_from([3.0, FAR]))
    def submit(self, key: str, count: int, life: float) -> None:
        self.tickets += 1
        bodies = [b"%s%06d.%03d" % (key.encode(), self.tickets, n) for n in range(count)]
        submit(self.core, key, *bodies, handle=self.tickets, deadline=self.now + life)
        self.pump()

    @precondition(lambda self: not self.is_open)
    @rule()
    def open(self) -> None:
        self.core.opened(0, Limits(1000, 200, 5), ORIGIN)
        self.pump()

    @precondition(lambda self: self.is_open)
    @rule()
    def stream_breaks(self) -> None:
        self.requests.clear()
        self.core.ended(UnavailableError("gone"))
        self.pump()

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 20))
    def some_queue_has_it(self, which: int) -> None:
        """In any order, and it may be told later, or never."""
        first, key, bodies = self.requests[which % len(self.requests)]
        for sequence, body in enumerate(bodies, first):
            assert self.queues.setdefault(sequence, (key, body)) == (key, body)

    @precondition(lambda self: self.requests and self.is_open)
    @rule(which=st.integers(0, 20), cut=st.integers(0, 4), returned=st.booleans())
    def confirm(self, which: int, cut: int, returned: bool) -> None:
        first, _, bodies = self.requests[which % len(self.requests)]
        last = first + max(0, len(bodies) - 1 - cut)
        if returned:
            self.core.returned(first, last, NO_QUEUE)
        self.core.confirmed(first, last)
        self.confirmed |= set(bodies[: last - first + 1])
        self.pump()

    @precondition(lambda self: self.requests and self.is_open)
    @rule(
        which=st.integers(0, 20),
        refusal=st.sampled_from(
            [PublishRefusal.FOR_GOOD, PublishRefusal.SOME_FOR_GOOD, PublishRefusal.RETRY]
        ),
    )
    def refuse(self, which: int, refusal: PublishRefusal) -> None:
        first, _, bodies = self.requests[which % len(self.requests)]
        may_pass = refusal is PublishRefusal.RETRY
        error: RingMQError = UnavailableError("later") if may_pass else BadRequestError("never")
        self.core.rejected(first, first + len(bodies) - 1, refusal, error)
        self.pump()

    @rule(step=st.sampled_from([1.0, 5.0]))
    def time_passes(self, step: float) -> None:
        self.now += step
        self.core.expire(self.now)
        self.pump()

    @invariant()
    def holds(self) -> None:
        self.core.check()
        for ticket in self.ended.values():
            if ticket.error is None:
                assert set(ticket.bodies) <= self.confirmed

    def teardown(self) -> None:
        """Once faults stop, everything ends."""
        if self.is_open:
            self.stream_breaks()
        self.open()
        for _ in range(200):
            if not self.core.outstanding_messages:
                break
            if self.core.phase is PublisherPhase.FINISHING:
                self.stream_breaks()
                self.open()
            for first, _, bodies in [*self.requests]:
                self.core.confirmed(first, first + len(bodies) - 1)
                self.confirmed |= set(bodies)
            self.pump()
        assert not self.core.outstanding_messages
        assert len(self.ended) == self.tickets


TestRouted = RoutedMachine.TestCase
TestRouted.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_what_is_unconfirmed_goes_out_again_under_its_sequences() -> None:
    core = routed_core()
    core.opened(0, LIMITS, ORIGIN)
    for key in "aba":
        submit(core, key, key.encode())
    assert [(f.first, f.attributes.routing_key) for f in drain(core)] == [
        (11, "a"),
        (12, "b"),
        (13, "a"),
    ]
    core.confirmed(12, 12)
    core.ended()
    # The answer of another node says nothing of what the queues have.
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "c", b"c")
    assert [flight.first for flight in drain(core)] == [11, 13, 14]


def test_a_refusal_for_good_leaves_a_hole_and_stops_nothing() -> None:
    core = routed_core()
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "a", b"1", handle=1)
    submit(core, "b", b"2", handle=2)
    drain(core)
    core.rejected(11, 11, PublishRefusal.FOR_GOOD, BadRequestError("no"))
    assert core.phase is PublisherPhase.OPEN
    core.confirmed(12, 12)
    submit(core, "a", b"3", handle=3)
    assert [flight.first for flight in drain(core)] == [13]
    assert outcome(core) == {1: BadRequestError, 2: None}


def test_callers_who_share_a_refused_request_go_alone_if_nothing_can_overtake_them() -> None:
    core = routed_core(window_messages=40)
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "b", b"0", handle=0)
    for number, body in enumerate((b"1", b"guilty", b"3"), 1):
        submit(core, "a", body, handle=number)
    assert [(f.first, f.last) for f in drain(core)] == [(11, 11), (12, 14)]
    core.rejected(12, 14, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    core.check()
    assert outcome(core) == {}
    # It would overtake them on this stream.
    submit(core, "a", b"4", handle=4)
    assert core.next_flight() is None
    core.confirmed(11, 11)
    core.ended()
    core.opened(0, LIMITS, ORIGIN)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [
        (12, [b"1"]),
        (13, [b"guilty"]),
        (14, [b"3"]),
        (15, [b"4"]),
    ]
    core.rejected(13, 13, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    assert core.phase is PublisherPhase.OPEN
    for sequence in (12, 14, 15):
        core.confirmed(sequence, sequence)
    assert outcome(core) == {0: None, 1: None, 2: MessageTooLargeError, 3: None, 4: None}


def test_callers_who_share_a_refused_request_fail_if_later_messages_may_be_enqueued() -> None:
    """No gap makes the node refuse what was sent behind them: sent again, they would come out of
    their order."""
    core = routed_core(window_messages=8)
    core.opened(0, LIMITS, ORIGIN)
    for number in range(4):
        submit(core, "a", b"%d" % number, handle=number)
    assert [(f.first, f.last) for f in drain(core)] == [(11, 12), (13, 14)]
    core.confirmed(13, 14)
    core.rejected(11, 12, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    assert core.phase is PublisherPhase.OPEN
    assert outcome(core) == {
        0: MessageTooLargeError,
        1: MessageTooLargeError,
        2: None,
        3: None,
    }


def test_what_expires_leaves_the_window() -> None:
    """A queue without a master must not keep messages to the others out for ever."""
    core = routed_core(window_messages=2)
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "dead", b"1", b"2", deadline=5.0, handle=1)
    drain(core)
    assert not core.room
    core.expire(6.0)
    assert outcome(core) == {1: OutcomeUnknownError}
    assert core.room
    submit(core, "alive", b"3", handle=2)
    assert [flight.first for flight in drain(core)] == [13]
    # A late confirm is nobody's.
    core.confirmed(11, 12)
    core.confirmed(13, 13)
    assert outcome(core) == {2: None}


@pytest.mark.parametrize("of", [(0, 2), (1, 1)])
def test_returned_messages_are_told_by_their_indexes(of: tuple[int, int]) -> None:
    core = routed_core(window_messages=100)
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "a", b"1", b"2", b"3", handle=1)
    [flight] = drain(core)
    core.returned(flight.first + of[0], flight.first + of[1], NO_QUEUE)
    assert core.take_finished() == []
    core.confirmed(flight.first, flight.last)
    [ticket] = core.take_finished()
    assert isinstance(ticket.error, UnroutableError)
    assert ticket.failed == [of]


@pytest.mark.parametrize("again", [False, True])
def test_what_a_broken_stream_has_returned_is_for_the_next_one_to_say(again: bool) -> None:
    """A queue may be bound by then: the message is in it, and `UnroutableError` says that it is in
    none. And who publishes each range of `failed` once more would have done so twice."""
    core = routed_core()
    core.opened(0, LIMITS, ORIGIN)
    submit(core, "a", b"1", b"2", handle=1)
    drain(core)
    core.returned(11, 12, NO_QUEUE)
    core.confirmed(11, 11)
    core.ended(UnavailableError("gone"))
    core.opened(0, LIMITS, ORIGIN)
    assert [flight.first for flight in drain(core)] == [12]
    if again:
        core.returned(12, 12, NO_QUEUE)
    core.confirmed(12, 12)
    [ticket] = core.take_finished()
    assert ticket.failed == [(0, 0), (1, 1)][: 2 if again else 1]
    assert isinstance(ticket.error, UnroutableError)
    submit(core, "a", b"3", handle=2)
    drain(core)
    core.confirmed(13, 13)
    assert outcome(core) == {2: None}
