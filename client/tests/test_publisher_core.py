"""The publisher's core against a model of a node that is as nasty as the proto allows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq.calls.status import from_reason
from ringmq.errors import (
    BadRequestError,
    MessageTooLargeError,
    OutcomeUnknownError,
    RingMQError,
    TooFewSynchronisedError,
    UnavailableError,
)
from ringmq.publishing.core import Flight, Limits, Phase, PublisherCore, Ticket
from ringmq.v1 import common_pb2 as common

LIMITS = Limits(message_bytes_max=1000, batch_bytes_max=1000, batch_messages_max=100)
FAR = 1e9


def ids() -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        yield b"producer-%d" % number


def core_of(window_messages: int = 8, producer_id: bytes | None = None) -> PublisherCore[int]:
    source = ids()
    return PublisherCore(
        new_id=lambda: next(source),
        window_messages=window_messages,
        window_bytes=10_000,
        producer_id=producer_id,
    )


def bodies_of(flight: Flight[int]) -> list[bytes]:
    return [body for run in flight.runs for body in run.bodies[run.start : run.stop]]


def submit(
    core: PublisherCore[int], *bodies: bytes, handle: int = 0, deadline: float = FAR
) -> None:
    core.submit(bodies, (), False, deadline, handle)


def drain(core: PublisherCore[int]) -> list[Flight[int]]:
    flights = []
    while (flight := core.next_flight()) is not None:
        flights.append(flight)
        core.check()
    return flights


def outcome(core: PublisherCore[int]) -> dict[int, type[RingMQError] | None]:
    return {t.handle: type(t.error) if t.error else None for t in core.take_finished()}


def open_core(core: PublisherCore[int], last_sequence: int = 0) -> bytes:
    identity = core.identity()
    core.opened(last_sequence, LIMITS)
    return identity


def test_messages_gather_while_the_window_is_full_and_go_in_whole_batches() -> None:
    core = core_of(window_messages=8)
    open_core(core)
    submit(core, b"first")
    assert [(f.first, f.last) for f in drain(core)] == [(1, 1)]
    for number in range(20):
        submit(core, b"%d" % number)
    # A quarter of the window each; the last message of room is not worth a batch.
    assert [(f.first, f.last) for f in drain(core)] == [(2, 3), (4, 5), (6, 7)]
    core.confirmed(1, 1)
    assert [(f.first, f.last) for f in drain(core)] == [(8, 9)]
    core.confirmed(2, 9)
    core.check()
    assert core.outstanding_messages == 12


def test_a_message_larger_than_a_quarter_of_the_window_goes_alone() -> None:
    core = core_of()
    open_core(core)
    submit(core, b"x" * 900)
    submit(core, b"y" * 980, b"z")
    assert [len(bodies_of(f)) for f in drain(core)] == [1, 1, 1]


def test_after_a_break_the_same_messages_have_the_same_sequences() -> None:
    core = core_of(window_messages=4)
    identity = open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    before = [(f.first, bodies_of(f)) for f in drain(core)]
    core.confirmed(2, 2)  # a transient one may be confirmed before its elders
    core.ended(UnavailableError("broken"))
    core.check()
    assert core.identity() == identity
    core.opened(3, LIMITS)
    again = [(f.first, bodies_of(f)) for f in drain(core)]
    assert again == [each for each in before if each[0] != 2]
    core.confirmed(1, 4)
    assert outcome(core) == dict.fromkeys(range(4))


def test_a_confirm_of_the_middle_of_a_batch_leaves_its_ends() -> None:
    core = core_of(window_messages=40)
    open_core(core)
    submit(core, *(b"%d" % number for number in range(5)))
    assert [(f.first, f.last) for f in drain(core)] == [(1, 5)]
    core.confirmed(2, 3)
    core.confirmed(0, 1)
    core.check()
    assert core.outstanding_messages == 2
    assert outcome(core) == {}
    core.confirmed(3, 9)
    assert outcome(core) == {0: None}


def test_a_retryable_refusal_ends_the_stream_and_all_that_follows_is_sent_again() -> None:
    core = core_of(window_messages=4)
    identity = open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    drain(core)
    core.confirmed(1, 1)
    core.rejected(2, 2, True, from_reason(common.REASON_TOO_FEW_SYNCHRONISED))
    assert core.finishing
    assert core.next_flight() is None
    core.rejected(3, 3, False, from_reason(common.REASON_SEQUENCE_GAP))
    core.rejected(4, 4, True, from_reason(common.REASON_SEQUENCE_GAP))
    core.ended()
    assert core.identity() == identity
    core.opened(1, LIMITS)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(2, [b"1"]), (3, [b"2"]), (4, [b"3"])]
    core.confirmed(2, 4)
    assert outcome(core) == dict.fromkeys(range(4))


def test_after_a_refusal_for_good_the_others_go_on_under_a_new_id_once_the_old_is_confirmed() -> (
    None
):
    core = core_of(window_messages=4)
    old = open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    drain(core)
    core.rejected(2, 2, False, MessageTooLargeError("too large"))
    core.rejected(3, 3, True, from_reason(common.REASON_SEQUENCE_GAP))
    core.check()
    assert outcome(core) == {1: MessageTooLargeError}
    core.ended()
    # The first is in the queue, but not confirmed: it needs the old id.
    assert core.identity() == old
    core.opened(1, LIMITS)
    assert [f.first for f in drain(core)] == [1]
    core.confirmed(1, 1)
    assert core.finishing
    core.ended()
    assert open_core(core) != old
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"2"]), (2, [b"3"])]
    core.confirmed(1, 2)
    assert outcome(core) == {0: None, 2: None, 3: None}
    assert core.outstanding_messages == 0


def test_a_batch_call_says_which_of_its_bodies_were_refused() -> None:
    core = core_of(window_messages=400)
    open_core(core)
    submit(core, *(b"%d" % number for number in range(10)))
    assert len(drain(core)) == 1
    core.rejected(1, 10, True, from_reason(common.REASON_TOO_FEW_SYNCHRONISED))
    core.ended()
    core.opened(0, Limits(1000, 1000, 4))  # a node with smaller batches
    assert [f.count for f in drain(core)] == [2, 3, 2, 3]
    core.confirmed(1, 2)
    core.rejected(3, 5, False, BadRequestError("no"))
    core.ended()
    open_core(core)
    drain(core)
    core.confirmed(1, 5)
    (ticket,) = core.take_finished()
    assert isinstance(ticket.error, BadRequestError)
    assert ticket.failed == [(2, 4)]


def test_a_forgotten_producer_begins_anew() -> None:
    core = core_of()
    old = open_core(core)
    submit(core, b"a", handle=1)
    drain(core)
    core.confirmed(1, 1)
    submit(core, b"b", handle=2)
    drain(core)
    core.rejected(2, 2, False, from_reason(common.REASON_UNKNOWN_PRODUCER))
    core.ended()
    assert open_core(core) != old
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"b"])]
    core.confirmed(1, 1)
    assert outcome(core) == {1: None, 2: None}


def test_an_id_of_ones_own_goes_on_where_it_was() -> None:
    core = core_of(producer_id=b"mine")
    assert open_core(core, last_sequence=41) == b"mine"
    submit(core, b"a")
    assert [f.first for f in drain(core)] == [42]
    core.ended()
    assert core.identity() == b"mine"
    core.opened(41, LIMITS)
    assert [f.first for f in drain(core)] == [42]


def test_a_deadline_says_unknown_only_of_what_may_be_in_the_queue() -> None:
    core = core_of(window_messages=4)
    open_core(core)
    submit(core, b"sent", handle=1, deadline=10)
    drain(core)
    core.ended(UnavailableError("broken"))
    submit(core, b"waiting", handle=2, deadline=11)
    submit(core, b"patient", handle=3)
    assert core.next_deadline() == 10
    core.expire(9.9)
    assert outcome(core) == {}
    core.expire(11)
    assert outcome(core) == {1: OutcomeUnknownError, 2: UnavailableError}
    # The node never got the first one: its sequence is given up, with its id.
    open_core(core, last_sequence=0)
    core.ended()
    open_core(core)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"patient"])]


def test_a_message_refused_until_its_deadline_fails_with_the_reason() -> None:
    core = core_of()
    open_core(core)
    submit(core, b"a", handle=1, deadline=10)
    drain(core)
    core.rejected(1, 1, True, from_reason(common.REASON_TOO_FEW_SYNCHRONISED))
    core.ended()
    core.expire(10)
    assert outcome(core) == {1: TooFewSynchronisedError}


def test_fail_all_ends_every_ticket_and_the_id() -> None:
    core = core_of(window_messages=2)
    old = open_core(core)
    for number in range(4):
        submit(core, b"x", handle=number)
    drain(core)
    core.fail_all(UnavailableError("no"), maybe_error=OutcomeUnknownError("perhaps"))
    core.check()
    assert outcome(core) == {
        0: OutcomeUnknownError,
        1: OutcomeUnknownError,
        2: UnavailableError,
        3: UnavailableError,
    }
    assert core.next_deadline() is None
    core.ended()
    assert core.identity() != old


class NastyNode(RuleBasedStateMachine):
    """Every message ends once; what is confirmed is in the queue once, in order."""

    def __init__(self) -> None:
        super().__init__()
        source = ids()
        self.core: PublisherCore[int] = PublisherCore(
            new_id=lambda: next(source), window_messages=7, window_bytes=600
        )
        self.now = 0.0
        self.sizes: dict[int, int] = {}  # bodies of each ticket
        self.ended: dict[int, Ticket[int]] = {}
        # The node: what it has, by producer, and what it has said.
        self.queue: list[bytes] = []
        self.last: Counter[bytes] = Counter()
        self.meaning: dict[tuple[bytes, int], bytes] = {}
        # The stream: requests on their way there, answers on their way back.
        self.identity = b""
        self.requests: deque[tuple[int, list[bytes]]] = deque()
        self.unconfirmed: list[int] = []
        self.confirmed: set[bytes] = set()
        self.answers: deque[tuple[str, int, int, RingMQError | None]] = deque()

    @property
    def is_open(self) -> bool:
        return self.core.phase is not Phase.CLOSED

    def settle(self) -> None:
        for ticket in self.core.take_finished():
            assert ticket.handle not in self.ended, "ended twice"
            self.ended[ticket.handle] = ticket

    def pump(self) -> None:
        while (flight := self.core.next_flight()) is not None:
            assert flight.count <= 5
            bodies = bodies_of(flight)
            for offset, body in enumerate(bodies):
                # A sequence never means two messages.
                key = (self.identity, flight.first + offset)
                assert self.meaning.setdefault(key, body) == body
            self.requests.append((flight.first, bodies))

    @rule(count=st.integers(1, 12), life=st.sampled_from([3.0, 50.0, FAR]))
    def submit(self, count: int, life: float) -> None:
        ticket = len(self.sizes)
        self.sizes[ticket] = count
        bodies = [b"%06d.%03d" % (ticket, index) for index in range(count)]
        self.core.submit(bodies, (), ticket % 3 == 0, self.now + life, ticket)
        self.pump()

    @precondition(lambda self: not self.is_open)
    @rule()
    def open(self) -> None:
        self.identity = self.core.identity()
        self.core.opened(self.last[self.identity], Limits(1000, 200, 5))
        self.pump()

    def take(self) -> None:
        first, bodies = self.requests.popleft()
        last = first + len(bodies) - 1
        if first > self.last[self.identity] + 1:
            error = from_reason(common.REASON_SEQUENCE_GAP)
            self.answers.append(("rejected", first, last, error))
            return
        self.queue += bodies[max(0, self.last[self.identity] + 1 - first) :]
        self.last[self.identity] = max(self.last[self.identity], last)
        self.unconfirmed += range(first, last + 1)

    @precondition(lambda self: self.requests)
    @rule()
    def node_takes(self) -> None:
        self.take()

    @precondition(lambda self: self.requests)
    @rule(kind=st.sampled_from(["retry", "never", "unknown"]))
    def node_refuses(self, kind: str) -> None:
        first, bodies = self.requests[0]
        last = first + len(bodies) - 1
        if first != self.last[self.identity] + 1:
            return self.take()
        self.requests.popleft()
        error: RingMQError = BadRequestError("never")
        if kind == "retry":
            error = TooFewSynchronisedError("later")
        if kind == "unknown":
            error = OutcomeUnknownError("who knows")
        self.answers.append(("retry" if kind != "never" else "never", first, last, error))
        return None

    @precondition(lambda self: self.unconfirmed)
    @rule(data=st.data())
    def node_confirms(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.unconfirmed) - 1))
        high = data.draw(st.integers(low, len(self.unconfirmed) - 1))
        part = self.unconfirmed[low : high + 1]
        del self.unconfirmed[low : high + 1]
        for sequence in part:
            self.confirmed.add(self.meaning[self.identity, sequence])
            self.answers.append(("confirmed", sequence, sequence, None))

    @precondition(lambda self: self.answers)
    @rule()
    def answer_arrives(self) -> None:
        kind, first, last, error = self.answers.popleft()
        if kind == "confirmed":
            self.core.confirmed(first, last)
        else:
            assert error is not None
            self.core.rejected(first, last, kind == "retry", error)
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
        # A mirror takes over, and has not got all that was not confirmed.
        while lost and self.queue and self.queue[-1] not in self.confirmed:
            last = self.last[self.identity]
            if self.meaning.get((self.identity, last)) != self.queue[-1]:
                break
            self.queue.pop()
            self.last[self.identity] -= 1
            lost -= 1
        self.core.ended(UnavailableError("broken"))
        self.settle()

    @precondition(lambda self: self.core.finishing and not self.requests and not self.answers)
    @rule()
    def stream_ends(self) -> None:
        # What it has and did not confirm, it confirms when that is sent again.
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
                self.answers.append(("confirmed", sequence, sequence, None))
                self.answer_arrives()
            elif self.answers:
                self.answer_arrives()
            else:
                assert self.core.finishing, "nothing moves"
                self.stream_ends()
        assert set(self.ended) == set(self.sizes), "not every ticket has ended"
        self.nothing_twice_nothing_out_of_order()
        enqueued = set(self.queue)
        for number, ticket in self.ended.items():
            failed = {i for a, b in ticket.failed for i in range(a, b + 1)}
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
