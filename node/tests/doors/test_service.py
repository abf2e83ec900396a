"""How services end calls: with a status and its details, or for callers who have gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]
from loops import run

from ringmq_node.doors.grpc.service import Context, routes
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import WireServer


class Handlers:
    """Answers to callers who go away, and to callers who are refused."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    async def writes_to_nobody(self, _: bytes, context: Context) -> None:
        self.entered.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            # As in a last write that was under way when the caller was killed.
            await context.write(b"")
        finally:
            self.left.set()

    async def streams_to_nobody(self, context: Context) -> None:
        await self.writes_to_nobody(b"", context)

    async def refuses(self, _: bytes, context: Context) -> bytes:
        raise BrokerError(Reason.QUEUE_NOT_FOUND, "no queue 'ä%'", queue="ä%")

    async def takes_too_long(self, _: bytes, context: Context) -> bytes:
        raise TimeoutError

    async def has_a_bug(self, _: bytes, context: Context) -> bytes:
        raise ZeroDivisionError


@asynccontextmanager
async def serving(handlers: Handlers) -> AsyncIterator[grpc.aio.Channel]:
    server = WireServer(
        routes(
            "t",
            unary={
                "Refuses": handlers.refuses,
                "TooLong": handlers.takes_too_long,
                "Bug": handlers.has_a_bug,
            },
            streams={"M": handlers.streams_to_nobody},
            unary_stream={"N": handlers.writes_to_nobody},
        )
    )
    port = await server.listen("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
def test_an_answer_that_nobody_takes_is_not_logged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers) as channel, asyncio.timeout(30):
            if kind == "unary_stream":
                unary_stream: Any = channel.unary_stream("/t/N")
                call = unary_stream(b"")
            else:
                stream_stream: Any = channel.stream_stream("/t/M")
                call = stream_stream()
                await call.write(b"")
            await handlers.entered.wait()
            call.cancel()
            await handlers.left.wait()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert not [record for record in caplog.records if record.name.startswith("ringmq")]


async def refusal(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    call: Any = channel.unary_unary(f"/t/{method}")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(b"")
    return refused.value


def test_an_error_of_the_broker_comes_with_its_details() -> None:
    async def main() -> None:
        async with serving(Handlers()) as channel:
            error = await refusal(channel, "Refuses")
            assert error.code() is grpc.StatusCode.NOT_FOUND
            assert error.details() == "no queue 'ä%'"
            status = rpc_status.from_call(error)
            assert status is not None
            info = error_details_pb2.ErrorInfo()
            assert status.details[0].Unpack(info)
            assert info.reason == "QUEUE_NOT_FOUND"
            assert dict(info.metadata) == {"queue": "ä%"}
            error = await refusal(channel, "TooLong")
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            error = await refusal(channel, "None")
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    run(main())


@pytest.mark.logs(r"serving /t/Bug: ZeroDivisionError")
def test_a_bug_ends_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(Handlers()) as channel:
            error = await refusal(channel, "Bug")
            assert error.code() is grpc.StatusCode.UNKNOWN
            error = await refusal(channel, "Refuses")
            assert error.code() is grpc.StatusCode.NOT_FOUND

    run(main())
    records = [record for record in caplog.records if record.name.startswith("ringmq")]
    assert [record.exc_info is not None for record in records] == [True]
