"""Deliveries that are encoded by hand are what protobuf's classes make of the same messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc import wire
from ringmq_node.doors.grpc.deliveries import (
    deliveries_response,
    get_response,
    pulled_response,
)
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run

BODIES = st.lists(
    st.one_of(st.binary(max_size=3), st.sampled_from([bytes(127), bytes(128), bytes(70_000)])),
    min_size=1,
    max_size=5,
)
PROPERTIES = [
    common.Properties(message_id="m" * size, timestamp_ms=size).SerializeToString()
    for size in (0, 1, 200, 5000)
]


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found, at = [], draw(st.sampled_from([0, 1, 1 << 40]))
    for _ in range(draw(st.integers(1, 4))):
        bodies = draw(BODIES)
        count = len(bodies)
        many = draw(st.sampled_from([0, 1, count]))
        properties = draw(st.lists(st.sampled_from(PROPERTIES), min_size=many, max_size=many))
        comes_back = draw(st.sampled_from([0, 1, 65535]))
        found.append(
            Run(
                at,
                Block.of(bodies, properties),
                transient=draw(st.booleans()),
                redelivered=bool(comes_back),
                delivery_count=comes_back,
            )
        )
        at += count + draw(st.integers(0, 2))
    return found


def delivery(run: Run) -> broker.Delivery:
    return broker.Delivery(
        first_position=run.first_position,
        bodies=run.block.bodies(),
        properties=[common.Properties.FromString(data) for data in run.block.properties()],
        redelivered=run.redelivered,
        delivery_count=run.delivery_count,
    )


@given(runs(), st.sampled_from([0, 7]))
def test_an_answer_is_the_message_that_protobuf_would_make(runs: list[Run], ready: int) -> None:
    expected = [*map(delivery, runs)]
    answer = broker.ConsumeResponse.FromString(bytes(deliveries_response(runs)))
    assert answer == broker.ConsumeResponse(deliveries=broker.Deliveries(deliveries=expected))
    answer = broker.ConsumeResponse.FromString(bytes(pulled_response(runs, messages_ready=ready)))
    pulled = broker.Pulled(deliveries=expected, messages_ready=ready)
    assert answer == broker.ConsumeResponse(pulled=pulled)
    got = broker.GetMessagesResponse.FromString(bytes(get_response(runs, messages_ready=ready)))
    assert got == broker.GetMessagesResponse(deliveries=expected, messages_ready=ready)
    for run, told in zip(runs, got.deliveries, strict=True):
        back = wire.run_from_wire(told)
        assert (back.positions, back.redelivered) == (run.positions, run.redelivered)
        assert back.block.bodies() == run.block.bodies()
        assert back.block.properties() == run.block.properties()


def test_an_answer_without_messages_is_one() -> None:
    answer = broker.ConsumeResponse.FromString(bytes(pulled_response([], messages_ready=0)))
    assert answer == broker.ConsumeResponse(pulled=broker.Pulled())
    assert answer.WhichOneof("response") == "pulled"
    assert get_response([], messages_ready=0) == b""
