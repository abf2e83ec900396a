"""The publisher's core, event by event: no loop, no wire, no clock."""

from __future__ import annotations

import pytest
from publisher_cores import (
    FAR,
    LIMITS,
    ORIGIN,
    Core,
    bodies_of,
    core_of,
    drain,
    open_core,
    outcome,
    submit,
)

from ringmq.errors import (
    BadRequestError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ProducerForgottenError,
    ProtocolError,
    QueueNotFoundError,
    TooFewSynchronisedError,
    UnavailableError,
)
from ringmq.publishing.answers import Limits, Origin, PublishRefusal
from ringmq.publishing.core import NEXT_PHASE, Happening, PublisherCore, PublisherPhase
from ringmq.publishing.epochs import SeenEpoch
from ringmq.publishing.tickets import (
    MESSAGE_OVERHEAD_BYTES,
    PERSISTENT,
)

GAP = ProtocolError("a gap", reason="SEQUENCE_GAP")
FORGOTTEN = ProtocolError("forgotten", reason="UNKNOWN_PRODUCER")
TOO_LARGE = MessageTooLargeError("properties of 200000 bytes")


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
    open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    before = [(f.first, bodies_of(f)) for f in drain(core)]
    core.confirmed(2, 2)  # a transient one may be confirmed before its elders
    core.ended(UnavailableError("broken"))
    core.check()
    core.opened(3, LIMITS, ORIGIN)
    again = [(f.first, bodies_of(f)) for f in drain(core)]
    assert again == [each for each in before if each[0] != 2]
    core.confirmed(1, 4)
    assert outcome(core) == dict.fromkeys(range(4))


def test_an_answer_of_an_older_master_is_refused_and_changes_nothing() -> None:
    """1. The new master confirms 1 to 15 and has 16 to 20. 2. The stream breaks, and the old master
    says that it has 9. Believed, that would send 16 to 20 under a new id, to be enqueued twice."""
    core = core_of(window_messages=40)
    core.opened(0, LIMITS, Origin("queue-1", 7))
    submit(core, *(b"%d" % number for number in range(1, 21)))
    drain(core)
    core.confirmed(1, 15)
    core.ended(UnavailableError("broken"))
    with pytest.raises(UnavailableError, match="epoch 6, of epoch 7 there is one as well"):
        core.opened(9, LIMITS, Origin("queue-1", 6))
    core.check()
    assert drain(core) == []
    core.ended(UnavailableError("older"))
    core.opened(20, LIMITS, Origin("queue-1", 7))
    assert [(f.first, f.last) for f in drain(core)] == [(16, 20)]
    core.confirmed(16, 20)
    core.ended()
    # Declared anew, the queue counts its epochs from 1.
    core.opened(0, LIMITS, Origin("queue-2", 1))


def test_publishers_of_one_queue_share_the_newest_epoch() -> None:
    seen = SeenEpoch()
    first, second = (
        Core(producer_id=b"p", window_messages=8, window_bytes=1000, seen=seen) for _ in "12"
    )
    first.opened(0, LIMITS, Origin("queue-1", 7))
    with pytest.raises(UnavailableError):
        second.opened(0, LIMITS, Origin("queue-1", 6))
    assert seen.epoch == 7


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
    open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    drain(core)
    core.confirmed(1, 1)
    core.rejected(2, 2, PublishRefusal.RETRY, TooFewSynchronisedError("later"))
    assert core.finishing
    assert core.next_flight() is None
    core.rejected(3, 3, PublishRefusal.GAP, GAP)
    core.rejected(4, 4, PublishRefusal.GAP, GAP)
    core.ended()
    core.opened(1, LIMITS, ORIGIN)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(2, [b"1"]), (3, [b"2"]), (4, [b"3"])]
    core.confirmed(2, 4)
    assert outcome(core) == dict.fromkeys(range(4))


def test_the_hole_of_a_refusal_for_good_is_closed_by_the_next_stream() -> None:
    """1. A message is refused for good; the next ones would go under a new id. 2. The program is
    started again, and comes back under its own. 3. It is told nothing of the messages under the
    new one, and sends them again. So they keep the id, and their sequences move up."""
    core = core_of(window_messages=4, producer_id=b"mine")
    open_core(core)
    for number in range(4):
        submit(core, b"%d" % number, handle=number)
    drain(core)
    core.rejected(2, 2, PublishRefusal.FOR_GOOD, MessageTooLargeError("too large"))
    core.rejected(3, 3, PublishRefusal.GAP, GAP)
    core.check()
    assert outcome(core) == {1: MessageTooLargeError}
    core.ended()
    # The first is in the queue, but not confirmed: it keeps its sequence.
    open_core(core, last_sequence=1)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"0"]), (2, [b"2"]), (3, [b"3"])]
    core.confirmed(1, 3)
    assert outcome(core) == {0: None, 2: None, 3: None}
    assert core.outstanding_messages == 0
    assert core.producer_id == b"mine"


