"""The pulls of a consume stream, which are answered in order.

One is in hand at a time, and its stream reads nothing meanwhile. It waits while the stream has more
to send than it may: otherwise a client that pulls and doesn't read would have the node hold as much
as its prefetch allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringmq.v1 import broker_pb2 as broker
from ringmq_node.broker.consuming import Consuming
from ringmq_node.doors.grpc.status import reason_to_wire, told
from ringmq_node.doors.grpc.wire import run_to_wire
from ringmq_node.model.reasons import BrokerError


class Pulls:
    """`put` takes the answers."""

    def __init__(self, consuming: Consuming, put: Callable[[broker.Pulled], None]) -> None:
        self._consuming = consuming
        self._put = put
        self._task: asyncio.Task[None] | None = None
        self._is_held = False
        self._released: asyncio.Future[None] | None = None

    @property
    def in_hand(self) -> bool:
        return self._task is not None

    def ask(self, pull: broker.Pull) -> None:
        """None is in hand."""
        assert self._task is None
        self._task = asyncio.create_task(self._answer(pull), name="pull")

    async def wait(self) -> None:
        """Returns when none is in hand."""
        if self._task is not None:
            # If this wait is cancelled the answer still counts, until `close`.
            await asyncio.shield(self._task)

    def hold(self, held: bool) -> None:
        """Whether the stream has more to send than it may."""
        self._is_held = held
        if not held and self._released is not None and not self._released.done():
            self._released.set_result(None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, pull: broker.Pull) -> None:
        while self._is_held:
            self._released = asyncio.get_running_loop().create_future()
            await self._released
        try:
            got = await self._consuming.pull(pull.messages_max, pull.bytes_max)
        except BrokerError as error:
            # The stream lives on, and what it holds stays with it.
            answer = broker.Pulled(reason=reason_to_wire(error.reason), message=told(error.message))
        else:
            answer = broker.Pulled(
                deliveries=[run_to_wire(run) for run in got.runs],
                messages_ready=got.messages_ready,
            )
        self._task = None
        # Behind Moved comes nothing.
        if not self._consuming.has_moved:
            self._put(answer)
