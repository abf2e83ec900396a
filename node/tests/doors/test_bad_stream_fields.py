"""Each field of each request of a stream, with values that can't be, through a real node's door.

As `test_bad_fields` for unary calls: the fields come from the descriptors, those of repeated
messages and of maps too. A field is refused by name, or stands in `ANYTHING` with the reason why it
takes all. Of a bool both values can be: what the other fields make of them is tested by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from loops import run
from node.tests.nodes import called_node

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_wire import RpcError, WireChannel

PUBLISH = broker.PublishRequest(open=broker.PublishOpen(queue="q", producer_id=b"p"))
ROUTED = broker.PublishRequest(open=broker.PublishOpen(exchange="x", producer_id=b"r"))
CONSUME = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="q"))
BATCH = broker.PublishRequest(
    batch=broker.PublishBatch(first_sequence=1, bodies=[b"x"], properties=[common.Properties()])
)
SETTLE = broker.ConsumeRequest(settle=broker.Settle())
PREFETCH = broker.ConsumeRequest(prefetch=broker.ChangePrefetch(prefetch_messages=1))
PULLS = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="q", pulls=True))
PULL = broker.ConsumeRequest(pull=broker.Pull(messages_max=1))
SHARE = broker.ConsumeRequest(share=broker.WindowShare())
# Openings, and what follows them: good but for the field that is made bad.
CASES: tuple[tuple[Message | None, Message], ...] = (
    (None, PUBLISH),
    (None, ROUTED),
    (None, CONSUME),
    (PUBLISH, BATCH),
    (ROUTED, BATCH),
    (CONSUME, SETTLE),
    (CONSUME, PREFETCH),
    (CONSUME, SHARE),
    (CONSUME, PULL),
    (PULLS, PULL),
)
# Too many, too large, or in the way of a separator.
BAD: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_STRING: ["\x1f", "x" * 200_000],
    FieldDescriptor.TYPE_BYTES: [bytes(20_000)],
    FieldDescriptor.TYPE_UINT64: [2**64 - 1],
    FieldDescriptor.TYPE_UINT32: [2**32 - 1],
    FieldDescriptor.TYPE_SINT32: [2**31 - 1, -(2**31)],
}
ANYTHING = {
    # Any number is right, of a priority and of what is only handed on.
    "ConsumeOpen.priority",
    "Properties.timestamp_ms",
    "Properties.priority",
    "Properties.expiration_ms",
    "Death.count",
    "Death.time_ms",
    "Death.original_expiration_ms",
    # The user's own bytes, within the limit for properties.
    "Properties.foreign",
    "FieldValue.data",
    "FieldValue.timestamp_s",
    "OtherField.data",
    # As many as an answer has, at most.
    "Pull.messages_max",
    "Pull.bytes_max",
    # Of no meaning on a stream to a queue.
    "open.queue: PublishBatch.routing_key",
    "open.queue: PublishBatch.exchange",
    "open.queue: PublishBatch.cc",
    "open.queue: PublishBatch.bcc",
    # Beside a queue: the refusal names the queue.
    "PublishOpen.exchange",
}
# Texts of the user's own: any, if they aren't too long.
TEXTS = {
    "PublishBatch.routing_key",
    "PublishBatch.cc",
    "PublishBatch.bcc",
    "ConsumeOpen.consumer_tag",
}
OPAQUE = (
    "Properties",
    "Death",
    "FirstDeath",
    "HeadersEntry",
    "FieldValue",
    "FieldsEntry",
    "OtherField",
)


class Bad(NamedTuple):
    place: str
    fields: tuple[str, ...]
    request: Message


def bad_requests(good: Message) -> Iterator[Bad]:
    """`good` with one field that can't be."""
    kind: Any = good.WhichOneof("request")
    yield from _bad(good, getattr(good, kind).DESCRIPTOR, (kind,))


