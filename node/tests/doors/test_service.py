"""A handler whose caller has gone is no fault of this node."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from loops import run

from ringmq_node.doors.grpc.service import Context, Service


async def writes_to_nobody(_: bytes, context: Context) -> None:
    """As `context.write` ends when the caller was killed in the middle of the answer."""
    raise grpc.aio.InternalError('Failed "execute_batch"')


async def streams_to_nobody(context: Context) -> None:
    await writes_to_nobody(b"", context)


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
def test_an_answer_that_nobody_takes_is_not_logged_as_an_error(kind: str) -> None:
    """gRPC logs its own error with a traceback if a handler lets it through."""

    async def main() -> None:
        service = Service(
            "t", unary={}, streams={"M": streams_to_nobody}, unary_stream={"N": writes_to_nobody}
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            # The caller gets no answer: gRPC takes the handler for cancelled by this very caller.
            if kind == "unary_stream":
                unary_stream: Any = channel.unary_stream("/t/N")
                call = unary_stream(b"", timeout=0.3)
            else:
                call = channel.stream_stream("/t/M")(timeout=0.3)
            assert await call.code() is not grpc.StatusCode.OK
        await server.stop(0)

    run(main())
