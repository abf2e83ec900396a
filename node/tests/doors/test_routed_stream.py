"""A stream to an exchange ends only when each of its batches has an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from loops import run

from ringmq.v1 import broker_pb2 as broker
from ringmq_node.broker.routing.core import AnswerConfirmed
from ringmq_node.doors.grpc.routed import RoutedStream
from ringmq_node.model.reasons import bad_request


class Session:
    """Answers nothing by itself, and refuses the routing key "refused"."""

    def publish(self, batch: Any) -> None:
        if batch.routing_keys[0] == "refused":
            raise bad_request("refused", field="routing_key")


def stream_of_nothing() -> RoutedStream:
    stream = RoutedStream(cast(Any, SimpleNamespace(is_writable=False)), 30.0)
    stream.session = cast(Any, Session())
    settings = SimpleNamespace(message_bytes_max=1000)
    stream._door = cast(Any, SimpleNamespace(settings=settings))
    return stream


def batch(first: int, key: str = "held") -> bytes:
    said = broker.PublishBatch(first_sequence=first, bodies=[b"x", b"y"], routing_key=key)
    return broker.PublishRequest(batch=said).SerializeToString()


def test_a_refused_repeat_does_not_count_as_the_answer_of_the_batch() -> None:
    async def story() -> None:
        stream = stream_of_nothing()
        stream.received(batch(1))
        stream.received(batch(1))
        waiting = asyncio.create_task(stream.wait_answered())
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.answered([AnswerConfirmed(((1, 2),))])
        await waiting

    run(story())


def test_a_batch_that_the_session_refuses_has_its_answer() -> None:
    async def story() -> None:
        stream = stream_of_nothing()
        stream.received(batch(1, "refused"))
        await stream.wait_answered()

    run(story())
