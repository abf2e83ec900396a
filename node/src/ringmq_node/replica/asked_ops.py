"""Removes, requeues and barriers of a master on their way to the ring, in their order.

The ring may refuse an op for a while; then that op and all behind it are held. So are those for
which a turn of the event loop has no time: a consumer that leaves with 30 000 ranges of positions
gives them back in 120 ops, which take half a second. Publishes and the loop's other work go on
between the pieces; the core delivers nothing from behind what is still on its way back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ringmq_base.pieces import Pieces
from ringmq_gm import Ring
from ringmq_node.queue.ops import AskedOp


class AskedOps:
    """Of one mastership."""

    def __init__(
        self,
        ring: Ring,
        *,
        send: Callable[[AskedOp], None],
        wait_taking: Callable[[], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`send` multicasts an op and carries out what follows from it; the ring takes it.
        `wait_taking` returns True when the ring takes ops, False if this isn't its master."""
        self._ring = ring
        self._send = send
        self._wait_taking = wait_taking
        self._spawn = spawn
        self._ops: deque[AskedOp] = deque()
        self._ended = False
        self._sending = False
        self._waiting = False
        # All ops of one turn of the loop share a piece of its time.
        self._turn: Pieces | None = None

    def __len__(self) -> int:
        return len(self._ops)

    def end(self) -> None:
        """The mastership has ended: the ops that are held are nobody's."""
        self._ended = True
        self._ops.clear()
        # The mastership's: no cycle, which would stay in memory when the queue is gone.
        del self._send

    def add(self, op: AskedOp) -> None:
        """Sends `op`, now or later, behind those that are held."""
        self._ops.append(op)
        self.send()

    def send(self) -> None:
        """Sends as far as the ring takes them and this turn has time; the rest by itself, later."""
        # Applying an op may ask for another one: the loop below takes it from the deque, so that
        # it doesn't overtake the ops that are held before it.
        if self._sending or not self._ops or self._ended:
            return
        self._sending = True
        if self._turn is None:
            self._turn = Pieces()
            asyncio.get_running_loop().call_soon(self._end_turn)
        turn = self._turn
        try:
            while self._ops and self._ring.refusal() is None and not turn.is_over:
                self._send(self._ops.popleft())
        finally:
            self._sending = False
        if self._ops and not self._waiting:
            self._waiting = True
            self._spawn(self._send_when_taken())

    def _end_turn(self) -> None:
        self._turn = None

    async def _send_when_taken(self) -> None:
        """Sends in another turn of the loop, once the ring takes ops.

        On a quiet queue no publish, ack or watermark would come that sends them.
        """
        taking = await self._wait_taking()
        self._waiting = False
        if taking:
            self.send()
