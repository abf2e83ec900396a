"""The publisher's core against a model of a node that is as nasty as the protocol allows."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from publisher_cores import FAR, ORIGIN, Core, bodies_of

from ringmq.errors import (
    BadRequestError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ProtocolError,
    RingMQError,
    TooFewSynchronisedError,
    UnavailableError,
)
from ringmq.publishing.answers import Limits, PublishRefusal
from ringmq.publishing.core import PublisherCore, PublisherPhase
from ringmq.publishing.tickets import PERSISTENT, Attributes, Ticket

TOO_LARGE = MessageTooLargeError("properties of 200000 bytes")


class NastyNode(RuleBasedStateMachine):
    """Every message ends once; a confirmed message is in the queue once, in order. No message is
    refused for the fault of another caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.core: Core = PublisherCore(
            producer_id=b"mine", is_own_id=True, window_messages=7, window_bytes=600
        )
        self.now = 0.0
        self.sizes: dict[int, int] = {}  # bodies of each ticket
        self.ended: dict[int, Ticket[int, str]] = {}
        # Bodies that the node refuses, with the whole request that they come in.
        self.guilty: set[bytes] = set()
        # The node: its queue, in which the message with sequence n is the nth. So a program that
        # comes back under this id and is told n has n messages in the queue.
        self.queue: list[bytes] = []
        # The stream: requests on their way there, answers on their way back.
        self.requests: deque[tuple[int, list[bytes]]] = deque()
        self.unconfirmed: list[int] = []
        self.safe: set[bytes] = set()
        # A confirm, or a refusal with its error.
        self.answers: deque[tuple[int, int, tuple[PublishRefusal, RingMQError] | None]] = deque()

    @property
    def last(self) -> int:
        return len(self.queue)

    @property
    def is_open(self) -> bool:
        return self.core.phase is not PublisherPhase.CLOSED

    def settle(self) -> None:
        for ticket in self.core.take_finished():
            assert ticket.handle not in self.ended, "ended twice"
            self.ended[ticket.handle] = ticket

    def pump(self) -> None:
        while (flight := self.core.next_flight()) is not None:
            assert flight.count <= 5
            bodies = bodies_of(flight)
            # What is in the queue keeps its sequence.
            known = self.queue[flight.first - 1 : flight.last]
            assert bodies[: len(known)] == known
            self.requests.append((flight.first, bodies))

    @rule(
        count=st.integers(1, 12),
        life=st.sampled_from([3.0, 50.0, FAR]),
        guilty=st.sampled_from([None, None, None, 0, 3]),
    )
    def submit(self, count: int, life: float, guilty: int | None) -> None:
        ticket = len(self.sizes)
        self.sizes[ticket] = count
        bodies = [b"%06d.%03d" % (ticket, index) for index in range(count)]
        if guilty is not None:
            self.guilty.add(bodies[guilty % count])
        self.core.submit(
            bodies,
            (),
            (),
            Attributes(transient=True) if ticket % 3 == 0 else PERSISTENT,
            self.now + life,
            ticket,
        )
        self.pump()

    @precondition(lambda self: not self.is_open)
    @rule()
    def open(self) -> None:
        # The node has waited until nothing that it tells can be lost any more.
        self.safe |= set(self.queue)
        self.core.opened(self.last, Limits(1000, 200, 5), ORIGIN)
        self.pump()

    def take(self) -> None:
        first, bodies = self.requests.popleft()
        last = first + len(bodies) - 1
        if not self.guilty.isdisjoint(bodies):
            self.answers.append((first, last, (PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)))
            return
        if first > self.last + 1:
            self.answers.append((first, last, (PublishRefusal.GAP, ProtocolError("a gap"))))
            return
        self.queue += bodies[max(0, self.last + 1 - first) :]
        self.unconfirmed += range(first, last + 1)

    @precondition(lambda self: self.requests)
    @rule()
    def node_takes(self) -> None:
        self.take()

    @precondition(lambda self: self.requests)
    @rule(
        refusal=st.sampled_from(
            [
                (PublishRefusal.RETRY, TooFewSynchronisedError("later")),
                (PublishRefusal.FOR_GOOD, BadRequestError("never")),
                (PublishRefusal.RETRY, OutcomeUnknownError("perhaps")),
            ]
        )
    )
    def node_refuses(self, refusal: tuple[PublishRefusal, RingMQError]) -> None:
        first, bodies = self.requests[0]
        if first == self.last + 1:
            self.requests.popleft()
            self.answers.append((first, first + len(bodies) - 1, refusal))
        else:
            self.take()

    @precondition(lambda self: self.unconfirmed)
    @rule(data=st.data())
    def node_confirms(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.unconfirmed) - 1))
        high = data.draw(st.integers(low, len(self.unconfirmed) - 1))
        part = self.unconfirmed[low : high + 1]
        del self.unconfirmed[low : high + 1]
        for sequence in part:
            self.safe.add(self.queue[sequence - 1])
            self.answers.append((sequence, sequence, None))

    @precondition(lambda self: self.answers)
    @rule()
    def answer_arrives(self) -> None:
        first, last, refusal = self.answers.popleft()
        if refusal is None:
            self.core.confirmed(first, last)
        else:
            self.core.rejected(first, last, *refusal)
        self.settle()
        self.pump()

    @precondition(lambda self: self.is_open)
    @rule(processed=st.integers(0, 3), lost=st.integers(0, 5))
    def stream_breaks(self, processed: int, lost: int) -> None:
        for _ in range(min(processed, len(self.requests))):
            self.take()
        self.requests.clear()
        self.answers.clear()
        self.unconfirmed = []
        # A mirror takes over. It lacks some of the messages that were not confirmed.
        while lost and self.queue and self.queue[-1] not in self.safe:
            self.queue.pop()
            lost -= 1
        self.core.ended(UnavailableError("broken"))
        self.settle()

    @precondition(lambda self: self.core.finishing and not self.requests and not self.answers)
    @rule()
    def stream_ends(self) -> None:
        # Messages that it enqueued and didn't confirm are confirmed when they are sent again.
        self.unconfirmed = []
        self.core.ended()

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.core.expire(self.now)
        self.settle()

    @invariant()
    def nothing_twice_nothing_out_of_order(self) -> None:
        self.core.check()
        assert all(a < b for a, b in zip(self.queue, self.queue[1:], strict=False))

    def teardown(self) -> None:
        for _ in range(1000):
            if not self.core.outstanding():
                break
            if not self.is_open:
                self.open()
            elif self.requests:
                self.take()
            elif self.unconfirmed:
                sequence = self.unconfirmed.pop(0)
                self.answers.append((sequence, sequence, None))
                self.answer_arrives()
            elif self.answers:
                self.answer_arrives()
            else:
                assert self.core.finishing, "nothing moves"
                self.stream_ends()
        assert set(self.ended) == set(self.sizes), "not every ticket has ended"
        self.nothing_twice_nothing_out_of_order()
        enqueued = set(self.queue)
        assert not enqueued & self.guilty
        for number, ticket in self.ended.items():
            failed = {i for a, b in ticket.failed for i in range(a, b + 1)}
            if self.guilty.isdisjoint(ticket.bodies):
                assert ticket.error is not TOO_LARGE, "refused for another one's message"
            assert bool(failed) == (ticket.error is not None)
            surely_not = failed if not isinstance(ticket.error, OutcomeUnknownError) else set()
            for index in range(self.sizes[number]):
                body = b"%06d.%03d" % (number, index)
                if index not in failed:
                    assert body in enqueued, "lost"
                if index in surely_not:
                    assert body not in enqueued, "said to have failed"


TestNastyNode = NastyNode.TestCase
TestNastyNode.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestNastyNode = pytest.mark.slow(TestNastyNode)
