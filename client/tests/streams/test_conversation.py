"""One stream without a network: its call and its speaker are of the test."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from on_loops import Run
from waiting import leeway, until

from ringmq.errors import RingMQError
from ringmq.streams.conversation import Conversation
from ringmq.streams.speaker import Speaker
from ringmq.v1 import broker_pb2 as broker
from ringmq_wire import CallStream


class ScriptedCall:
    """Answers the Open, and ends when the test says so."""

    def __init__(self) -> None:
        self.call = self
        self.timed_out = False
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._responses = [
            broker.PublishResponse(opened=broker.PublishOpened(heartbeat_ms=1000)),
        ]

    async def write(self, data: bytes) -> None: ...

    async def read(self) -> bytes | None:
        if self._responses:
            return self._responses.pop().SerializeToString()
        await self.end
        return None

    def half_close(self) -> None: ...

    def cancel(self) -> None:
        if not self.end.done():
            self.end.set_result(None)

    def give_up_after(self, seconds: float) -> None: ...


class QuietSpeaker(Speaker[broker.PublishRequest, broker.PublishResponse]):
    """Has nothing to write; `bug` is raised where it is asked for that."""

    response = broker.PublishResponse
    waiting = False
    finishing = False

    def __init__(self, bug: Exception | None = None) -> None:
        self.is_open = False
        self._bug = bug

    def open_request(self) -> broker.PublishRequest:
        return broker.PublishRequest()

    def opened(self, response: broker.PublishResponse) -> int:
        self.is_open = True
        return 1000

    def received(self, response: broker.PublishResponse) -> bool:
        return False

    def next_request(self) -> bytes | None:
        if self._bug is not None:
            raise self._bug
        return None

    def heartbeat(self) -> broker.PublishRequest:
        return broker.PublishRequest()

    def moved(self) -> None: ...

    def ended(self, trouble: RingMQError | None) -> float:
        return 0.0

    def refused(self, error: RingMQError) -> None: ...


def conversation(
    speaker: QuietSpeaker, call: ScriptedCall
) -> Conversation[broker.PublishRequest, broker.PublishResponse]:
    async def newer_master(node: str, epoch: int) -> str:
        return ""

    async def answers(timeout_s: float) -> bool:
        return True

    return Conversation(
        speaker,
        cast(CallStream, call),
        asyncio.Event(),
        peer="node",
        name="test",
        newer_master=newer_master,
        answers=answers,
    )


@pytest.mark.parametrize("turns", range(6))
def test_a_cancel_while_a_stream_ends_goes_on(run: Run, turns: int) -> None:
    """1. The stream ends, and the conversation cancels its writer and waits for that. 2. Its own
    task is cancelled. Taken for the writer's cancel, that one was lost, and the task went on."""

    async def test() -> None:
        speaker, call = QuietSpeaker(), ScriptedCall()
        forever = asyncio.Event()

        async def keep() -> None:
            await conversation(speaker, call).run()
            await forever.wait()

        task = asyncio.create_task(keep())
        await until(lambda: speaker.is_open)
        call.end.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, leeway(5))

    run(test)


def test_a_bug_of_the_writer_ends_the_stream_with_it(run: Run) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            await conversation(QuietSpeaker(RuntimeError("a bug")), ScriptedCall()).run()

    run(test)
