"""Each field of each request with a wrong wire type, sent to a real node.

A call or stream ends with a status whose details name the field, and nothing of the request is
done. Beside them a publisher and a consumer on the same connection go on, and so does a client on
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from loops import run
from node.tests.doors.test_bad_fields import METHODS
from node.tests.doors.wrong_types import Wrong, wrongs
from node.tests.nodes import called_node
from waiting import leeway

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_wire import CallStream, RpcError, WireChannel

PUBLISH = broker.PublishRequest(open=broker.PublishOpen(queue="q"))
ROUTED = broker.PublishRequest(open=broker.PublishOpen(exchange="x"))
BATCH = broker.PublishRequest(batch=broker.PublishBatch(first_sequence=1, bodies=[b"x"]))
CONSUME = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="held"))
PULLS = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="held", pulls=True))
PULL = broker.ConsumeRequest(pull=broker.Pull(messages_max=1))
# The one message of the queue. It is still there in the end.
SETTLE = broker.ConsumeRequest(settle=broker.Settle(ack=[common.Range(first=0, last=0)]))
CONNECT = broker.ConnectRequest(open=broker.ConnectOpen())
BEAT = broker.ConnectRequest(heartbeat=broker.Heartbeat())


class Case(NamedTuple):
    method: str
    opening: Message | None
    # In front of the wrong bytes: protobuf merges the two.
    good: Message | None = None


CASES = {
    "the Open of a publisher": Case("Publish", None, PUBLISH),
    "the Open of a consumer": Case("Consume", None, CONSUME),
    "the Open of a connection": Case("Connect", None, CONNECT),
    "a batch to a queue": Case("Publish", PUBLISH, BATCH),
    "a batch to an exchange": Case("Publish", ROUTED, BATCH),
    "an ack": Case("Consume", CONSUME, SETTLE),
    "a pull": Case("Consume", PULLS, PULL),
    "a heartbeat of a connection": Case("Connect", CONNECT, BEAT),
}
KINDS: dict[str, tuple[Any, Any]] = {
    "Publish": (broker.PublishRequest, broker.PublishResponse),
    "Consume": (broker.ConsumeRequest, broker.ConsumeResponse),
    "Connect": (broker.ConnectRequest, broker.ConnectResponse),
}
# A batch with these is refused by an answer, and the stream goes on.
IN_PROPERTIES = (
    *("Properties", "FieldValue", "FieldArray", "FieldTable", "OtherField"),
    *("Death", "FirstDeath"),
)


class Told(NamedTuple):
    reason: str
    field: str


def told(error: RpcError) -> Told:
    info = error_details_pb2.ErrorInfo()
    details = status_pb2.Status.FromString(error.status.details).details
    assert [detail.Unpack(info) for detail in details[:1]] == [True], error
    return Told(info.reason, info.metadata["field"])


async def answer_to(channel: WireChannel, case: Case, wrong: Wrong) -> tuple[bool, Told | str]:
    """Whether the stream has ended; and what was told."""
    _, kind = KINDS[case.method]
    stream = await channel.stream(f"/ringmq.v1.Broker/{case.method}")
    good = b"" if case.good is None else case.good.SerializeToString()
    try:
        if case.opening is not None:
            await stream.write(case.opening.SerializeToString())
            assert kind.FromString(await stream.read() or b"").HasField("opened")
        await stream.write(good + wrong.data)
        while (data := await asyncio.wait_for(stream.read(), leeway(10.0))) is not None:
            answer = kind.FromString(data)
            if case.method == "Publish" and answer.HasField("rejected"):
                reason = common.Reason.Name(answer.rejected.reason).removeprefix("REASON_")
                return False, Told(reason, answer.rejected.field)
            if answer.WhichOneof("response") not in ("opened", "deliveries", "heartbeat"):
                return False, f"{answer}"
    except RpcError as error:
        return True, told(error)
    finally:
        stream.cancel()
    return True, "no status"


async def read_on(stream: CallStream) -> bytes:
    """The next message of a stream that goes on. Without an assertion its end would be read for
    ever, and no time-out would have a turn."""
    data = await stream.read()
    assert data is not None, "the stream of a bystander has ended"
    return data


class Bystanders:
    """A publisher and a consumer on the connection of the wrong requests."""

    def __init__(self, publishing: CallStream, consuming: CallStream) -> None:
        self._publishing = publishing
        self._consuming = consuming
        self._sequence = 0

    @classmethod
    async def on(cls, channel: WireChannel) -> Bystanders:
        publishing = await channel.stream("/ringmq.v1.Broker/Publish")
        opening = broker.PublishOpen(queue="beside")
        await publishing.write(broker.PublishRequest(open=opening).SerializeToString())
        consuming = await channel.stream("/ringmq.v1.Broker/Consume")
        await consuming.write(
            broker.ConsumeRequest(open=broker.ConsumeOpen(queue="beside")).SerializeToString()
        )
        for stream in (publishing, consuming):
            await stream.read()
        return cls(publishing, consuming)

    async def pass_one(self) -> None:
        """A message goes through both."""
        self._sequence += 1
        batch = broker.PublishBatch(first_sequence=self._sequence, bodies=[b"%d" % self._sequence])
        await self._publishing.write(broker.PublishRequest(batch=batch).SerializeToString())
        while True:
            answer = broker.PublishResponse.FromString(await read_on(self._publishing))
            if answer.HasField("confirmed"):
                break
        while True:
            response = broker.ConsumeResponse.FromString(await read_on(self._consuming))
            if response.HasField("deliveries"):
                assert response.deliveries.deliveries[0].bodies == [b"%d" % self._sequence]
                return

    def leave(self) -> None:
        self._publishing.cancel()
        self._consuming.cancel()


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[WireChannel, ringmq.Client, Bystanders]]:
    # Bystanders send no heartbeats, and may have no turn for seconds.
    async with (
        called_node(folder, heartbeat_s=60.0) as (node, channel),
        ringmq.connect(node.address) as client,
        asyncio.timeout(leeway(60)),
    ):
        for queue in ("q", "held", "beside"):
            await client.declare_queue(queue)
        await client.topology.declare_exchange("x", ringmq.ExchangeType.FANOUT)
        await client.topology.bind("x", "q")
        async with client.publisher("held") as publisher:
            await publisher.publish(b"held")
        bystanders = await Bystanders.on(channel)
        try:
            yield channel, client, bystanders
            await bystanders.pass_one()
        finally:
            bystanders.leave()
        # Nothing half done: nothing is published, and nothing settled.
        assert (await client.queue("q")).messages_ready == 0
        held = await client.queue("held")
        assert held.messages_ready + held.messages_unacknowledged == 1


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_stream_with_a_wrong_type_ends_by_the_field_and_others_go_on(
    tmp_path: Path, case: Case
) -> None:
    async def main() -> None:
        async with scene(tmp_path) as (channel, _, bystanders):
            for wrong in wrongs(KINDS[case.method][0].DESCRIPTOR):
                if case.opening in (PUBLISH, ROUTED) and wrong.is_in(("PublishOpen",)):
                    # A second Open is refused as such.
                    continue
                lives_on = case.opening in (PUBLISH, ROUTED) and wrong.is_in(IN_PROPERTIES)
                answer = await answer_to(channel, case, wrong)
                assert answer == (not lives_on, Told("BAD_REQUEST", wrong.name)), wrong
                await bystanders.pass_one()

    run(main())


def test_a_call_with_a_wrong_type_is_refused_by_the_field(tmp_path: Path) -> None:
    async def main() -> None:
        found: list[str] = []
        async with scene(tmp_path) as (channel, client, bystanders):
            for name, method in METHODS.items():
                for wrong in wrongs(method.input_type):
                    try:
                        await channel.unary(
                            f"/ringmq.v1.{name}", wrong.data, timeout_s=leeway(10.0)
                        )
                        found.append(f"{name}, {wrong.place}: taken")
                    except RpcError as error:
                        if told(error) != Told("BAD_REQUEST", wrong.name):
                            found.append(f"{name}, {wrong.place}: {error}")
                await bystanders.pass_one()
            assert await client.operator.policies() == []
        assert found == []

    run(main())


@pytest.mark.parametrize("opening", [PUBLISH, ROUTED], ids=["to a queue", "to an exchange"])
def test_a_field_of_a_batch_that_nobody_knows_ends_the_stream(
    tmp_path: Path, opening: Message
) -> None:
    """One of properties doesn't: consumers get it, and may know it."""

    async def main() -> None:
        unknown = b"\xf8\x3e\x01"  # Field 1007: a number.
        batch = BATCH.batch.SerializeToString()
        properties = b"\x1a\x03" + unknown  # Field 3: three bytes.
        async with scene(tmp_path) as (channel, client, _):
            data = b"\x12" + bytes([len(batch) + 3]) + batch + unknown
            wrong = Wrong("", "", data)
            assert await answer_to(channel, Case("Publish", opening), wrong) == (
                True,
                Told("BAD_REQUEST", ""),
            )
            data = b"\x12" + bytes([len(batch) + 5]) + batch + properties
            _, answer = await answer_to(channel, Case("Publish", opening), Wrong("", "", data))
            assert "confirmed" in str(answer)
            await client.purge_queue("q")

    run(main())