def _bad(good: Message, kind: Descriptor | None, path: tuple[str, ...]) -> Iterator[Bad]:
    assert kind is not None
    for field in kind.fields:
        at = (*path, field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            # Values are in arrays and tables of values.
            if at.count(field.name) == 1:
                yield from _bad(good, field.message_type, at)
            continue
        for value in BAD.get(field.type, []):
            is_text = kind.name in OPAQUE or f"{kind.name}.{field.name}" in TEXTS
            if is_text and field.type == FieldDescriptor.TYPE_STRING and len(value) == 1:
                continue
            yield Bad(f"{kind.name}.{field.name}", at, _with(good, at, value))


def _with(good: Message, path: Sequence[str], value: Any) -> Message:
    request = type(good)()
    request.CopyFrom(good)
    inner: Any = request
    for step in path[:-1]:
        # Of a map of messages, which makes an entry that is asked for.
        inner = inner["k"] if hasattr(inner, "GetEntryClass") else getattr(inner, step)
        if not isinstance(inner, Message) and not hasattr(inner, "GetEntryClass"):
            inner = inner[0] if len(inner) else inner.add()
    if hasattr(inner, "GetEntryClass"):
        assert inner[value] is not None
        return request
    if inner.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
        getattr(inner, path[-1]).append(value)
    else:
        setattr(inner, path[-1], value)
    return request


async def outcome(channel: WireChannel, opening: Message | None, bad: Bad) -> str:
    """Empty: it was refused, by a status or an answer that names the field or what has it."""
    is_publish = isinstance(bad.request, broker.PublishRequest)
    answers: Any = broker.PublishResponse if is_publish else broker.ConsumeResponse
    stream = await channel.stream(f"/ringmq.v1.Broker/{'Publish' if is_publish else 'Consume'}")
    try:
        if opening is not None:
            await stream.write(opening.SerializeToString())
            assert answers.FromString(await stream.read() or b"").HasField("opened")
        await stream.write(bad.request.SerializeToString())
        if not is_publish:
            # It is answered, unless the stream has ended.
            with suppress(RpcError):
                await stream.write(PREFETCH.SerializeToString())
        async with asyncio.timeout(30):
            while (data := await stream.read()) is not None:
                answer = answers.FromString(data)
                if is_publish and answer.HasField("rejected"):
                    rejected = answer.rejected
                    reason = common.Reason.Name(rejected.reason)
                    return _judged(bad, reason, rejected.field, rejected.message)
                if answer.WhichOneof("response") in ("confirmed", "prefetch", "returned"):
                    return "accepted"
                if opening is None and answer.HasField("opened"):
                    return "opened"
    except RpcError as error:
        message = error.status.message
        info = error_details_pb2.ErrorInfo()
        told = status_pb2.Status.FromString(error.status.details).details
        if not told or not told[0].Unpack(info):
            return f"no details: {message}"
        return _judged(bad, info.reason, info.metadata.get("field", ""), message)
    finally:
        stream.cancel()
    return "the stream ended without a word"


def _judged(bad: Bad, reason: str, named: str, message: str) -> str:
    reason = reason.removeprefix("REASON_")
    if reason == "INTERNAL":
        return f"{reason}: {message}"
    return (
        "" if reason != "BAD_REQUEST" or named in bad.fields else f"it names {named!r}: {message}"
    )


def test_what_cannot_be_on_a_stream_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        found: dict[str, str] = {}
        asked: set[str] = set()
        async with (
            called_node(tmp_path, message_bytes_max=16_000) as (node, channel),
            ringmq.connect(node.address) as client,
            asyncio.timeout(60),
        ):
            await client.declare_queue("q")
            await client.topology.declare_exchange("x", ringmq.ExchangeType.FANOUT)
            await client.topology.bind("x", "q")
            for opening, good in CASES:
                for bad in bad_requests(good):
                    to = "open.queue" if opening is PUBLISH else ""
                    if not {bad.place, f"{to}: {bad.place}"} & ANYTHING:
                        asked.add(bad.place)
                        if told := await outcome(channel, opening, bad):
                            found[f"{to}: {bad.place}"] = told
        assert found == {}, "\n".join(f"{k}: {v}" for k, v in found.items())
        assert len(asked) > 30, asked

    run(main())


@pytest.mark.parametrize(
    ("opening", "field"),
    [
        (broker.PublishOpen(queue="q", exchange="x"), "queue"),
        (broker.PublishOpen(queue="q", with_gaps=True), "with_gaps"),
        (broker.ConsumeOpen(queue="q", auto_ack=True, shares_window=True), "shares_window"),
        (broker.ConsumeOpen(queue="q", pulls=True, auto_ack=True), "auto_ack"),
        (broker.ConsumeOpen(queue="q", pulls=True, exclusive=True), "exclusive"),
        (broker.ConsumeOpen(queue="q", pulls=True, priority=1), "priority"),
        (broker.ConsumeOpen(queue="q", pulls=True, shares_window=True), "shares_window"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, opening: Any, field: str) -> None:
    is_publish = isinstance(opening, broker.PublishOpen)
    kind: Any = broker.PublishRequest if is_publish else broker.ConsumeRequest

    async def main() -> None:
        async with called_node(tmp_path) as (node, channel):
            async with ringmq.connect(node.address) as client:
                await client.declare_queue("q")
            bad = Bad(field, (field,), kind(open=opening))
            assert await outcome(channel, None, bad) == ""

    run(main())


def test_a_field_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        taken: list[str] = []
        async with (
            called_node(tmp_path) as (node, channel),
            ringmq.connect(node.address) as client,
            asyncio.timeout(60),
        ):
            await client.declare_queue("q")
            await client.topology.declare_exchange("x", ringmq.ExchangeType.FANOUT)
            for opening, good in CASES:
                kind: Any = type(good)
                # Field 1007: a number.
                request = kind.FromString(good.SerializeToString() + b"\xf8\x3e\x01")
                told = await outcome(channel, opening, Bad("", ("",), request))
                if told:
                    taken.append(f"{good}: {told}")
        assert taken == []

    run(main())