def test_of_callers_who_share_a_request_only_the_one_with_the_refused_message_fails() -> None:
    """The node refuses it whole, and doesn't say which of its messages is at fault."""
    core = core_of(window_messages=40, producer_id=b"mine")
    open_core(core)
    submit(core, b"0", b"1", handle=0)
    submit(core, b"guilty", handle=1)
    for number in (2, 3):
        submit(core, b"%d" % number, handle=number)
    assert [(f.first, f.last) for f in drain(core)] == [(1, 5)]
    submit(core, b"4", b"5", handle=4)
    submit(core, b"6", handle=5)
    assert [(f.first, f.last) for f in drain(core)] == [(6, 8)]
    core.rejected(1, 5, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    core.rejected(6, 8, PublishRefusal.GAP, GAP)
    core.check()
    assert outcome(core) == {}
    assert core.next_flight() is None
    core.ended()
    # Those of the request that was refused go alone, under their sequences.
    open_core(core)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [
        (1, [b"0", b"1"]),
        (3, [b"guilty"]),
        (4, [b"2"]),
        (5, [b"3"]),
        (6, [b"4", b"5", b"6"]),
    ]
    core.confirmed(1, 2)
    core.rejected(3, 3, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    for first, last in ((4, 4), (5, 5), (6, 8)):
        core.rejected(first, last, PublishRefusal.GAP, GAP)
    assert outcome(core) == {0: None, 1: MessageTooLargeError}
    core.ended()
    # Numbered anew they stay alone: another one may be at fault as well.
    open_core(core, last_sequence=2)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [
        (3, [b"2"]),
        (4, [b"3"]),
        (5, [b"4", b"5", b"6"]),
    ]
    core.confirmed(3, 7)
    assert outcome(core) == dict.fromkeys((2, 3, 4, 5))
    assert core.outstanding_messages == 0


def test_a_request_that_is_refused_for_its_queue_fails_whole() -> None:
    """Sent again, each of its messages would be refused for the same reason."""
    core = core_of(window_messages=40)
    open_core(core)
    for number in range(3):
        submit(core, b"%d" % number, handle=number)
    drain(core)
    core.rejected(1, 3, PublishRefusal.FOR_GOOD, QueueNotFoundError("deleted"))
    assert outcome(core) == dict.fromkeys(range(3), QueueNotFoundError)


def test_a_caller_who_is_late_after_a_refusal_is_told_that_its_message_is_not_there() -> None:
    core = core_of(window_messages=40)
    open_core(core)
    submit(core, b"late", handle=1, deadline=10)
    submit(core, b"guilty", handle=2)
    drain(core)
    core.rejected(1, 2, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    core.expire(10)
    assert outcome(core) == {1: UnavailableError}
    core.ended()
    open_core(core)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"guilty"])]
    core.rejected(1, 1, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    assert outcome(core) == {2: MessageTooLargeError}


def test_a_call_that_goes_alone_does_so_in_parts_as_well() -> None:
    """The next node takes less in one request."""
    core = core_of(window_messages=40)
    open_core(core)
    submit(core, b"0", b"1", b"2", b"3", handle=0)
    submit(core, b"guilty", handle=1)
    drain(core)
    core.rejected(1, 5, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    core.ended()
    core.opened(0, Limits(1000, 1000, 2), ORIGIN)
    assert [(f.first, f.last) for f in drain(core)] == [(1, 2), (3, 4), (5, 5)]
    core.rejected(5, 5, PublishRefusal.SOME_FOR_GOOD, TOO_LARGE)
    core.ended()
    # The hole has both parts numbered anew.
    open_core(core)
    assert [(f.first, f.last) for f in drain(core)] == [(1, 2), (3, 4)]


def test_a_batch_call_says_which_of_its_bodies_were_refused() -> None:
    core = core_of(window_messages=400)
    open_core(core)
    submit(core, *(b"%d" % number for number in range(10)))
    assert len(drain(core)) == 1
    core.rejected(1, 10, PublishRefusal.RETRY, TooFewSynchronisedError("later"))
    core.ended()
    core.opened(0, Limits(1000, 1000, 4), ORIGIN)  # a node with smaller batches
    assert [f.count for f in drain(core)] == [2, 3, 2, 3]
    core.confirmed(1, 2)
    core.rejected(3, 5, PublishRefusal.FOR_GOOD, BadRequestError("no"))
    core.ended()
    open_core(core)
    drain(core)
    core.confirmed(1, 5)
    (ticket,) = core.take_finished()
    assert isinstance(ticket.error, BadRequestError)
    assert ticket.failed == [(2, 4)]


def forget_after_one(core: Core) -> None:
    """One message is confirmed; the next is refused, because the queue has forgotten the id."""
    open_core(core)
    submit(core, b"a", handle=1)
    drain(core)
    core.confirmed(1, 1)
    submit(core, b"b", handle=2)
    drain(core)
    core.rejected(2, 2, PublishRefusal.FORGOTTEN, FORGOTTEN)
    core.ended()


def test_a_forgotten_producer_begins_anew() -> None:
    core = core_of()
    forget_after_one(core)
    open_core(core)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"b"])]
    core.confirmed(1, 1)
    assert outcome(core) == {1: None, 2: None}


