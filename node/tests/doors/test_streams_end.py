"""A stream that is cancelled while its last write is stuck leaves no task behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest
from loops import run

from ringmq.v1 import broker_pb2 as broker
from ringmq_node.doors.grpc.service import Context
from ringmq_node.doors.grpc.streams import PublishStream


class StuckContext:
    """The client has said its last word and reads nothing. The call ends with an error."""

    is_writable = False

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.writing = asyncio.Event()

    @property
    def next_bytes(self) -> None:
        """Each one is waited for."""

    async def wait_message(self) -> int:
        return 0

    async def read(self) -> None:
        # Not before there is a write that is stuck.
        await self.writing.wait()

    async def write(self, data: bytes) -> None:
        self.writing.set()
        await self.is_over.wait()
        raise ConnectionError("the call is over")


class BareStream(PublishStream):
    """Without a queue; `ending` is set when the stream begins to end."""

    def __init__(self, context: StuckContext) -> None:
        super().__init__(cast("Context", context), heartbeat_s=0.01)
        self.ending = asyncio.Event()
        self.writer.put(broker.PublishResponse(heartbeat=broker.Heartbeat()))

    def closed(self) -> None:
        self.ending.set()


def test_a_stream_cancelled_in_its_last_write_leaves_no_failed_task() -> None:
    """A task that fails after nobody waits for it any more is a traceback in the node's log."""

    async def story() -> list[dict[str, Any]]:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        context = StuckContext()
        stream = BareStream(context)
        running = asyncio.create_task(stream.run())
        await stream.ending.wait()
        # As the handler of a call that is over is cancelled, in whatever it is.
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        context.is_over.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=1.0)
        del others, running, stream
        gc.collect()
        return unheard

    assert run(story()) == []
