"""Pulls over streams that break, and for callers who go."""

from __future__ import annotations

import pytest
from on_loops import Run

from ringmq.consuming.pulling import Pulling
from ringmq.consuming.settling import Settling, Verb
from ringmq.errors import ClosedError, LimitExceededError, ProtocolError
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import PULLS_WAITING_MAX


def pulled(first: int, *bodies: bytes) -> broker.Pulled:
    return broker.Pulled(deliveries=[broker.Delivery(first_position=first, bodies=bodies)])


def written(pulling: Pulling) -> list[int]:
    """How many messages each of the pulls asks for that go out now."""
    found: list[int] = []
    while (request := pulling.next_request()) is not None:
        found.append(request.pull.messages_max)
    return found


def test_answers_are_in_order_and_their_messages_held(run: Run) -> None:
    async def test() -> None:
        settling = Settling()
        pulling = Pulling("q", settling)
        pulling.opened(1)
        one, two = pulling.ask(1, 0), pulling.ask(2, 0)
        assert written(pulling) == [1, 2]
        pulling.answered(pulled(5, b"a"))
        pulling.answered(pulled(6, b"b", b"c"))
        assert [each.body for each in await one] == [b"a"]
        assert [each.body for each in await two] == [b"b", b"c"]
        assert settling.held_messages == 3
        assert not pulling.is_awaited
        with pytest.raises(ProtocolError):
            pulling.answered(pulled(9, b"d"))

    run(test)


def test_the_next_stream_is_asked_again_but_for_those_who_have_gone(run: Run) -> None:
    async def test() -> None:
        pulling = Pulling("q", Settling())
        pulling.opened(1)
        gone, stays = pulling.ask(1, 0), pulling.ask(2, 0)
        assert written(pulling) == [1, 2]
        pulling.leave(gone)
        late = pulling.ask(3, 0)
        # It hasn't gone out, and doesn't.
        pulling.leave(late)
        assert written(pulling) == []
        pulling.opened(2)
        assert written(pulling) == [2]
        pulling.answered(pulled(5, b"a"))
        assert (await stays).generation == 2

    run(test)


def test_messages_for_nobody_go_back(run: Run) -> None:
    async def test() -> None:
        settling = Settling()
        pulling = Pulling("q", settling)
        pulling.opened(1)
        gone, too_late, kept = (pulling.ask(1, 0) for _ in range(3))
        assert written(pulling) == [1, 1, 1]
        pulling.leave(gone)
        behind = pulling.ask(4, 0)
        # It would be given what is behind the messages for nobody.
        assert written(pulling) == []
        pulling.answered(pulled(5, b"a"))
        assert written(pulling) == [4]
        pulling.answered(pulled(6, b"b"))
        # It was answered before its caller saw that.
        pulling.leave(too_late)
        pulling.answered(pulled(7, b"c"))
        pulling.answered(pulled(8, b"d"))
        assert (await behind).positions == [(8, 8)]
        assert settling.take_noted() == {Verb.REQUEUE: [(5, 6)]}
        # The stream ends, and the next one brings the same position to somebody else.
        settling.stream_ended()
        pulling.opened(2)
        again = pulling.ask(1, 0)
        assert written(pulling) == [1]
        pulling.answered(pulled(7, b"c"))
        pulling.leave(kept)
        assert settling.take_noted() == {}
        assert (await again).positions == [(7, 7)]

    run(test)


def test_a_refusal_is_raised_and_the_end_told_to_all(run: Run) -> None:
    async def test() -> None:
        settling = Settling()
        pulling = Pulling("q", settling)
        pulling.opened(1)
        refused, waits = pulling.ask(1, 0), pulling.ask(1, 0)
        assert written(pulling) == [1, 1]
        pulling.answered(broker.Pulled(reason=common.REASON_LIMIT_EXCEEDED, message="full"))
        with pytest.raises(LimitExceededError, match="full"):
            await refused
        pulling.end(ClosedError("the consumer has been closed"))
        with pytest.raises(ClosedError):
            await waits
        assert not pulling.is_awaited
        # It was on its way, and goes back with the stream, which lives on for the last acks.
        pulling.answered(pulled(5, b"a"))
        assert settling.take_noted() == {}
        assert settling.held_messages == 0
        with pytest.raises(ProtocolError):
            pulling.answered(pulled(6, b"b"))

    run(test)


def test_no_more_go_out_than_may_wait(run: Run) -> None:
    async def test() -> None:
        pulling = Pulling("q", Settling())
        pulling.opened(1)
        asked = [pulling.ask(1, 0) for _ in range(PULLS_WAITING_MAX + 1)]
        assert len(written(pulling)) == PULLS_WAITING_MAX
        pulling.answered(pulled(5, b"a"))
        assert len(written(pulling)) == 1
        for each in asked[1:]:
            pulling.leave(each)

    run(test)