def test_who_counts_by_an_id_is_told_that_it_was_forgotten() -> None:
    """Numbered anew, the messages would be counted from 1: a program that comes back would send
    all that it has sent before once more."""
    core = core_of(producer_id=b"mine")
    forget_after_one(core)
    with pytest.raises(ProducerForgottenError) as caught:
        open_core(core)
    assert (caught.value.last_sequence, caught.value.known_sequence) == (0, 1)
    core.check()
    assert drain(core) == []


def test_an_id_of_ones_own_goes_on_where_it_was() -> None:
    core = core_of(producer_id=b"mine")
    open_core(core, last_sequence=41)
    submit(core, b"a")
    assert [f.first for f in drain(core)] == [42]
    core.ended()
    core.opened(41, LIMITS, ORIGIN)
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
    # The node never got the first one: its sequence goes to another message.
    open_core(core)
    assert [(f.first, bodies_of(f)) for f in drain(core)] == [(1, [b"patient"])]


def test_a_message_refused_until_its_deadline_fails_with_the_reason() -> None:
    core = core_of()
    open_core(core)
    submit(core, b"a", handle=1, deadline=10)
    drain(core)
    core.rejected(1, 1, PublishRefusal.RETRY, TooFewSynchronisedError("later"))
    core.ended()
    core.expire(10)
    assert outcome(core) == {1: TooFewSynchronisedError}


def test_fail_all_ends_every_ticket_and_the_next_stream_goes_on_behind_them() -> None:
    core = core_of(window_messages=2)
    open_core(core)
    for number in range(4):
        submit(core, b"x", handle=number)
    drain(core)
    core.fail_all(UnavailableError("no"), unknown=OutcomeUnknownError("perhaps"))
    core.check()
    assert outcome(core) == {
        0: OutcomeUnknownError,
        1: OutcomeUnknownError,
        2: UnavailableError,
        3: UnavailableError,
    }
    assert core.next_deadline() is None
    core.ended()
    open_core(core, last_sequence=1)
    submit(core, b"y")
    assert [f.first for f in drain(core)] == [2]


def test_a_slice_of_a_call_takes_its_own_properties_along() -> None:
    core = core_of(window_messages=8)
    open_core(core)
    core.submit([b"a", b"b", b"c"], ["p", "q", "r"], [1, 1, 1], PERSISTENT, FAR, 1)
    core.submit([b"d", b"e"], ["same"], [4], PERSISTENT, FAR, 2)
    slices = [part for flight in drain(core) for part in flight.slices]
    assert [(list(part.bodies), list(part.properties)) for part in slices] == [
        ([b"a", b"b"], ["p", "q"]),
        ([b"c"], ["r"]),
        ([b"d"], ["same"]),
        ([b"e"], ["same"]),
    ]


def test_properties_count_in_the_window_and_in_requests() -> None:
    core: PublisherCore[int, str] = PublisherCore(producer_id=b"id", window_bytes=4000)
    open_core(core)
    each = 500 - MESSAGE_OVERHEAD_BYTES - 100
    core.submit([bytes(each)] * 8, ["of 100 bytes"], [100], PERSISTENT, FAR, 1)
    assert not core.room
    # A quarter of the window in each request.
    assert [flight.count for flight in drain(core)] == [2, 2, 2, 2]
    assert {flight.size_bytes for flight in core._flights} == {1000}


@pytest.mark.parametrize("happening", Happening)
@pytest.mark.parametrize("phase", PublisherPhase)
def test_every_pair_of_phase_and_happening_is_allowed_or_a_bug(
    phase: PublisherPhase, happening: Happening
) -> None:
    core = core_of()
    core.phase = phase
    if (phase, happening) in NEXT_PHASE:
        core._happen(happening)
        assert core.phase is NEXT_PHASE[phase, happening]
        assert core.phase is not PublisherPhase.OPEN or happening is Happening.OPENED
    else:
        with pytest.raises(AssertionError, match=rf"{phase.name} met {happening.name}"):
            core._happen(happening)
        assert core.phase is phase


def test_a_trouble_that_is_over_is_nobodys_reason() -> None:
    """A queue that was deleted, and is there again, isn't missing for a message that is late."""
    core = core_of(window_messages=1)
    core.ended(QueueNotFoundError("deleted"))
    open_core(core)
    submit(core, b"1", handle=1)
    drain(core)
    core.confirmed(1, 1)
    assert outcome(core) == {1: None}
    submit(core, b"2", handle=2)
    drain(core)
    submit(core, b"3", deadline=5.0, handle=3)
    core.expire(6.0)
    assert outcome(core) == {3: UnavailableError}
